// RepairSet: executors of a small world, one of which dies at a task, and those of the next World.
//
// One thread steps everything, so a seed gives every interleaving again. A death is an exception
// that leaves the victim's executor in the middle of a task: it is never stepped again, while its
// arena stays mapped by its peers, as that of a dead process does. Then the others are frozen and
// taken apart, one by one, with steps of all in between, plan_resolution says what to do, and new
// executors go on over new links. Copies travel in the test's hands, in any order. What must hold
// meanwhile is demanded (violation.h).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "elastic/resolution.h"
#include "ops/algorithms/algorithms.h"
#include "ops/executor.h"
#include "ops/topology.h"
#include "ops/transport/loopback.h"
#include "ops/transport/shm.h"
#include "runtime/base/arena.h"
#include "tests/support/violation.h"

namespace hora::test {

/// What the victim throws instead of killing the test.
struct Died {};

/// A collective of the lane, on all ranks.
struct RepairCall {
  const AlgorithmRow* row = nullptr;
  int root = 0;  ///< First rank.
  std::uint16_t lane = 0;
  std::uint64_t segment_bytes = 0;
};

/// One rank: what a Runtime would own, and what outlives its Worlds.
struct RepairRank {
  std::unique_ptr<Arena> arena;
  std::unique_ptr<WaitPoint> wait_point;
  WorkerId worker{};
  std::size_t area_offset = 0;
  bool alive = true;
  std::optional<std::uint64_t> finished_at_freeze;  // Segments.
  // Of the World:
  std::vector<std::unique_ptr<Transport>> transports;  // Destroyed after the links.
  std::vector<std::unique_ptr<Link>> links;
  std::unique_ptr<Executor> executor;
  std::vector<LaneRemains> remains;
  std::vector<std::shared_ptr<CollectiveRun>> finished;  // By executors that are gone.
  // Of all Worlds: runs point to templates.
  std::vector<std::unique_ptr<Schedule>> schedules;
};

struct RepairSetOptions {
  std::string transport = "loopback";  ///< Or "shm", or "two hosts": loopback with two levels.
  int size = 4;
  LaneLayout layout{.lanes = 2, .window = 4, .slot_bytes = 8 << 10, .tags = 16};
};

class RepairSet {
 public:
  explicit RepairSet(const RepairSetOptions& options) : options_(options) {
    for (int rank = 0; rank < options.size; ++rank) {
      open_rank();
      members_.push_back(rank);
    }
    connect();
    for (const int rank : members_)
      make_executor(rank, std::vector<LaneStart>(options.layout.lanes));
  }

  RepairRank& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  /// Members of the newest World by the ranks they began with.
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] bool views_only() const { return options_.transport == "shm"; }

  /// The victim dies right before or after its task of that number.
  void die_at(int rank, std::uint64_t task, bool before) {
    fault_rank_ = rank;
    fault_.kill_before = before ? std::optional(task) : std::nullopt;
    fault_.kill_after = before ? std::nullopt : std::optional(task);
    fault_.die = [] { throw Died{}; };
    make_executor(rank, std::vector<LaneStart>(options_.layout.lanes));
  }

  /// The victim dies when it is to take its step of that number, from now on.
  void die_soon(int rank, int steps) {
    doomed_ = rank;
    steps_left_ = steps;
  }

  /// Enqueues a collective on one rank; `run` has its memory.
  void enqueue(int rank, RepairCall& call, std::unique_ptr<CollectiveRun> run,
               std::uint64_t wanted) {
    give_template(rank, call, *run);
    if (call.segment_bytes == 0) {
      const std::uint64_t slot = options_.layout.slot_bytes;
      call.segment_bytes =
          run->codec ? fit_encoded_segment(*run->schedule, *run->codec, views_only(), slot, wanted)
                     : fit_segment(*run->schedule, views_only(), slot, wanted);
    }
    run->segment_bytes = call.segment_bytes;
    (*this)[rank].executor->enqueue(call.lane, std::move(run));
  }

