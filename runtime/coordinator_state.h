// The Coordinator's inside, shared by its files: coordinator.cc hears and watches the time,
// coordinator_answers.cc decides what is answered and writes it. Nobody else includes it.
// Owner: the progress token, as of the Coordinator itself.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

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
  std::size_t body_bytes = 0;     // of outgoing, estimated, beside its slots
  bool forgot = false;            // outgoing has made the cache forget
  std::vector<FusionItem> items;  // reused by answer_allreduces
  std::vector<PendingId> chosen;
};

}  // namespace hora
