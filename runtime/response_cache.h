// ResponseCache: tensors that are known by a number.
//
// A tensor that was answered once has a *slot*, and from then on travels as one bit. All ranks must
// mean the same by a slot, so the caches are replicas of each other: only the root decides (which
// slot, which tensor gives way), and its decisions travel in the stream of RootMessages that all
// ranks apply in order. A replica decides nothing, so replicas cannot diverge.
//
// The one subtle thing is time. A rank that sets a bit meant what the slot held when it had seen
// `seen` messages of the stream; the root may since have given the slot away. So the root's cache
// keeps what a slot held before, until every rank has seen the change:
//
//   stream     1 ........ 4 ........ 9 ........       a bit for slot 7, sent at seen = 6, means B
//   slot 7     |    A     |    B     |    C
//
// Requests in a cache are canonical and immutable; they are shared, not copied, so "the same
// tensor" is a comparison of pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/request.h"
#include "runtime/slot_set.h"
#include "runtime/tensor_key.h"

namespace hora {

/// The replica that every rank has. Owner: the progress token.
class ResponseCache {
 public:
  /// The slot that holds exactly this canonical request, or kNoSlot.
  [[nodiscard]] Slot find(const Request& request) const;
  /// The slot of the tensor of this key, or kNoSlot.
  [[nodiscard]] Slot find_key(const TensorKey& key) const;
  /// What a slot holds; null if nothing, or if there is no such slot.
  [[nodiscard]] const SharedRequest& at(Slot slot) const {
    return slot < slots_.size() ? slots_[slot] : nothing_;
  }
  /// The slot holds this from now on. slot < kMaxSlots.
  void put(Slot slot, SharedRequest request);
  /// Slots that hold something.
  [[nodiscard]] std::size_t size() const { return by_key_.size(); }

 private:
  std::vector<SharedRequest> slots_;
  std::unordered_map<TensorKey, Slot, TensorKeyHash> by_key_;  // views of the requests' names
  SharedRequest nothing_;
};

/// The root's: decides, and remembers. Owner: the Coordinator.
class RootCache {
 public:
  /// `capacity` slots, at most kMaxSlots; 0: nothing is ever cached.
  explicit RootCache(std::uint32_t capacity);

  [[nodiscard]] Slot find(const Request& request) const { return replica_.find(request); }
  [[nodiscard]] const SharedRequest& at(Slot slot) const { return replica_.at(slot); }
  /// What the slot held for a rank that had seen `seen` messages; null if nothing.
  [[nodiscard]] SharedRequest at(Slot slot, std::uint64_t seen) const;

  /// The message being written uses the slot.
  void touch(Slot slot);
  /// The message being written makes the tensor known: the slot of its key, else a free one, else
  /// the one least recently used. kNoSlot if the capacity is 0.
  Slot put(SharedRequest request);

  /// The message being written is complete; the next one begins.
  void end_message() { ++position_; }
  /// Complete messages: what a rank that saw all of the stream has seen.
  [[nodiscard]] std::uint64_t position() const { return position_; }
  /// No rank will ask for less any more.
  void forget_below(std::uint64_t seen) { floor_ = seen; }

 private:
  /// What a slot held for those who had seen `since` <= seen <= `until`.
  struct Version {
    std::uint64_t since = 0, until = 0;
    SharedRequest request;
  };
  struct Entry {
    Slot newer = kNoSlot, older = kNoSlot;  // in the order of use
    std::uint64_t since = 0;                // of the content now
    std::vector<Version> before;
  };

  void unlink(Slot slot);
  void link_newest(Slot slot);

  std::uint32_t capacity_;
  ResponseCache replica_;
  std::vector<Entry> entries_;
  Slot newest_ = kNoSlot, oldest_ = kNoSlot;
  std::uint64_t position_ = 0, floor_ = 0;
};

}  // namespace hora
