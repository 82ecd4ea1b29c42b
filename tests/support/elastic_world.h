// ElasticWorld: engines that go on without the dead, stepped by one thread.
//
// As EngineWorld, but the ranks have a place where the next World is made: the WorldMaker of the
// product, fed by hand. Each control connection is a queue in order, so an engine hears of the new
// World before it is asked to freeze it; when it hears is up to the seed. A dead rank's engine is
// never stepped again; what it has sent arrives.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "elastic/world_change.h"
#include "ops/transport/loopback.h"
#include "runtime/engine.h"
#include "tests/support/engine_world.h"

namespace hora::test {

class ElasticWorld {
 public:
  ElasticWorld(int size, int min_size) {
    config_.log_level = "off";
    World world;
    world.epoch = Epoch(1);
    world.min_size = min_size;
    for (int rank = 0; rank < size; ++rank) {
      Member member;
      member.worker = make_worker_id();
      member.first_rank = rank;
      member.pid = 100 + rank;
      member.host_name = "node";
      world.members.push_back(std::move(member));
    }
    hub_ = LoopbackHub::make(size, {});
    hub_epoch_ = world.epoch;
    take_world(world);
    for (int rank = 0; rank < size; ++rank) {
      world.self = Rank(rank);
      ranks_.push_back(std::make_unique<Rank_>(*this, world, config_));
    }
  }

  Engine& operator[](int first_rank) { return *ranks_[index(first_rank)]->engine; }
  [[nodiscard]] bool alive(int first_rank) const { return ranks_[index(first_rank)]->alive; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] const World& world() const { return world_; }

  Result<Handle> post(int rank, Request request, const void* input, void* output) {
    return (*this)[rank].post({std::move(request), input, output, true});
  }

  /// It takes no step any more; whoever makes Worlds hears of it.
  void kill(int first_rank) {
    Rank_& victim = *ranks_[index(first_rank)];
    if (!victim.alive) return;
    victim.alive = false;
    const Rank rank = place_of(first_rank);
    perform(maker_->on_lost(rank, world_.describe(rank) + ": killed by signal 9", now_), rank);
  }

  /// A rank reads one piece of news, or takes a step.
  bool step(int first_rank, std::mt19937& random) {
    Rank_& rank = *ranks_[index(first_rank)];
    if (!rank.alive) return false;
    bool happened = false;
    if (!rank.news.empty() && random() % 3 == 0) {
      rank.engine->post_event(std::move(rank.news.front()));
      rank.news.pop_front();
      happened = true;
    }
    now_ += 1ms;
    return rank.engine->step(now_) || happened || !rank.news.empty();
  }

  /// Steps ranks in random order until nothing moves, or `most` steps.
  void run(std::mt19937& random, int most = 1 << 30) {
    for (int quiet = 0; quiet < 40 * size() && most > 0; --most) {
      const int rank = static_cast<int>(random() % ranks_.size());
      quiet = step(rank, random) || busy_building() ? 0 : quiet + 1;
    }
  }

 private:
  struct Rank_ final : Succession {
    Rank_(ElasticWorld& owner, const World& world, const Config& config)
        : in(owner), first_rank(world.me().first_rank) {
      arena = *Arena::make(1 << 20, world.me().worker, false);
      wait_point = *WaitPoint::make(arena->doorbell());
      area = *arena->reserve(tiny_layout().area_bytes(), "slots");
      session = std::move(*make_session(world));
      engine =
          std::make_unique<Engine>(config, session, *arena, Log(LogLevel::off, ""), timeline, this);
    }
    ~Rank_() override {
      engine.reset();
      session.links.clear();
    }

    void frozen(WorkerReport report) override { in.on_report(first_rank, std::move(report)); }
    void suspect(Epoch, Rank about, const std::string& text) override {
      in.perform(in.maker_->on_suspect(in.place_of(first_rank), about, text, in.now_), about);
    }
    void start_session(const World& world) override { wanted = world; }
    Result<std::unique_ptr<Session>> try_session() override {
      // All members come, or none; a dead one comes never.
      if (wanted.epoch != in.world_.epoch || !in.all_wait(wanted.epoch)) return nullptr;
      in.open_hub(wanted);
      return make_session(wanted);
    }

