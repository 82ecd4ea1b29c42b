// EngineWorld: the engines of all ranks of a small world, stepped by one thread.
//
// Every rank has its own arena, session and engine; the links are a LoopbackHub's, with a plan of
// faults. No threads, no clock: the test says who steps next and what time it is, so a seed gives
// every interleaving again.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "ops/transport/loopback.h"
#include "runtime/engine.h"

namespace hora::test {

/// Slots so small that a few kilobytes are several segments.
inline LaneLayout tiny_layout() {
  return {.lanes = kLanes, .window = 4, .slot_bytes = 4096, .tags = 16};
}

struct EngineWorldOptions {
  int size = 4;
  FaultPlan faults{};
  Config config{};
};

/// What a Runtime would own, without threads. Destroyed from below: the engine first.
struct EngineParts {
  std::unique_ptr<Arena> arena;
  std::unique_ptr<WaitPoint> wait_point;
  std::unique_ptr<Session> session;
  Timeline timeline;
  std::unique_ptr<Engine> engine;
};

class EngineWorld {
 public:
  explicit EngineWorld(EngineWorldOptions options) : options_(std::move(options)) {
    options_.config.log_level = "off";
    hub_ = LoopbackHub::make(options_.size, options_.faults);
    World world;
    world.epoch = Epoch(1);
    for (int rank = 0; rank < options_.size; ++rank) {
      Member member;
      member.worker = make_worker_id();
      member.pid = 100 + rank;
      member.host_name = "node";
      world.members.push_back(std::move(member));
    }
    for (int rank = 0; rank < options_.size; ++rank) {
      world.self = Rank(rank);
      ranks_.push_back(open_rank(world));
    }
  }

  Engine& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]->engine; }
  [[nodiscard]] int size() const { return options_.size; }
  LoopbackHub& hub() { return *hub_; }

  /// Posts a tensor; the caller is said to wait, so that nothing is held.
  Result<Handle> post(int rank, Request request, const void* input, void* output) {
    return (*this)[rank].post({std::move(request), input, output, true});
  }

  /// One step of a rank that is still there.
  bool step(int rank) { return present(rank) && (*this)[rank].step(now_); }

  /// Steps ranks in random order until nothing moves for a while.
  void run(std::mt19937& random) {
    std::uniform_int_distribution<int> pick(0, size() - 1);
    int quiet = 0;
    while (quiet < 12 * size())
      quiet = step(pick(random)) ? 0 : quiet + 1;
  }

  void advance(Duration duration) { now_ += duration; }

  /// A rank destroys its engine and session: its links say goodbye.
  void leave(int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); }
  [[nodiscard]] bool present(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)] != nullptr;
  }

 private:
  std::unique_ptr<EngineParts> open_rank(const World& world) {
    auto parts = std::make_unique<EngineParts>();
    auto arena = Arena::make(1 << 20, world.me().worker, false);
    REQUIRE(arena);
    parts->arena = std::move(*arena);
    auto wait_point = WaitPoint::make(parts->arena->doorbell());
    REQUIRE(wait_point);
    parts->wait_point = std::move(*wait_point);

    parts->session = std::make_unique<Session>();
    Session& session = *parts->session;
    session.world = world;
    session.layout = tiny_layout();
    auto area = parts->arena->reserve(session.layout.area_bytes(), "slots");
    REQUIRE(area);
    session.area_offset = *area;
    auto end = hub_->open(world.self, *parts->arena, *area, session.layout, world.epoch,
                          *parts->wait_point);
    session.links = std::move(end.links);
    if (size() > 1) session.transports.push_back(std::move(end.transport));
    parts->engine = std::make_unique<Engine>(options_.config, session, *parts->arena,
                                             Log(LogLevel::off, ""), parts->timeline);
    return parts;
  }

  EngineWorldOptions options_;
  std::shared_ptr<LoopbackHub> hub_;
  std::vector<std::unique_ptr<EngineParts>> ranks_;
  TimePoint now_ = TimePoint{} + 3600s;
};

}  // namespace hora::test