  /// One step of a member; it may die of it. True if anything happened.
  bool step(int rank) {
    RepairRank& parts = (*this)[rank];
    if (rank == doomed_ && steps_left_-- == 0) parts.alive = false;
    if (!parts.alive || !parts.executor) return false;
    bool happened = false;
    for (const auto& transport : parts.transports)
      happened = transport->progress() || happened;
    try {
      happened = parts.executor->step(2048) || happened;
    } catch (const Died&) {
      parts.alive = false;
      return true;
    }
    demand(!parts.executor->failure(), "an executor failed");
    demand(!parts.finished_at_freeze ||
               *parts.finished_at_freeze == parts.executor->segments_finished(),
           "a frozen rank finished a segment");
    for (const auto& transport : parts.transports)
      transport->flush();
    return happened;
  }

  /// Steps members in random order until nothing moves, or `most` steps.
  void run(std::mt19937& random, int most = 1 << 30) {
    const int patience = 48 * static_cast<int>(members_.size());
    for (int quiet = 0; quiet < patience && most > 0; --most)
      quiet = step(any_member(random)) ? 0 : quiet + 1;
  }

  /// The same, but at most until a rank is dead: the others are in the middle of things then.
  void run_until_dead(int rank, std::mt19937& random) {
    const int patience = 48 * static_cast<int>(members_.size());
    for (int quiet = 0; quiet < patience && (*this)[rank].alive;)
      quiet = step(any_member(random)) ? 0 : quiet + 1;
  }

  /// What has finished on a rank since the last call.
  std::vector<std::shared_ptr<CollectiveRun>> take_finished(int rank) {
    RepairRank& parts = (*this)[rank];
    auto finished = std::exchange(parts.finished, {});
    if (!parts.executor) return finished;
    for (auto& run : parts.executor->take_finished())
      finished.push_back(std::move(run));
    return finished;
  }

  [[nodiscard]] bool idle() {
    return std::none_of(members_.begin(), members_.end(),
                        [this](int rank) { return (*this)[rank].executor->busy(); });
  }

  /// Prepares a run of a collective for the new World: its memory, template, divisor.
  using Renew = std::function<void(int rank, std::uint64_t ticket, CollectiveRun& run)>;

  /// The survivors become the next World: takes them apart, plans, and lets them go on.
  void repair(std::mt19937& random, const Renew& renew) {
    std::vector<int> order;
    for (const int rank : members_) {
      if ((*this)[rank].alive) order.push_back(rank);
    }
    std::vector<int> next = order;
    std::shuffle(order.begin(), order.end(), random);
    for (const int rank : order) {
      run(random, static_cast<int>(random() % 20));
      RepairRank& parts = (*this)[rank];
      if (!parts.alive) continue;  // It has died meanwhile.
      parts.executor->freeze();
      parts.finished_at_freeze = parts.executor->segments_finished();
    }
    for (const int rank : order) {
      run(random, static_cast<int>(random() % 40));
      RepairRank& parts = (*this)[rank];
      if (!parts.alive) continue;
      parts.finished_at_freeze.reset();
      parts.remains = parts.executor->take_apart();
      parts.finished = take_finished(rank);
      parts.executor.reset();
    }
    std::erase_if(next, [this](int rank) { return !(*this)[rank].alive; });
    make_plans(next);
    for (const int rank : members_) {
      (*this)[rank].links.clear();
      (*this)[rank].transports.clear();
    }
    members_ = next;
    ++epoch_.value;
    connect();
    announce_counts();
    for (std::size_t place = 0; place < members_.size(); ++place)
      go_on(place, renew);
    copy(random);
  }

  /// Plans of the last repair, by lane.
  [[nodiscard]] const std::vector<LanePlan>& plans() const { return plans_; }

  /// Copies handed around so far.
  [[nodiscard]] std::size_t copies() const { return copies_; }

  /// The rank's place in the newest World.
  [[nodiscard]] int place_of(int rank) const {
    return static_cast<int>(std::find(members_.begin(), members_.end(), rank) - members_.begin());
  }

