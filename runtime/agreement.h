// Agreement: do all ranks mean the same by a name? And if not: who means what.
//
// Asked once all ranks have submitted the tensor. The first sentence of an answer is the one
// Horovod's users search for; what follows in parentheses names the tensor, every rank and
// what it submitted:
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

/// "rank 2", "ranks 0,1,3", "ranks 0-62,64": ascending ranks, as people write them.
std::string ranks_text(const std::vector<std::int32_t>& ranks);

/// What is wrong with a request that all ranks agree about, or nothing. `size` ranks.
std::optional<Error> find_fault(const Request& request, int size);

/// Why these requests, by rank, cannot become one collective, or nothing if they can. All have the
/// same name; the shape of an allgather is the rank's own, first dimension included.
std::optional<Error> find_disagreement(std::span<const Request> by_rank);

}  // namespace hora
