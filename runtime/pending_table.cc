#include "runtime/pending_table.h"

#include <algorithm>
#include <memory>

namespace hora {

Result<PendingId> PendingTable::add(Rank from, const Arrival& arrival, TimePoint now) {
  const auto found = by_name_.find(arrival.request->name);
  if (found == by_name_.end() && by_name_.size() >= kMaxPending) {
    return fail(ErrorKind::protocol,
                "negotiation: more than " + std::to_string(kMaxPending) + " tensors are pending");
  }
  const PendingId id = found != by_name_.end() ? found->second : open(arrival, now);
  Pending& entry = entries_[id];
  const std::size_t rank = index_of(from);
  if (entry.ordinals[rank] != 0) {
    return fail(ErrorKind::protocol, "negotiation: rank " + std::to_string(from.value) +
                                         " submitted '" + name_text(entry.request->name) +
                                         "' twice without an answer in between");
  }
  entry.ordinals[rank] = ++ordinals_[rank];
  if (arrival.request != entry.request && !matches(*arrival.request, *entry.request)) {
    entry.others.emplace_back(from.value, std::make_shared<const Request>(
                                              restored(*arrival.request, arrival.first_dims)));
  } else if (!arrival.first_dims.empty()) {
    const std::size_t own = arrival.first_dims.size();
    entry.first_dims.resize(static_cast<std::size_t>(size_) * own);
    std::copy(arrival.first_dims.begin(), arrival.first_dims.end(),
              entry.first_dims.begin() + static_cast<std::ptrdiff_t>(rank * own));
  }
  if (++entry.count == static_cast<std::uint32_t>(size_)) unlink(id);
  return id;
}

PendingId PendingTable::open(const Arrival& arrival, TimePoint now) {
  PendingId id = static_cast<PendingId>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Pending& entry = entries_[id];
  entry.request = arrival.request;
  entry.slot = arrival.slot;
  entry.count = 0;
  entry.ordinals.assign(static_cast<std::size_t>(size_), 0);
  entry.first_dims.clear();
  entry.others.clear();
  entry.since = now;
  entry.bytes = byte_count(*arrival.request);
  entry.older = newest_;
  entry.newer = kNoPending;
  (newest_ == kNoPending ? oldest_ : entries_[newest_].newer) = id;
  newest_ = id;
  by_name_.emplace(entry.request->name, id);
  return id;
}

void PendingTable::unlink(PendingId id) {
  const Pending& entry = entries_[id];
  (entry.older == kNoPending ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNoPending ? newest_ : entries_[entry.newer].older) = entry.older;
}

void PendingTable::remove(PendingId id) {
  Pending& entry = entries_[id];
  by_name_.erase(entry.request->name);
  entry.request.reset();
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

std::vector<Request> PendingTable::requests_of(PendingId id) const {
  const Pending& entry = entries_[id];
  const std::size_t own = own_dims(entry.request->kind, size_);
  std::vector<Request> requests;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size_); ++rank) {
    requests.push_back(
        restored(*entry.request, std::span(entry.first_dims).subspan(rank * own, own)));
  }
  for (const auto& [rank, request] : entry.others) {
    requests[static_cast<std::size_t>(rank)] = *request;
  }
  return requests;
}

}  // namespace hora