    std::unique_ptr<Session> make_session(const World& world) {
      auto made = std::make_unique<Session>();
      made->world = world;
      made->layout = tiny_layout();
      made->area_offset = area;
      auto end = in.hub_->open(world.self, *arena, area, made->layout, world.epoch, *wait_point);
      made->links = std::move(end.links);
      made->transports.push_back(std::move(end.transport));
      return made;
    }

    ElasticWorld& in;
    const int first_rank;
    bool alive = true;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<WaitPoint> wait_point;
    std::size_t area = 0;
    Session session;
    Timeline timeline;
    std::unique_ptr<Engine> engine;
    std::deque<ControlEvent> news;
    World wanted;
  };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  [[nodiscard]] Rank place_of(int first_rank) const {
    for (int place = 0; place < world_.size(); ++place) {
      if (world_.members[index(place)].first_rank == first_rank) return Rank(place);
    }
    return Rank(-1);
  }

  void take_world(const World& world) {
    world_ = world;
    maker_ = make_sole_world_maker(world, {world.min_size, 3600s});
  }

  void on_report(int first_rank, WorkerReport report) {
    const Rank rank = place_of(first_rank);
    if (rank.value >= 0) perform(maker_->on_report(rank, std::move(report), now_), rank);
  }

  void tell(int first_rank, ControlEvent event) {
    ranks_[index(first_rank)]->news.push_back(std::move(event));
  }

  void perform(const WorldMaker::Actions& actions, Rank lost) {
    for (const ChangeAction& action : actions) {
      if (action.kind == ChangeAction::Kind::freeze) {
        tell(world_.members[index_of(action.rank)].first_rank,
             {ControlEvent::Kind::freeze, std::nullopt, action.text, world_.epoch});
      } else if (action.kind == ChangeAction::Kind::give_up) {
        for (const Member& member : world_.members)
          tell(member.first_rank, {ControlEvent::Kind::peer_lost, lost, action.text});
      } else if (action.kind == ChangeAction::Kind::install) {
        install(*action.next);
        return;
      }
    }
  }

  void install(const NextWorld& next) {
    take_world(next.world);
    for (int place = 0; place < next.world.size(); ++place) {
      auto said = std::make_shared<NextWorld>(next);
      said->world.self = Rank(place);
      tell(next.world.members[index(place)].first_rank,
           {ControlEvent::Kind::next_world, std::nullopt, next.reason, next.world.epoch, said});
    }
    // A death that nobody had heard of when the reports came.
    for (const Member& member : next.world.members) {
      if (ranks_[index(member.first_rank)]->alive) continue;
      const Rank rank = place_of(member.first_rank);
      perform(maker_->on_lost(rank, "killed", now_), rank);
      return;
    }
  }

  [[nodiscard]] bool all_wait(Epoch epoch) const {
    for (const Member& member : world_.members) {
      const Rank_& rank = *ranks_[index(member.first_rank)];
      if (!rank.alive || rank.wanted.epoch != epoch) return false;
    }
    return true;
  }

  void open_hub(const World& world) {
    if (hub_epoch_ == world.epoch) return;
    hub_ = LoopbackHub::make(world.size(), {});
    hub_epoch_ = world.epoch;
  }

  /// Somebody waits for a session that will come.
  [[nodiscard]] bool busy_building() const { return false; }

  Config config_;
  std::shared_ptr<LoopbackHub> hub_;
  Epoch hub_epoch_{};
  World world_;
  std::unique_ptr<WorldMaker> maker_;
  std::vector<std::unique_ptr<Rank_>> ranks_;
  TimePoint now_ = TimePoint{} + 3600s;
};

}  // namespace hora::test