  void give_template(int rank, const RepairCall& call, CollectiveRun& run) {
    const int size = static_cast<int>(members_.size());
    const Topology topology = options_.transport == "two hosts"
                                  ? Topology{{{0, 1}, {2, 3}}}.among(members_)
                              : views_only() ? Topology::one_host(size)
                                             : Topology::separate(size);
    auto& schedules = (*this)[rank].schedules;
    schedules.push_back(std::make_unique<Schedule>(
        run.codec ? call.row->make_encoded(size, place_of(rank))
                  : call.row->make(topology, place_of(rank), place_of(call.root))));
    run.schedule = schedules.back().get();
    run.contributors =
        std::make_shared<const std::vector<std::int32_t>>(members_.begin(), members_.end());
  }

 private:
  int any_member(std::mt19937& random) const { return members_[random() % members_.size()]; }

  void open_rank() {
    RepairRank parts;
    parts.worker = make_worker_id();
    parts.arena = *Arena::make(4 << 20, parts.worker, options_.transport == "shm");
    parts.wait_point = *WaitPoint::make(parts.arena->doorbell());
    parts.area_offset = *parts.arena->reserve(options_.layout.area_bytes(), "slots");
    ranks_.push_back(std::move(parts));
  }

  void connect() { views_only() ? connect_shm() : connect_loopback(); }

  void connect_loopback() {
    const int size = static_cast<int>(members_.size());
    hub_ = LoopbackHub::make(size, {});
    for (int place = 0; place < size; ++place) {
      RepairRank& parts = (*this)[members_[static_cast<std::size_t>(place)]];
      auto end = hub_->open(Rank(place), *parts.arena, parts.area_offset, options_.layout, epoch_,
                            *parts.wait_point);
      parts.transports.push_back(std::move(end.transport));
      parts.links = std::move(end.links);
    }
  }

  void connect_shm() {
    const int size = static_cast<int>(members_.size());
    std::vector<ShmTransport*> transports;
    for (int place = 0; place < size; ++place) {
      RepairRank& parts = (*this)[members_[static_cast<std::size_t>(place)]];
      auto transport =
          *ShmTransport::make(*parts.arena, options_.layout, epoch_, Rank(place), size);
      transports.push_back(transport.get());
      parts.transports.push_back(std::move(transport));
      parts.links.resize(static_cast<std::size_t>(size));
    }
    for (std::size_t a = 0; a < members_.size(); ++a) {
      for (std::size_t b = 0; b < members_.size(); ++b) {
        if (a == b) continue;
        RepairRank& peer = (*this)[members_[b]];
        auto mapped = PeerArena::map(Fd(::dup(peer.arena->fd())), peer.worker);
        demand(mapped.has_value(), "an arena cannot be mapped");
        (*this)[members_[a]].links[b] =
            transports[a]->connect(Rank(static_cast<int>(b)), std::move(*mapped),
                                   transports[b]->offer(), Fd(::dup(peer.wait_point->eventfd())));
      }
    }
  }

  void make_executor(int rank, std::vector<LaneStart> starts) {
    RepairRank& parts = (*this)[rank];
    std::vector<Link*> links;
    for (const auto& link : parts.links)
      links.push_back(link.get());
    ExecutorOptions options;
    options.layout = options_.layout;
    options.area_offset = parts.area_offset;
    options.views_only = views_only();
    options.self = Rank(place_of(rank));
    options.epoch = epoch_;
    if (rank == fault_rank_) options.fault = fault_;
    parts.executor =
        std::make_unique<Executor>(*parts.arena, std::move(links), options, std::move(starts));
  }

  [[nodiscard]] static Ending ending_of(const CollectiveRun& run) {
    return run.schedule->shape == Shape::gather ? Ending::whole : Ending::halves;
  }

  void make_plans(const std::vector<int>& next) {
    plans_.clear();
    std::vector<std::int32_t> old_ranks;
    for (const int rank : next)
      old_ranks.push_back(place_of(rank));
    for (std::size_t lane = 0; lane < options_.layout.lanes; ++lane) {
      std::vector<LaneReport> reports;
      for (const int rank : next)
        reports.push_back(report_of((*this)[rank].remains[lane]));
      auto plan = plan_resolution(reports, old_ranks, options_.layout.window);
      demand(plan.has_value(), plan ? std::string() : plan.error().message);
      plans_.push_back(std::move(*plan));
    }
  }

