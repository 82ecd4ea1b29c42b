// Agreement: do all ranks mean the same by a name? And if not: who means what.
//
// Asked once all ranks of the process set have submitted the tensor, or have joined. The first
// sentence of an answer is the one Horovod's users search for; what follows in parentheses names
// the tensor, every rank and what it submitted:
//
//   Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [17, 17],
//   but another rank sent a tensor of shape [18, 18].
//   (tensor 'x': ranks 0,1,3 submitted float32[17, 17], rank 2 submitted ...)
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/request.h"

namespace hora {

/// What is wrong with a collective that all ranks of `set` agree about, or nothing.
std::optional<Error> find_fault(const Request& request, const ProcessSet& set);

/// Why the others cannot do this without `absent` ranks, which have joined, or nothing if they can.
std::optional<Error> find_join_fault(const Request& request,
                                     const std::vector<std::int32_t>& absent);

/// Why these requests, ascending by rank, cannot become one collective, or nothing if they can: a
/// rank's call has failed before it began, or they differ. All
/// have the same key; the shape of an allgather is the rank's own, first dimension included.
std::optional<Error> find_disagreement(std::span<const Submitted> by_rank);

}  // namespace hora
