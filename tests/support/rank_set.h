// RankSet: the executors of all ranks of a small world, stepped by one thread.
//
// No threads and no clock: a test steps the ranks in whatever order its seed says, so that every
// interleaving is reproducible. Links are those of the transport under test.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "ops/algorithms/algorithms.h"
#include "ops/executor.h"
#include "ops/topology.h"
#include "ops/transport/loopback.h"
#include "ops/transport/shm.h"
#include "runtime/base/arena.h"

namespace hora::test {

/// One rank: what a Runtime would own, without an engine.
struct RankParts {
  std::unique_ptr<Arena> arena;
  std::unique_ptr<WaitPoint> wait_point;
  std::size_t area_offset = 0;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Link>> links;
  std::unique_ptr<Executor> executor;
  std::vector<std::unique_ptr<Schedule>> schedules;
};

struct RankSetOptions {
  /// "loopback", "shm", or "mixed": hosts of two ranks with shm inside and loopback across.
  std::string transport = "loopback";
  int size = 4;
  LaneLayout layout{.lanes = 2, .window = 4, .slot_bytes = 64 << 10, .tags = 64};
  FaultPlan faults{};
};

class RankSet {
 public:
  explicit RankSet(const RankSetOptions& options) : options_(options), topology_(make_topology()) {
    hub_ = LoopbackHub::make(options.size, options.faults);
    for (int r = 0; r < options.size; ++r)
      open_rank(Rank(r));
    if (options.transport != "loopback") connect_shm();
    for (int r = 0; r < options.size; ++r)
      make_executor(Rank(r));
  }

  RankParts& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int size() const { return options_.size; }
  [[nodiscard]] bool views_only() const { return topology_.is_one_host(); }
  LoopbackHub& hub() { return *hub_; }

  /// Enqueues `run` on a rank with the template of `row`; `wanted` is the wished segment size.
  void enqueue(int rank, const AlgorithmRow& row, int root, std::unique_ptr<CollectiveRun> run,
               std::uint64_t wanted, std::uint16_t lane = 0) {
    RankParts& parts = (*this)[rank];
    parts.schedules.push_back(std::make_unique<Schedule>(
        run->codec ? row.make_encoded(size(), rank) : row.make(topology_, rank, root)));
    run->schedule = parts.schedules.back().get();
    run->segment_bytes =
        run->codec ? fit_encoded_segment(*run->schedule, *run->codec, views_only(),
                                         options_.layout.slot_bytes, wanted)
                   : fit_segment(*run->schedule, views_only(), options_.layout.slot_bytes, wanted);
    parts.executor->enqueue(lane, std::move(run));
  }

  /// Steps one rank once. True if anything happened.
  bool step(int rank, std::size_t budget = 4096) {
    RankParts& parts = (*this)[rank];
    bool happened = false;
    for (const auto& transport : parts.transports)
      happened = transport->progress() || happened;
    happened = parts.executor->step(budget) || happened;
    for (const auto& transport : parts.transports)
      transport->flush();
    return happened;
  }

  /// Steps ranks in random order until nothing moves for a while. True if all are idle.
  bool run(std::mt19937& random) {
    std::uniform_int_distribution<int> pick(0, size() - 1);
    int quiet = 0;
    while (quiet < 64 * size())
      quiet = step(pick(random)) ? 0 : quiet + 1;
    for (int r = 0; r < size(); ++r) {
      if ((*this)[r].executor->busy()) return false;
    }
    return true;
  }

  /// The first failure of an executor or a link of a rank, or nothing.
  std::optional<Error> failure(int rank) {
    RankParts& parts = (*this)[rank];
    if (parts.executor->failure()) return parts.executor->failure();
    for (const auto& link : parts.links) {
      if (link && link->failure()) return link->failure();
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] Topology make_topology() const {
    if (options_.transport == "shm") return Topology::one_host(options_.size);
    if (options_.transport == "loopback") return Topology::separate(options_.size);
    Topology topology;
    for (int r = 0; r < options_.size; ++r) {
      if (r % 2 == 0) topology.hosts.emplace_back();
      topology.hosts.back().push_back(r);
    }
    return topology;
  }

  void open_rank(Rank self) {
    RankParts parts;
    const WorkerId worker = make_worker_id();
    workers_.push_back(worker);
    auto arena = Arena::make(64 << 20, worker, options_.transport != "loopback");
    REQUIRE(arena);
    parts.arena = std::move(*arena);
    auto wait_point = WaitPoint::make(parts.arena->doorbell());
    REQUIRE(wait_point);
    parts.wait_point = std::move(*wait_point);
    auto area = parts.arena->reserve(options_.layout.area_bytes(), "slots");
    REQUIRE(area);
    parts.area_offset = *area;
    if (options_.transport != "shm") {
      auto end = hub_->open(self, *parts.arena, parts.area_offset, options_.layout, Epoch(1),
                            *parts.wait_point);
      parts.transports.push_back(std::move(end.transport));
      parts.links = std::move(end.links);
    }
    ranks_.push_back(std::move(parts));
  }

  void connect_shm() {
    std::vector<ShmTransport*> transports;
    for (int r = 0; r < size(); ++r) {
      auto transport =
          ShmTransport::make(*(*this)[r].arena, options_.layout, Epoch(1), Rank(r), size());
      REQUIRE(transport);
      transports.push_back(transport->get());
      (*this)[r].transports.push_back(std::move(*transport));
      (*this)[r].links.resize(static_cast<std::size_t>(size()));
    }
    for (int r = 0; r < size(); ++r) {
      for (int p = 0; p < size(); ++p) {
        if (p == r || topology_.host_of(p) != topology_.host_of(r)) continue;
        auto mapped = PeerArena::map(Fd(::dup((*this)[p].arena->fd())),
                                     workers_[static_cast<std::size_t>(p)]);
        REQUIRE(mapped);
        (*this)[r].links[static_cast<std::size_t>(p)] =
            transports[static_cast<std::size_t>(r)]->connect(
                Rank(p), std::move(*mapped), transports[static_cast<std::size_t>(p)]->offer(),
                Fd(::dup((*this)[p].wait_point->eventfd())));
      }
    }
  }

  void make_executor(Rank self) {
    RankParts& parts = (*this)[self.value];
    std::vector<Link*> links;
    for (const auto& link : parts.links)
      links.push_back(link.get());
    links.resize(static_cast<std::size_t>(size()));
    ExecutorOptions executor;
    executor.layout = options_.layout;
    executor.area_offset = parts.area_offset;
    executor.views_only = views_only();
    executor.self = self;
    parts.executor = std::make_unique<Executor>(*parts.arena, std::move(links), executor);
  }

  RankSetOptions options_;
  const Topology topology_;
  std::shared_ptr<LoopbackHub> hub_;
  std::vector<WorkerId> workers_;
  std::vector<RankParts> ranks_;
};

}  // namespace hora::test
