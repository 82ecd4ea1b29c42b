// The Coordinator's inside, shared by its files:
//
//   coordinator.cc          hears the ranks and watches the time
//   coordinator_answers.cc  decides what is answered, and writes it
//   coordinator_sets.cc     changes of process sets, and joins
//
// Nobody else includes it. Owner: the progress token, as of the Coordinator itself.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/fusion.h"
#include "runtime/group_table.h"
#include "runtime/negotiation.h"
#include "runtime/pending_table.h"
#include "runtime/stall.h"
#include "runtime/wire.h"

namespace hora {

struct Coordinator::State {
  explicit State(const NegotiationOptions& given)
      : options(given),
        sets(given.size, given.sets),
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
  Result<void> on_join(Rank from, const SharedRequest& request, TimePoint now);
  void on_complete(PendingId id, TimePoint now);
  void on_failed(PendingId id, TimePoint now);
  void release(const GroupTable::Released& members, TimePoint now);
  void make_ready(PendingId id, TimePoint now);
  void on_flush(Rank from);
  void on_farewell(Rank from, const std::string& last_words);

  void answer_instant();
  void answer_allreduces(TimePoint now, Outstanding outstanding);
  void answer_set_changes();
  void answer_join();
  void answer(std::span<PendingId> tensors, std::uint16_t lane);
  void answer_carried(PendingId id);
  void answer_error(PendingId id, const Error& error);
  void add_new(PendingId id, WireResponse& response);
  void announce(SharedRequest request);
  std::optional<Error> fault_of(PendingId id) const;
  std::vector<std::int64_t> dims_of_set(const Pending& entry) const;
  int size_of_set(const Request& request) const;
  Slot slot_of(const Pending& entry) const;
  /// All ranks of the set have sent their inputs along.
  static bool is_carried(const Pending& entry) { return entry.inputs.count() == entry.set->size(); }
  bool within_budget() const { return body_bytes < kMessageBudget; }

  bool apply_set_change(PendingId id);
  void fail_incomplete(const ProcessSet& removed);
  bool is_due(SetId set) const;
  std::size_t first_held() const;
  void inspect(TimePoint now);
  std::optional<TimePoint> oldest_since() const;

  NegotiationOptions options;
  ProcessSets sets;  // as of what was answered
  PendingTable table;
  GroupTable groups;
  RootCache cache;
  FusionPlanner planner;
  StallInspector stall;
  std::vector<RankState> ranks;
  std::optional<Error> stop;
  bool stopped = false;

  std::vector<PendingId> instant;      // ready: errors, and what does not fuse
  std::vector<PendingId> set_changes;  // ready, in order
  SharedRequest last_join;             // of the rank that joined last
  std::vector<PendingId> ready;        // ready allreduces, by ready_ordinal
  std::uint64_t ready_bytes = 0;       // of `ready`
  std::uint64_t completions = 0;
  std::uint64_t released = 0;  // ready_ordinal: all up to it

  WorkerMessage incoming;
  RootMessage outgoing;
  std::size_t body_bytes = 0;     // of outgoing, estimated, beside its slots
  bool forgot = false;            // outgoing has made the cache forget
  std::vector<FusionItem> items;  // reused by answer_allreduces
  std::vector<PendingId> chosen;
};

}  // namespace hora
