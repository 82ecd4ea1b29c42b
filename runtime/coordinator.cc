// The root's side of negotiation: hears all ranks, decides for all.
//
// The life of a tensor here:
//
//   waiting     in the PendingTable, not all ranks of its process set have submitted it;
//               StallInspector watches
//   ready       all have, or have joined; and so it is with all of its group, if it has one. If
//               they disagree, it is answered with an error. What does not fuse, or was carried by
//               all, is answered at once; other allreduces may be *held*, so that they are fused
//               with what comes
//   released    somebody waits for it, it was held for `hold`, or fills a buffer: answered as soon
//               as its lane has less than `outstanding_limit` buffers in flight
//   answered    a part of a RootMessage; forgotten here, remembered by the cache
//
// Held tensors are in the order in which they became ready, so "released" is a mark in that order:
// all up to it are released. A flush of rank r releases what is ready, and whatever becomes ready
// later of what r had submitted before its flush, which is what r waits for.
#include <algorithm>
#include <utility>

#include "runtime/agreement.h"
#include "runtime/base/check.h"
#include "runtime/coordinator_state.h"

namespace hora {

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

/// How many ranks are to submit it; 0 if there is no such set.
int Coordinator::State::size_of_set(const Request& request) const {
  const SharedSet& set = sets.find(members_of(request));
  return set ? set->size() : 0;
}

Result<void> Coordinator::State::take_hits(Rank from, TimePoint now) {
  std::span<const std::int64_t> first_dims = incoming.first_dims;
  std::span<const std::byte> inputs = incoming.inputs;
  for (const Slot slot : incoming.hits) {
    Arrival arrival{cache.at(slot, incoming.seen), {}, slot, {}};
    if (!arrival.request) {
      return fail(ErrorKind::protocol, "negotiation: rank " + std::to_string(from.value) +
                                           " names slot " + std::to_string(slot) +
                                           ", which was empty");
    }
    const std::size_t own = own_dims(arrival.request->kind, size_of_set(*arrival.request));
    if (own > first_dims.size() || !first_dims_fit(*arrival.request, first_dims.first(own))) {
      return fail(ErrorKind::protocol, "negotiation: bad first dimensions of a known tensor");
    }
    arrival.first_dims = first_dims.first(own);
    first_dims = first_dims.subspan(own);
    if (!incoming.inputs.empty()) {
      const std::size_t bytes = carriable_bytes(*arrival.request);
      if (bytes > inputs.size())
        return fail(ErrorKind::protocol, "negotiation: inputs are missing");
      arrival.input = inputs.first(bytes);
      inputs = inputs.subspan(bytes);
    }
    HORA_TRY(arrive(from, arrival, now));
  }
  if (!inputs.empty()) return fail(ErrorKind::protocol, "negotiation: inputs of no known tensor");
  if (!first_dims.empty()) {
    return fail(ErrorKind::protocol, "negotiation: first dimensions of no known tensor");
  }
  return {};
}

Result<void> Coordinator::State::take_requests(Rank from, TimePoint now) {
  for (Request& request : incoming.requests) {
    const std::vector<std::int64_t> first_dims = first_dims_of(request);
    if (first_dims.size() != own_dims(request.kind, size_of_set(request))) {
      return fail(ErrorKind::protocol, "negotiation: rank " + std::to_string(from.value) +
                                           " splits a tensor for another number of ranks");
    }
    Arrival arrival{nullptr, first_dims, kNoSlot, {}};
    arrival.request = std::make_shared<const Request>(canonical(std::move(request)));
    if (arrival.request->kind == Kind::join) {
      HORA_TRY(on_join(from, arrival.request, now));
    } else {
      HORA_TRY(arrive(from, arrival, now));
    }
  }
  return {};
}

Result<void> Coordinator::State::arrive(Rank from, const Arrival& arrival, TimePoint now) {
  const SharedSet& set = sets.find(members_of(*arrival.request));
  if (!set || !set->includes(from)) {
    return fail(ErrorKind::protocol, "negotiation: rank " + std::to_string(from.value) +
                                         " submitted " +
                                         tensor_text(arrival.request->name, arrival.request->set) +
                                         ", of which it is no member");
  }
  const auto id = table.add(from, arrival, set, now);
  if (!id) return fail(id.error());
  stall.on_submission(from, arrival.request, now);
  if (table.at(*id).missing == 0) on_complete(*id, now);
  return {};
}

void Coordinator::State::on_complete(PendingId id, TimePoint now) {
  const Request& request = *table.at(id).request;
  if (!is_collective(request.kind)) {
    table.at(id).ready_at = now;
    set_changes.push_back(id);
    released = completions;  // A set is not removed before its tensors are answered.
    return;
  }
  table.at(id).error = fault_of(id);
  if (table.at(id).error) return on_failed(id, now);
  if (request.group.empty()) return make_ready(id, now);
  release(groups.add(group_key(request), request.group_size, id), now);
}

/// Answers it, and fails every group that some rank named for it.
void Coordinator::State::on_failed(PendingId id, TimePoint now) {
  const Pending& entry = table.at(id);
  std::vector<SharedRequest> named;
  const auto add = [&](const SharedRequest& request) {
    const bool is_new = std::none_of(named.begin(), named.end(), [&](const SharedRequest& known) {
      return known->group == request->group;
    });
    if (!request->group.empty() && is_new) named.push_back(request);
  };
  add(entry.request);
  for (const auto& [rank, other] : entry.others)
    add(other);
  for (const SharedRequest& request : named)
    release(groups.fail(group_key(*request), request->group_size, *entry.error), now);
  make_ready(id, now);
}

void Coordinator::State::release(const GroupTable::Released& members, TimePoint now) {
  for (const PendingId id : members.members) {
    table.at(id).error = members.error;
    make_ready(id, now);
  }
}

void Coordinator::State::make_ready(PendingId id, TimePoint now) {
  Pending& entry = table.at(id);
  entry.ready_at = now;
  if (entry.error || entry.request->kind != Kind::allreduce || is_carried(entry)) {
    instant.push_back(id);
    return;
  }
  entry.ready_ordinal = ++completions;
  ready.push_back(id);
  ready_bytes += entry.bytes;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::uint64_t ordinal = entry.ordinals[rank];
    if (ordinal != 0 && ordinal <= ranks[rank].flushed) released = entry.ready_ordinal;
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
    waiting.push_back(
        {table.at(id).request, table.at(id).since, table.ranks_of(id), table.missing_of(id)});
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
  if (!s.ready.empty() || s.table.joins() > 0) return 1;
  // The ranks of a set without the root can make a tensor ready of which it has heard nothing.
  if (s.sets.any_without(Rank(0))) return 1;
  std::uint32_t fewest = 0;
  int looked_at = 0;
  for (PendingId id = s.table.oldest(); id != kNoPending; id = s.table.at(id).newer) {
    if (++looked_at > kMostLookedAt) return 1;
    const std::uint32_t missing = s.table.at(id).missing;
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
