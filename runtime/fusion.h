// FusionPlanner: which ready tensors share a buffer.
//
// An allreduce costs a fixed time per buffer and a time per byte, so small tensors are put
// together, up to `target` bytes: from there on a second buffer that overlaps with the first is
// worth more than a larger one. Tensors share a buffer when the same thing happens to all its
// elements: kind, process set, dtype, op, scales, codec.
//
//   ready, in order   a:f32  b:f16  c:f32  d:f32(large)  e:f16
//   buffers                [a c]  [b e]  [d]
//
// The order is kept within a buffer, and buffers are in the order of their first tensors; a tensor
// that does not match is passed over, not waited for. A buffer is *full* when it has reached the
// target, or when the next tensor would have exceeded the limit. What does not fuse (Adasum, which
// combines a tensor as a whole; allgather, broadcast, barrier) is a full buffer of its own.
//
// Pure: the same on any input order, no state but reused memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/negotiation.h"
#include "runtime/request.h"

namespace hora {

/// Tensors in a buffer at most: bounds the message that announces them.
inline constexpr std::size_t kMaxFusedTensors = 1024;

/// A ready tensor, as the planner sees it.
struct FusionItem {
  const Request* request = nullptr;  ///< Canonical.
  std::uint64_t bytes = 0;
};

struct FusedBuffer {
  std::uint64_t bytes = 0;
  bool full = false;
  std::vector<std::uint32_t> items;  ///< Indices into what was planned, ascending.
};

/// May these two share a buffer?
bool fuses(const Request& a, const Request& b);
/// The lane of a buffer: small ones overtake large ones.
std::uint16_t lane_of(std::uint64_t bytes, const NegotiationOptions& options);

/// Owner: the Coordinator.
class FusionPlanner {
 public:
  explicit FusionPlanner(const NegotiationOptions& options);

  /// Buffers for all items. Valid until the next call.
  std::span<const FusedBuffer> plan(std::span<const FusionItem> items);
  /// A buffer of this many bytes is full.
  [[nodiscard]] std::uint64_t full_bytes() const { return full_; }

 private:
  FusedBuffer& start_buffer(std::uint32_t item);

  std::uint64_t limit_, full_;
  std::vector<FusedBuffer> buffers_;  // the first `used_` count
  std::size_t used_ = 0;
  std::vector<std::size_t> open_;  // buffers that take more, at most one per class
};

}  // namespace hora
