// RunLayout: where the bytes of a response lie. Pure.
//
// Tensors of an allreduce or a broadcast become pieces, one behind the other. The collectives whose
// results differ in shape from their inputs become extents, one per chunk of their template:
//
//   allgather       chunk r        rank r's rows; the results lie one behind the other
//   reducescatter   chunk r        the rows that rank r gets: equal parts, and one row more for
//                                  each of the first (rows mod size) ranks
//   alltoall        chunk s*n + r  the rows that rank s has for rank r
//
// Their outputs are made by the core, because only the response says how large they are.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/collective.h"
#include "runtime/request.h"

namespace hora {

/// What a rank gets of a collective with extents.
struct OwnOutput {
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> shape;
  /// Allgather: rows of each rank; alltoall: rows from each rank; else empty.
  std::vector<std::int64_t> first_dims;
};

/// True for the kinds that `lay_out_extents` is for.
constexpr bool has_extents(Kind kind) {
  return kind == Kind::allgather || kind == Kind::reducescatter || kind == Kind::alltoall;
}

/// Sets `extents` and `total_bytes` of the run for rank `self` of `size`. The response has one
/// tensor, of a kind with extents.
OwnOutput lay_out_extents(const Response& response, int self, int size, CollectiveRun& run);

/// Appends a tensor to the pieces of a run.
void add_piece(CollectiveRun& run, const void* input, void* output, std::uint64_t bytes);

}  // namespace hora
