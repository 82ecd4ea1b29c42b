// What the root answers, and when: see negotiation.h for the rule, coordinator.cc for the life of a
// tensor.
//
// A message is made of responses. Errors, carried results and what does not fuse go first; then the
// planner cuts the ready allreduces into buffers, and a buffer goes if it is released or full and
// its lane has room. Known tensors are written as slots, new ones in full; what is written is
// forgotten here.
#include <algorithm>
#include <array>
#include <utility>

#include "runtime/agreement.h"
#include "runtime/base/check.h"
#include "runtime/coordinator_state.h"

namespace hora {

std::optional<std::vector<std::byte>> Coordinator::take_message(
    TimePoint now, std::span<const std::uint32_t> outstanding) {
  State& s = *state_;
  HORA_CHECK(outstanding.size() >= kLanes, "a count for each lane");
  if (s.stopped) return std::nullopt;
  s.outgoing.responses.clear();
  s.outgoing.notice.clear();
  s.body_bytes = 0;
  s.forgot = false;
  s.inspect(now);
  if (s.stop) {
    s.outgoing.stop = std::move(s.stop);
    s.stopped = true;
  } else {
    s.answer_instant();
    s.answer_allreduces(now, outstanding);
    s.answer_set_changes();
    s.answer_join();
  }
  if (s.outgoing.empty()) return std::nullopt;
  s.cache.end_message();
  return encode(s.outgoing);
}

/// Errors, and collectives that nothing is gained by holding.
void Coordinator::State::answer_instant() {
  std::size_t done = 0;
  while (done < instant.size() && within_budget()) {
    const PendingId id = instant[done++];
    const Pending& entry = table.at(id);
    if (entry.error) {
      answer_error(id, *entry.error);
      continue;
    }
    if (is_carried(entry)) {
      answer_carried(id);
      continue;
    }
    std::uint64_t bytes = entry.bytes;
    if (!entry.first_dims.empty()) bytes = byte_count(restored(*entry.request, entry.first_dims));
    answer({&instant[done - 1], 1}, lane_of(bytes, options));
  }
  instant.erase(instant.begin(), instant.begin() + static_cast<std::ptrdiff_t>(done));
}

/// The result itself: no lane has room to make for it.
void Coordinator::State::answer_carried(PendingId id) {
  Pending& entry = table.at(id);
  std::vector<std::byte> result = entry.inputs.reduce(*entry.request);
  body_bytes += kVarintBytes + result.size();
  answer({&id, 1}, kSmallLane);
  outgoing.responses.back().result = std::move(result);
}

/// Index in `ready` of the first tensor that is not released.
std::size_t Coordinator::State::first_held() const {
  const auto held = std::partition_point(ready.begin(), ready.end(), [&](PendingId id) {
    return table.at(id).ready_ordinal <= released;
  });
  return static_cast<std::size_t>(held - ready.begin());
}

void Coordinator::State::answer_allreduces(TimePoint now, Outstanding outstanding) {
  if (ready.empty()) return;
  const std::size_t held = first_held();
  if (held < ready.size() && now >= table.at(ready[held]).ready_at + options.hold) {
    released = completions;
  }
  if (table.at(ready.front()).ready_ordinal > released && ready_bytes < planner.full_bytes())
    return;
  std::array<std::uint32_t, kLanes> room{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    room[lane] = options.outstanding_limit - std::min(outstanding[lane], options.outstanding_limit);
  }
  if (room[kBulkLane] == 0 && room[kSmallLane] == 0) return;

  items.clear();
  for (const PendingId id : ready)
    items.push_back({table.at(id).request.get(), table.at(id).bytes});
  bool any = false;
  for (const FusedBuffer& buffer : planner.plan(items)) {
    // Items are in the order of readiness: if any is released, the first one is.
    const bool go = buffer.full || table.at(ready[buffer.items.front()]).ready_ordinal <= released;
    const std::uint16_t lane = lane_of(buffer.bytes, options);
    if (!go || room[lane] == 0 || !within_budget()) continue;
    --room[lane];
    any = true;
    ready_bytes -= buffer.bytes;
    chosen.clear();
    for (const std::uint32_t item : buffer.items) {
      chosen.push_back(std::exchange(ready[item], kNoPending));
    }
    answer(chosen, lane);
  }
  if (any) std::erase(ready, kNoPending);
}

/// Writes one response for these tensors, and forgets them. Known ones come first, by slot.
void Coordinator::State::answer(std::span<PendingId> tensors, std::uint16_t lane) {
  WireResponse& response = outgoing.responses.emplace_back();
  response.lane = static_cast<std::uint8_t>(lane);
  for (const PendingId id : tensors) {
    Pending& entry = table.at(id);
    entry.slot = slot_of(entry);
    if (entry.slot != kNoSlot) response.slots.push_back(entry.slot);
  }
  std::sort(response.slots.begin(), response.slots.end());
  for (const Slot slot : response.slots)
    cache.touch(slot);
  for (const PendingId id : tensors) {
    const Pending& entry = table.at(id);
    if (entry.slot == kNoSlot) {
      add_new(id, response);
    } else if (!entry.first_dims.empty()) {  // alone in its response
      response.first_dims = dims_of_set(entry);
      body_bytes += kVarintBytes * response.first_dims.size();
    }
    table.remove(id);
  }
}

void Coordinator::State::add_new(PendingId id, WireResponse& response) {
  const Pending& entry = table.at(id);
  if (!std::exchange(forgot, true)) {  // the slow path: once per message is often enough
    std::uint64_t floor = cache.position();
    for (const RankState& rank : ranks)
      floor = std::min(floor, rank.seen);
    cache.forget_below(floor);
  }
  NewTensor& added = response.tensors.emplace_back();
  added.request = entry.request;
  added.slot = cache.put(entry.request);
  added.first_dims = dims_of_set(entry);
  body_bytes += kRequestOverhead + entry.request->name.size() + entry.request->group.size() +
                entry.request->codec.size() +
                8 * (entry.request->shape.size() + added.first_dims.size());
}

/// The first dimensions of the set's ranks, by place in it.
std::vector<std::int64_t> Coordinator::State::dims_of_set(const Pending& entry) const {
  std::vector<std::int64_t> first_dims;
  const std::size_t own = own_dims(entry.request->kind, entry.set->size());
  if (own == 0) return first_dims;
  for (const std::int32_t rank : entry.set->ranks) {
    const auto dims =
        std::span(entry.first_dims).subspan(static_cast<std::size_t>(rank) * own, own);
    first_dims.insert(first_dims.end(), dims.begin(), dims.end());
  }
  return first_dims;
}

/// Where the cache has exactly this tensor now.
Slot Coordinator::State::slot_of(const Pending& entry) const {
  if (entry.slot != kNoSlot && cache.at(entry.slot) == entry.request) return entry.slot;
  return cache.find(*entry.request);
}

/// Why a tensor that is complete cannot be run, or nothing.
std::optional<Error> Coordinator::State::fault_of(PendingId id) const {
  const Pending& entry = table.at(id);
  if (!entry.others.empty()) return find_disagreement(table.requests_of(id));
  if (table.joins() > 0) {
    const auto absent = table.absent_of(id);
    if (!absent.empty()) {
      if (auto error = find_join_fault(*entry.request, absent)) return error;
    }
  }
  return find_fault(*entry.request, *entry.set);
}

void Coordinator::State::answer_error(PendingId id, const Error& error) {
  WireResponse& response = outgoing.responses.emplace_back();
  response.lane = kSmallLane;
  response.error = error.message;
  response.error_kind = error.kind;
  response.tensors.push_back({table.at(id).request, kNoSlot, {}});
  body_bytes += kRequestOverhead + response.error.size() + table.at(id).request->name.size() +
                table.at(id).request->group.size() + table.at(id).request->refusal.size();
  table.remove(id);
}

}  // namespace hora
