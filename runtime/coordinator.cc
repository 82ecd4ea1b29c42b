// The root's side of negotiation: hears all ranks, decides for all.
//
// The life of a tensor here:
//
//   waiting     in the PendingTable, not all ranks have submitted it; StallInspector watches
//   ready       all have. If they disagree, it is answered with an error. Allgathers, broadcasts
//               and barriers are answered at once; allreduces may be *held*, so that they are
//               fused with what comes
//   released    somebody waits for it, it was held for `hold`, or fills a buffer: answered as soon
//               as its lane has less than `outstanding_limit` buffers in flight
//   answered    a part of a RootMessage; forgotten here, remembered by the cache
//
// Held tensors are in the order in which they became ready, so "released" is a mark in that order:
// all up to it are released. A flush of rank r releases what is ready, and whatever becomes ready
// later of what r had submitted before its flush, which is what r waits for.
#include <algorithm>
#include <array>
#include <utility>

#include "runtime/agreement.h"
#include "runtime/base/check.h"
#include "runtime/fusion.h"
#include "runtime/negotiation.h"
#include "runtime/pending_table.h"
#include "runtime/stall.h"
#include "runtime/wire.h"

namespace hora {

struct Coordinator::State {
  explicit State(const NegotiationOptions& given)
      : options(given),
        table(given.size),
        cache(given.cache_capacity),
        planner(given),
        stall(given),
        ranks(static_cast<std::size_t>(given.size)) {}

  struct RankState {
    std::uint64_t seen = 0;
    std::uint64_t flushed = 0;  // ordinal: a flush covers the submissions up to it
  };
  using Outstanding = std::span<const std::uint32_t>;

  Result<void> take_hits(Rank from, TimePoint now);
  Result<void> take_requests(Rank from, TimePoint now);
  Result<void> arrive(Rank from, const Arrival& arrival, TimePoint now);
  void on_complete(PendingId id, TimePoint now);
  void on_flush(Rank from);
  void on_farewell(Rank from, const std::string& last_words);

  void answer_instant();
  void answer_allreduces(TimePoint now, Outstanding outstanding);
  void answer(std::span<PendingId> tensors, std::uint16_t lane);
  void answer_error(PendingId id);
  void add_new(PendingId id, WireResponse& response);
  Slot slot_of(const Pending& entry) const;
  bool within_budget() const { return body_bytes < kMessageBudget; }

  std::size_t first_held() const;
  void inspect(TimePoint now);
  std::optional<TimePoint> oldest_since() const;

  NegotiationOptions options;
  PendingTable table;
  RootCache cache;
  FusionPlanner planner;
  StallInspector stall;
  std::vector<RankState> ranks;
  std::optional<Error> stop;
  bool stopped = false;

  std::vector<PendingId> instant;  // ready: errors, and what does not fuse
  std::vector<PendingId> ready;    // ready allreduces, by ready_ordinal
  std::uint64_t ready_bytes = 0;   // of `ready`
  std::uint64_t completions = 0;
  std::uint64_t released = 0;  // ready_ordinal: all up to it

