// Carried: a small all-reduce travels with the word that it is ready.
//
// A tensor of a few kilobytes costs two meetings of all ranks, one to agree that it is ready and
// one to exchange it, and each is a sleep and a wake of everybody. A known tensor that somebody
// waits for can do with one: its bytes ride on the bit that says "I have it", the root reduces them
// when it has them of all ranks, and the result rides on the answer.
//
//   rank r   bit + input  -->  root   all of the set's ranks? -> reduce, lower rank first
//            answer + result <--
//
// It is an offer, not a promise: if one rank does not send its input - its message is too long, it
// has joined, its cache is behind - the tensor goes the ordinary way, and so its bytes are dropped
// here. The numbers are the same either way to the last bit: the same kernels, operands in the same
// order, scaled before the one rounding.
//
// Who sends: a message carries the inputs of all of its carriable tensors or of none, by the
// sender's choice (WorkerNegotiator); it does so if its caller waits and they are few bytes
// together. Many tensors at once are fused instead, and each rank reduces its part.
//
// Pure. What is kept is bounded by kMostKeptBytes; beyond it inputs are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/process_set.h"
#include "runtime/request.h"

namespace hora {

/// Inputs that one message carries, at most; so no tensor is larger.
inline constexpr std::size_t kMaxCarriedBytes = 64 << 10;
/// What the root keeps of incomplete tensors, at most.
inline constexpr std::uint64_t kMostKeptBytes = 16 << 20;

/// The bytes of a tensor that can be carried; 0: it cannot. All ranks think alike about a canonical
/// request, so nobody says which tensors of a message are carried.
std::size_t carriable_bytes(const Request& canonical);

/// What the ranks of a set have sent of one tensor. Owner: the PendingTable.
class CarriedInputs {
 public:
  /// The input of the set's rank at `place`, of `size`; once for each, all equally long.
  void put(int place, int size, std::span<const std::byte> input);
  void clear();
  /// Ranks that have sent theirs.
  [[nodiscard]] int count() const { return count_; }
  /// Memory that is kept.
  [[nodiscard]] std::uint64_t kept_bytes() const { return inputs_.size(); }
  /// The result, when all have: scales the inputs in place, and merges them.
  std::vector<std::byte> reduce(const Request& request);

 private:
  std::size_t bytes_ = 0, stride_ = 0;
  int count_ = 0;
  std::vector<std::byte> inputs_;  // By place, each aligned for any element.
};

}  // namespace hora
