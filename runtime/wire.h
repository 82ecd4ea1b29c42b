// Wire: the two messages of negotiation as bytes.
//
//   WorkerMessage   'W' flags varint(seen)
//                       [slot set [varint(n) n x varint(first dim)]]
//                       [varint(n) n x byte of inputs]
//                       [FlatBuffer]
//   RootMessage     'R' flags varint(responses)
//                       per response: head [slot set [varint(n) n x varint(first dim)]]
//                                          [varint(n) n x byte of result]
//                       [FlatBuffer]
//
// A step of a training loop whose tensors are all known is a head of three bytes and a slot set.
// Only what a receiver cannot know, new requests and texts, is a FlatBuffer (wire.fbs) at the end
// of the message; it is copied to aligned memory and verified before it is looked at. Of a
// response, `head` says which parts follow; the new tensors of the k-th response that has some are
// the k-th element in the FlatBuffer. Inputs and results are those of carried.h.
//
// Decoders take bytes of anybody: whatever does not decode is an error of kind protocol. What
// decodes is well-formed (known enumerators, sizes that do not overflow, slots in range), not yet
// plausible: whether a slot holds something is for the receiver to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/request.h"
#include "runtime/response_cache.h"
#include "runtime/slot_set.h"

namespace hora {

/// Messages are at most this long; senders spread what is more over several.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{16} << 20;
/// Senders close a message once it has this much.
inline constexpr std::size_t kMessageBudget = std::size_t{1} << 20;
/// About what a request costs in a FlatBuffer beside its name and shape.
inline constexpr std::size_t kRequestOverhead = 96;
/// A first dimension beside a slot takes at most this.
inline constexpr std::size_t kVarintBytes = 10;

struct WorkerMessage {
  std::uint64_t seen = 0;  ///< RootMessages that the sender had applied.
  bool flush = false;
  std::vector<Slot> hits;                 ///< Ascending.
  std::vector<std::int64_t> first_dims;   ///< Of the hits that have own ones, in their order.
  std::vector<std::byte> inputs;          ///< Of the carriable hits, in their order; or none.
  std::vector<Request> requests;          ///< Not known by the sender's cache; not canonical.
  std::optional<std::string> last_words;  ///< The sender leaves.
};

/// A tensor that the receivers do not know yet.
struct NewTensor {
  SharedRequest request;                 ///< Canonical.
  Slot slot = kNoSlot;                   ///< Where it is kept from now on.
  std::vector<std::int64_t> first_dims;  ///< Those of all ranks, by rank.
};

/// One response: first its known tensors in the order of their slots, then the new ones.
struct WireResponse {
  std::uint8_t lane = 0;
  std::vector<Slot> slots;
  std::vector<std::int64_t> first_dims;  ///< By slot, then by rank.
  std::vector<std::byte> result;         ///< Not empty: of its one tensor, which was carried.
  std::vector<NewTensor> tensors;
  std::string error;  ///< Not empty: these tensors fail.
  ErrorKind error_kind = ErrorKind::mismatch;
};

struct RootMessage {
  std::vector<WireResponse> responses;
  std::string notice;
  std::optional<Error> stop;

  [[nodiscard]] bool empty() const { return responses.empty() && notice.empty() && !stop; }
};

std::vector<std::byte> encode(const WorkerMessage& message);
std::vector<std::byte> encode(const RootMessage& message);
/// `message` is overwritten; its memory is used again.
Result<void> decode(std::span<const std::byte> bytes, WorkerMessage& message);
Result<void> decode(std::span<const std::byte> bytes, RootMessage& message);

}  // namespace hora