  WorkerMessage incoming;
  RootMessage outgoing;
  std::size_t body_bytes = 0;     // of outgoing, estimated
  std::vector<FusionItem> items;  // reused by answer_allreduces
  std::vector<PendingId> chosen;
};

Coordinator::Coordinator(const NegotiationOptions& options)
    : state_(std::make_unique<State>(options)) {
  HORA_CHECK(options.size >= 1, "a job has ranks");
}

Coordinator::~Coordinator() = default;

// ---- messages of ranks

Result<void> Coordinator::on_message(Rank from, std::span<const std::byte> message, TimePoint now) {
  State& s = *state_;
  HORA_CHECK(from.value >= 0 && from.value < s.options.size, "messages come from ranks");
  HORA_TRY(decode(message, s.incoming));
  State::RankState& rank = s.ranks[index_of(from)];
  if (s.incoming.seen < rank.seen || s.incoming.seen > s.cache.position()) {
    return fail(ErrorKind::protocol, "negotiation: rank " + std::to_string(from.value) +
                                         " has seen messages that were not sent");
  }
  rank.seen = s.incoming.seen;
  HORA_TRY(s.take_hits(from, now));
  HORA_TRY(s.take_requests(from, now));
  if (s.incoming.flush) s.on_flush(from);
  if (s.incoming.last_words) s.on_farewell(from, *s.incoming.last_words);
  return {};
}

Result<void> Coordinator::State::take_hits(Rank from, TimePoint now) {
  std::size_t dims_used = 0;
  for (const Slot slot : incoming.hits) {
    Arrival arrival{cache.at(slot, incoming.seen), 0, slot};
    if (!arrival.request) {
      return fail(ErrorKind::protocol, "negotiation: rank " + std::to_string(from.value) +
                                           " names slot " + std::to_string(slot) +
                                           ", which was empty");
    }
    if (arrival.request->kind == Kind::allgather) {
      if (dims_used == incoming.first_dims.size() ||
          !first_dim_fits(*arrival.request, incoming.first_dims[dims_used])) {
        return fail(ErrorKind::protocol, "negotiation: bad first dimension of an allgather");
      }
      arrival.first_dim = incoming.first_dims[dims_used++];
    }
    HORA_TRY(arrive(from, arrival, now));
  }
  if (dims_used != incoming.first_dims.size()) {
    return fail(ErrorKind::protocol, "negotiation: first dimensions of no allgather");
  }
  return {};
}

Result<void> Coordinator::State::take_requests(Rank from, TimePoint now) {
  for (Request& request : incoming.requests) {
    Arrival arrival;
    const bool gathers = request.kind == Kind::allgather && !request.shape.empty();
    if (gathers) arrival.first_dim = request.shape[0];
    arrival.request = std::make_shared<const Request>(canonical(std::move(request)));
    HORA_TRY(arrive(from, arrival, now));
  }
  return {};
}

Result<void> Coordinator::State::arrive(Rank from, const Arrival& arrival, TimePoint now) {
  const auto id = table.add(from, arrival, now);
  if (!id) return fail(id.error());
  stall.on_submission(from, arrival.request, now);
  if (table.at(*id).count == static_cast<std::uint32_t>(options.size)) on_complete(*id, now);
  return {};
}

void Coordinator::State::on_complete(PendingId id, TimePoint now) {
  Pending& entry = table.at(id);
  entry.ready_at = now;
  const bool fails = !entry.others.empty() || find_fault(*entry.request, options.size);
  if (fails || entry.request->kind != Kind::allreduce) {
    instant.push_back(id);
    return;
  }
  entry.ready_ordinal = ++completions;
  ready.push_back(id);
  ready_bytes += entry.bytes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (entry.ordinals[rank] <= ranks[rank].flushed) released = entry.ready_ordinal;
  }
}

void Coordinator::State::on_flush(Rank from) {
  ranks[index_of(from)].flushed = table.newest(from);
  released = completions;
}

void Coordinator::State::on_farewell(Rank from, const std::string& last_words) {
  if (stop || stopped) return;
  const std::string rank = "rank " + std::to_string(from.value);
  stop =
      Error{ErrorKind::shutdown,
            "Hora has been shut down. This was caused by an exception on one of the ranks or an "
            "attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished "
            "execution. (" +
                rank + " left" +
                (last_words.empty() ? std::string() : ": " + printable(last_words)) + ")",
            from};
}

void Coordinator::on_evidence(Rank rank, const std::string& text) {
  state_->stall.on_evidence(rank, text);
}

// ---- messages to all ranks

std::optional<std::vector<std::byte>> Coordinator::take_message(
    TimePoint now, std::span<const std::uint32_t> outstanding) {
  State& s = *state_;
  HORA_CHECK(outstanding.size() >= kLanes, "a count for each lane");
  if (s.stopped) return std::nullopt;
  s.outgoing.responses.clear();
  s.outgoing.notice.clear();
  s.body_bytes = 0;
  s.inspect(now);
  if (s.stop) {
    s.outgoing.stop = std::move(s.stop);
    s.stopped = true;
  } else {
    s.answer_instant();
    s.answer_allreduces(now, outstanding);
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
    if (!entry.others.empty() || find_fault(*entry.request, options.size)) {
      answer_error(id);
      continue;
    }
    std::uint64_t bytes = entry.bytes;
    if (entry.request->kind == Kind::allgather) {
      Request gathered = *entry.request;
      gathered.shape[0] = 0;
      for (const std::int64_t first_dim : entry.first_dims)
        gathered.shape[0] += first_dim;
      bytes = byte_count(gathered);
    }
    answer({&instant[done - 1], 1}, lane_of(bytes, options));
  }
  instant.erase(instant.begin(), instant.begin() + static_cast<std::ptrdiff_t>(done));
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
    } else if (entry.request->kind == Kind::allgather) {  // alone in its response
      response.first_dims = entry.first_dims;
    }
    table.remove(id);
  }
}

