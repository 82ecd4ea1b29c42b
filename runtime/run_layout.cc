#include "runtime/run_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace hora {
namespace {

constexpr std::uint64_t kPieceAlign = 64;

/// Rows that a rank gets when `rows` are dealt to `size` ranks.
std::int64_t dealt_rows(std::int64_t rows, int rank, int size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

}  // namespace

OwnOutput lay_out_extents(const Response& response, int self, int size, CollectiveRun& run) {
  const ResponseTensor& tensor = response.tensors.front();
  const std::vector<std::int64_t>& shape = tensor.request->shape;
  const std::int64_t row_elements =
      std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>{});
  const auto row_bytes = static_cast<std::uint64_t>(row_elements) * size_of(response.dtype);

  OwnOutput own;
  std::uint64_t given = 0;
  std::int64_t taken = 0;
  const auto add = [&](std::int64_t rows, bool gives, bool takes) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(rows) * row_bytes;
    run.extents.push_back({bytes, gives ? given : 0, takes ? own.bytes : 0});
    run.total_bytes = std::max(run.total_bytes, bytes);
    if (gives) given += bytes;
    if (!takes) return;
    own.bytes += bytes;
    taken += rows;
  };
  if (response.kind == Kind::allgather) {
    for (int rank = 0; rank < size; ++rank) {
      add(tensor.first_dims[static_cast<std::size_t>(rank)], rank == self, true);
    }
    own.first_dims = tensor.first_dims;
  } else if (response.kind == Kind::reducescatter) {
    for (int rank = 0; rank < size; ++rank) {
      add(dealt_rows(shape.front(), rank, size), true, rank == self);
    }
  } else {
    for (int giver = 0; giver < size; ++giver) {
      for (int taker = 0; taker < size; ++taker) {
        const std::int64_t rows =
            tensor.first_dims[static_cast<std::size_t>(giver) * static_cast<std::size_t>(size) +
                              static_cast<std::size_t>(taker)];
        add(rows, giver == self, taker == self);
        if (taker == self) own.first_dims.push_back(rows);
      }
    }
  }
  own.shape = shape;
  own.shape.front() = taken;
  return own;
}

void add_piece(CollectiveRun& run, const void* input, void* output, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::uint64_t start = (run.total_bytes + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
  run.pieces.push_back(
      {static_cast<const std::byte*>(input), static_cast<std::byte*>(output), start, bytes});
  run.total_bytes = start + bytes;
}

}  // namespace hora