  [[nodiscard]] static LaneReport report_of(const LaneRemains& remains) {
    LaneReport report{remains.done, remains.started, remains.floor, {}};
    for (const PlacedRun& placed : remains.runs) {
      if (placed.first >= std::max(remains.done, remains.started)) break;
      report.collectives.push_back({{placed.first, placed.end()}, ending_of(*placed.run), {}, {}});
    }
    return report;
  }

  /// Before anything can come over the new links, they know what is done here.
  void announce_counts() {
    for (std::size_t place = 0; place < members_.size(); ++place) {
      for (const auto& link : (*this)[members_[place]].links) {
        for (std::uint16_t lane = 0; link && lane < options_.layout.lanes; ++lane)
          link->set_count(lane, plans_[lane].done[place]);
      }
    }
  }

  void go_on(std::size_t place, const Renew& renew) {
    const int rank = members_[place];
    std::vector<LaneStart> starts;
    for (std::size_t lane = 0; lane < plans_.size(); ++lane) {
      starts.push_back(start_of(rank, plans_[lane], plans_[lane].done[place],
                                (*this)[rank].remains[lane], renew));
    }
    make_executor(rank, std::move(starts));
  }

  LaneStart start_of(int rank, const LanePlan& plan, std::uint64_t done, LaneRemains& remains,
                     const Renew& renew) {
    LaneStart start;
    start.done = done;
    start.next = plan.next;
    start.results = std::move(remains.results);
    for (const PlacedRun& placed : remains.runs) {
      const auto resolved = std::find_if(
          plan.collectives.begin(), plan.collectives.end(),
          [&](const Resolved& one) { return one.collective.at.begin == placed.first; });
      if (placed.end() <= done) {
        start.past.push_back(placed);
        continue;
      }
      if (resolved != plan.collectives.end() && resolved->redo.empty()) {
        start.runs.push_back({placed, placed.end()});
        continue;
      }
      // What nobody has touched is negotiated anew; here it is simply run by the survivors.
      renew(rank, placed.run->ticket, *placed.run);
      if (resolved == plan.collectives.end()) {
        start.runs.push_back({placed, placed.first});
        start.next = placed.end();
        continue;
      }
      start.runs.push_back({placed, std::max(placed.first, resolved->redo.begin)});
    }
    return start;
  }

  /// Hands the copies around, while the members go on.
  void copy(std::mt19937& random) {
    struct Parcel {
      int from, to;
      std::uint16_t lane;
      std::uint64_t position;
    };
    std::vector<Parcel> parcels;
    for (std::uint16_t lane = 0; lane < plans_.size(); ++lane) {
      const LanePlan& plan = plans_[lane];
      for (const Resolved& one : plan.collectives) {
        for (std::uint64_t p = one.copy.begin; p < one.copy.end; ++p) {
          for (std::size_t place = 0; place < members_.size(); ++place) {
            if (plan.done[place] > p) continue;
            parcels.push_back({members_[plan.giver(one, p)], members_[place], lane, p});
          }
        }
      }
    }
    std::shuffle(parcels.begin(), parcels.end(), random);
    for (const Parcel& parcel : parcels) {
      run(random, static_cast<int>(random() % 20));
      RepairRank& from = (*this)[parcel.from];
      if (!from.alive || !(*this)[parcel.to].alive) continue;
      const SegmentResult* result = from.executor->inherited(parcel.lane, parcel.position);
      demand(result != nullptr, "who is done with a segment does not hold its result");
      demand((*this)[parcel.to]
                 .executor->accept_copy(parcel.lane, parcel.position, *result)
                 .has_value(),
             "a copy has the wrong length");
      ++copies_;
    }
  }

  const RepairSetOptions options_;
  std::shared_ptr<LoopbackHub> hub_;
  std::vector<RepairRank> ranks_;
  std::vector<int> members_;
  std::vector<LanePlan> plans_;
  Epoch epoch_{1};
  int fault_rank_ = -1, doomed_ = -1;
  int steps_left_ = 0;
  TaskFault fault_;
  std::size_t copies_ = 0;
};

}  // namespace hora::test