void Coordinator::State::add_new(PendingId id, WireResponse& response) {
  const Pending& entry = table.at(id);
  if (body_bytes == 0) {  // the slow path: once per message is often enough
    std::uint64_t floor = cache.position();
    for (const RankState& rank : ranks)
      floor = std::min(floor, rank.seen);
    cache.forget_below(floor);
  }
  NewTensor& added = response.tensors.emplace_back();
  added.request = entry.request;
  added.slot = cache.put(entry.request);
  added.first_dims = entry.first_dims;
  body_bytes += kRequestOverhead + entry.request->name.size() +
                8 * (entry.request->shape.size() + entry.first_dims.size());
}

/// Where the cache has exactly this tensor now.
Slot Coordinator::State::slot_of(const Pending& entry) const {
  if (entry.slot != kNoSlot && cache.at(entry.slot) == entry.request) return entry.slot;
  return cache.find(*entry.request);
}

void Coordinator::State::answer_error(PendingId id) {
  auto error = find_disagreement(table.requests_of(id));
  if (!error) error = find_fault(*table.at(id).request, options.size);
  HORA_CHECK(error.has_value(), "a tensor that fails has a reason");
  WireResponse& response = outgoing.responses.emplace_back();
  response.lane = kSmallLane;
  response.error = std::move(error->message);
  response.error_kind = error->kind;
  response.tensors.push_back({table.at(id).request, kNoSlot, {}});
  body_bytes += kRequestOverhead + response.error.size() + table.at(id).request->name.size();
  table.remove(id);
}

// ---- time

std::optional<TimePoint> Coordinator::State::oldest_since() const {
  if (table.oldest() == kNoPending) return std::nullopt;
  return table.at(table.oldest()).since;
}

void Coordinator::State::inspect(TimePoint now) {
  const auto due = stall.next_deadline(oldest_since());
  if (!due || now < *due) return;
  std::vector<WaitingTensor> waiting;
  for (PendingId id = table.oldest(); id != kNoPending; id = table.at(id).newer) {
    waiting.push_back({table.at(id).request, table.at(id).since, table.ranks_of(id)});
  }
  auto finding = stall.inspect(now, waiting);
  outgoing.notice = std::move(finding.notice);
  if (finding.stop && !stop) stop = std::move(finding.stop);
}

std::optional<TimePoint> Coordinator::next_deadline() const {
  const State& s = *state_;
  if (s.stopped) return std::nullopt;
  auto next = s.stall.next_deadline(s.oldest_since());
  const std::size_t held = s.first_held();
  if (held < s.ready.size()) {
    const TimePoint release = s.table.at(s.ready[held]).ready_at + s.options.hold;
    next = next ? std::min(*next, release) : release;
  }
  return next;
}

std::uint32_t Coordinator::missing_ranks() const {
  const State& s = *state_;
  // A held tensor is released by one message, a flush; and a long list is not worth the walk.
  constexpr int kMostLookedAt = 8;
  if (!s.ready.empty()) return 1;
  std::uint32_t fewest = 0;
  int looked_at = 0;
  for (PendingId id = s.table.oldest(); id != kNoPending; id = s.table.at(id).newer) {
    if (++looked_at > kMostLookedAt) return 1;
    const std::uint32_t missing = static_cast<std::uint32_t>(s.options.size) - s.table.at(id).count;
    fewest = fewest == 0 ? missing : std::min(fewest, missing);
  }
  return fewest;
}

std::vector<std::pair<std::string, std::vector<Rank>>> Coordinator::waiting() const {
  const State& s = *state_;
  std::vector<std::pair<std::string, std::vector<Rank>>> tensors;
  for (PendingId id = s.table.oldest(); id != kNoPending; id = s.table.at(id).newer) {
    auto& [name, ranks] = tensors.emplace_back();
    name = s.table.at(id).request->name;
    for (const std::int32_t rank : s.table.ranks_of(id))
      ranks.push_back(Rank{rank});
  }
  return tensors;
}

}  // namespace hora
