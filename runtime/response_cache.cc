#include "runtime/response_cache.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace hora {

Slot ResponseCache::find_key(const TensorKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? kNoSlot : found->second;
}

Slot ResponseCache::find(const Request& request) const {
  const Slot slot = find_key(key_of(request));
  return slot != kNoSlot && matches(*slots_[slot], request) ? slot : kNoSlot;
}

void ResponseCache::put(Slot slot, SharedRequest request) {
  HORA_CHECK(slot < kMaxSlots, "slots are bounded");
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  // A key has one slot. The root never gives it a second; bytes of a stranger might.
  const Slot other = find_key(key_of(*request));
  if (other != kNoSlot) {
    by_key_.erase(key_of(*request));
    if (other != slot) slots_[other].reset();
  }
  if (slots_[slot]) by_key_.erase(key_of(*slots_[slot]));
  slots_[slot] = std::move(request);
  by_key_.emplace(key_of(*slots_[slot]), slot);
}

RootCache::RootCache(std::uint32_t capacity) : capacity_(std::min(capacity, kMaxSlots)) {}

SharedRequest RootCache::at(Slot slot, std::uint64_t seen) const {
  if (slot >= entries_.size()) return nullptr;
  const Entry& entry = entries_[slot];
  if (entry.since <= seen) return replica_.at(slot);
  for (const Version& version : entry.before) {
    if (version.since <= seen && seen <= version.until) return version.request;
  }
  return nullptr;
}

void RootCache::touch(Slot slot) {
  if (slot == newest_) return;
  unlink(slot);
  link_newest(slot);
}

Slot RootCache::put(SharedRequest request) {
  if (capacity_ == 0) return kNoSlot;
  Slot slot = replica_.find_key(key_of(*request));
  if (slot == kNoSlot && entries_.size() < capacity_) {
    slot = static_cast<Slot>(entries_.size());
    entries_.emplace_back();
  } else {
    if (slot == kNoSlot) slot = oldest_;
    unlink(slot);
    Entry& entry = entries_[slot];
    std::erase_if(entry.before, [&](const Version& version) { return version.until < floor_; });
    // A content that came and went within the message being written was never seen.
    if (entry.since <= position_ && position_ >= floor_) {
      entry.before.push_back({entry.since, position_, replica_.at(slot)});
    }
  }
  entries_[slot].since = position_ + 1;
  link_newest(slot);
  replica_.put(slot, std::move(request));
  return slot;
}

void RootCache::unlink(Slot slot) {
  Entry& entry = entries_[slot];
  (entry.newer == kNoSlot ? newest_ : entries_[entry.newer].older) = entry.older;
  (entry.older == kNoSlot ? oldest_ : entries_[entry.older].newer) = entry.newer;
  entry.newer = entry.older = kNoSlot;
}

void RootCache::link_newest(Slot slot) {
  Entry& entry = entries_[slot];
  entry.older = newest_;
  (newest_ == kNoSlot ? oldest_ : entries_[newest_].newer) = slot;
  newest_ = slot;
}

}  // namespace hora
