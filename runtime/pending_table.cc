// The list of the incomplete is doubly linked through the entries, so that a tensor leaves it from
// any place. A join walks the list once; whatever is opened later is opened without the joined
// ranks, so no arrival ever asks who has joined.
#include "runtime/pending_table.h"

#include <algorithm>
#include <memory>
#include <string>

#include "runtime/base/check.h"

namespace hora {

Result<PendingId> PendingTable::add(Rank from, const Arrival& arrival, const SharedSet& set,
                                    TimePoint now) {
  const auto broken = [&](const char* what) {
    return fail(ErrorKind::protocol, "negotiation: rank " + std::to_string(from.value) +
                                         " submitted '" + name_text(arrival.request->name) + "' " +
                                         what);
  };
  if (has_joined(from)) return broken("although it has joined");
  const auto found = by_key_.find(key_of(*arrival.request));
  if (found == by_key_.end() && by_key_.size() >= kMaxPending) {
    return fail(ErrorKind::protocol,
                "negotiation: more than " + std::to_string(kMaxPending) + " tensors are pending");
  }
  const PendingId id = found != by_key_.end() ? found->second : open(arrival, set, now);
  Pending& entry = entries_[id];
  const std::size_t rank = index_of(from);
  if (entry.ordinals[rank] != 0) return broken("twice without an answer in between");
  entry.ordinals[rank] = ++ordinals_[rank];
  if (arrival.request != entry.request && !matches(*arrival.request, *entry.request)) {
    entry.others.emplace_back(from.value, std::make_shared<const Request>(
                                              restored(*arrival.request, arrival.first_dims)));
  } else if (!arrival.first_dims.empty()) {
    const std::size_t own = arrival.first_dims.size();
    entry.first_dims.resize(static_cast<std::size_t>(size_) * own);
    std::copy(arrival.first_dims.begin(), arrival.first_dims.end(),
              entry.first_dims.begin() + static_cast<std::ptrdiff_t>(rank * own));
  } else if (!arrival.input.empty()) {
    keep_input(entry, from, arrival.input);
  }
  if (--entry.missing == 0) unlink(id);
  return id;
}

void PendingTable::keep_input(Pending& entry, Rank from, std::span<const std::byte> input) {
  const std::uint64_t before = entry.inputs.kept_bytes();
  if (before == 0 && kept_bytes_ >= kMostKeptBytes) return;
  entry.inputs.put(entry.set->index_of(from), entry.set->size(), input);
  kept_bytes_ += entry.inputs.kept_bytes() - before;
}

Result<std::vector<PendingId>> PendingTable::join(Rank rank) {
  if (has_joined(rank)) {
    return fail(ErrorKind::protocol,
                "negotiation: rank " + std::to_string(rank.value) + " joined twice");
  }
  joined_[index_of(rank)] = true;
  ++joins_;
  std::vector<PendingId> complete;
  for (PendingId id = oldest_; id != kNoPending; id = entries_[id].newer) {
    Pending& entry = entries_[id];
    if (entry.ordinals[index_of(rank)] != 0 || !entry.set->includes(rank)) continue;
    if (--entry.missing == 0) complete.push_back(id);
  }
  for (const PendingId id : complete)
    unlink(id);
  return complete;
}

void PendingTable::end_joins() {
  HORA_CHECK(by_key_.empty(), "when all have joined nothing is missing, so all is answered");
  joined_.assign(joined_.size(), false);
  joins_ = 0;
}

PendingId PendingTable::open(const Arrival& arrival, const SharedSet& set, TimePoint now) {
  PendingId id = static_cast<PendingId>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Pending& entry = entries_[id];
  entry.request = arrival.request;
  entry.set = set;
  entry.slot = arrival.slot;
  entry.missing = static_cast<std::uint32_t>(set->size());
  if (joins_ > 0) {
    entry.missing -= static_cast<std::uint32_t>(
        std::count_if(set->ranks.begin(), set->ranks.end(),
                      [this](std::int32_t rank) { return has_joined(Rank(rank)); }));
  }
  entry.ordinals.assign(static_cast<std::size_t>(size_), 0);
  entry.first_dims.clear();
  entry.others.clear();
  entry.error.reset();
  entry.since = now;
  entry.bytes = byte_count(*arrival.request);
  entry.older = newest_;
  entry.newer = kNoPending;
  (newest_ == kNoPending ? oldest_ : entries_[newest_].newer) = id;
  newest_ = id;
  by_key_.emplace(key_of(*entry.request), id);
  return id;
}

void PendingTable::unlink(PendingId id) {
  const Pending& entry = entries_[id];
  (entry.older == kNoPending ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNoPending ? newest_ : entries_[entry.newer].older) = entry.older;
}

void PendingTable::remove(PendingId id) {
  Pending& entry = entries_[id];
  if (entry.missing > 0) unlink(id);
  by_key_.erase(key_of(*entry.request));
  kept_bytes_ -= entry.inputs.kept_bytes();
  entry.inputs.clear();
  entry.request.reset();
  entry.set.reset();
  entry.others.clear();
  free_.push_back(id);
}

std::vector<std::int32_t> PendingTable::ranks_of(PendingId id) const {
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < size_; ++rank) {
    if (entries_[id].ordinals[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<std::int32_t> PendingTable::without(PendingId id, bool joined) const {
  const Pending& entry = entries_[id];
  std::vector<std::int32_t> ranks;
  for (const std::int32_t rank : entry.set->ranks) {
    if (entry.ordinals[static_cast<std::size_t>(rank)] == 0 && has_joined(Rank(rank)) == joined) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<std::int32_t> PendingTable::missing_of(PendingId id) const {
  return without(id, false);
}

std::vector<std::int32_t> PendingTable::absent_of(PendingId id) const {
  return joins_ == 0 ? std::vector<std::int32_t>{} : without(id, true);
}

std::vector<Submitted> PendingTable::requests_of(PendingId id) const {
  const Pending& entry = entries_[id];
  const std::size_t own = own_dims(entry.request->kind, entry.set->size());
  std::vector<Submitted> submitted;
  for (const std::int32_t rank : ranks_of(id)) {
    const auto other = std::find_if(entry.others.begin(), entry.others.end(),
                                    [&](const auto& said) { return said.first == rank; });
    if (other != entry.others.end()) {
      submitted.push_back({rank, *other->second});
      continue;
    }
    const std::size_t at = static_cast<std::size_t>(rank) * own;
    submitted.push_back(
        {rank, restored(*entry.request, std::span(entry.first_dims).subspan(at, own))});
  }
  return submitted;
}

}  // namespace hora
