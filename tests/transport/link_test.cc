// What every link does, whatever carries it.
//
// The same body runs over loopback, tcp and shared memory.
#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "runtime/base/clock.h"
#include "tests/transport/link_world.h"

namespace hora::test {
namespace {

#define HORA_EVERY_MEDIUM() GENERATE(Medium::loopback, Medium::tcp, Medium::shm)

/// Sends `bytes` filled with `seed` from the start of the position's slot.
void send(LinkWorld& world, int from, int to, const MessageKey& key, std::size_t bytes,
          std::uint64_t seed, std::uint64_t landing = 0) {
  const auto payload = world[from].slot(world.layout, key.lane, key.position).first(bytes);
  fill(payload, seed);
  world.link(from, to).send(key, payload, landing);
}

bool arrived(LinkWorld& world, int at, int from, const MessageKey& key) {
  return world.link(at, from).poll(key).has_value();
}

TEST_CASE("link: a message arrives as it was sent, whatever its size") {
  const Medium medium = HORA_EVERY_MEDIUM();
  const std::size_t bytes = GENERATE(0, 1, 63, 16384, 16385, 65536, 131072, 131073, 1 << 20);
  CAPTURE(to_string(medium), bytes);
  LinkWorld world(medium, 2, test_layout());
  const MessageKey key{1, 3, 2};
  CHECK_FALSE(arrived(world, 1, 0, key));
  send(world, 0, 1, key, bytes, 42, 64);
  REQUIRE(world.step_until([&] { return arrived(world, 1, 0, key); }));
  const auto payload = *world.link(1, 0).poll(key);
  CHECK(payload.size() == bytes);
  CHECK(holds(payload, 42));
  if (!world.link(1, 0).shares_memory() && bytes > 0) {
    CHECK(payload.data() == world[1].slot(world.layout, 1, 2).data() + 64);
  }
  CHECK_FALSE(arrived(world, 1, 0, {1, 4, 2}));
  CHECK_FALSE(arrived(world, 1, 0, {1, 3, 3}));
  CHECK_FALSE(arrived(world, 1, 0, {0, 3, 2}));
}

TEST_CASE("link: messages of a position are found by their tags, in any order") {
  const Medium medium = HORA_EVERY_MEDIUM();
  CAPTURE(to_string(medium));
  LinkWorld world(medium, 2, test_layout());
  constexpr std::size_t kBytes = 70'000;
  const auto slot = world[0].slot(world.layout, 0, 0);
  for (std::uint16_t i = 0; i < 8; ++i) {
    const auto tag = static_cast<std::uint16_t>((i * 5 + 3) % 8);
    const auto payload = slot.subspan(tag * kBytes, tag % 2 == 0 ? kBytes : 100);
    fill(payload, tag);
    world.link(0, 1).send({0, tag, 0}, payload, tag * kBytes);
  }
  for (std::uint16_t tag = 0; tag < 8; ++tag) {
    REQUIRE(world.step_until([&] { return arrived(world, 1, 0, {0, tag, 0}); }));
    CHECK(holds(*world.link(1, 0).poll({0, tag, 0}), tag));
  }
}

TEST_CASE("link: a sender may be a whole window ahead of a receiver that has not begun") {
  const Medium medium = HORA_EVERY_MEDIUM();
  CAPTURE(to_string(medium));
  LinkWorld world(medium, 2, test_layout());
  for (std::uint64_t position = 0; position < world.layout.window; ++position) {
    for (std::uint16_t lane = 0; lane < world.layout.lanes; ++lane)
      send(world, 0, 1, {lane, 0, position}, 200'000, position * 2 + lane);
  }
  for (std::uint64_t position = 0; position < world.layout.window; ++position) {
    for (std::uint16_t lane = 0; lane < world.layout.lanes; ++lane) {
      const MessageKey key{lane, 0, position};
      REQUIRE(world.step_until([&] { return arrived(world, 1, 0, key); }));
      CHECK(holds(*world.link(1, 0).poll(key), position * 2 + lane));
    }
  }
}

TEST_CASE("link: a count is heard with the next message, or by itself when announced") {
  const Medium medium = HORA_EVERY_MEDIUM();
  CAPTURE(to_string(medium));
  LinkWorld world(medium, 2, test_layout());
  world.link(0, 1).set_count(1, 3);
  send(world, 0, 1, {1, 0, 3}, 8, 1);
  REQUIRE(world.step_until([&] { return world.link(1, 0).heard(1) == 3; }));
  CHECK(world.link(1, 0).heard(0) == 0);
  CHECK(world.link(0, 1).announced(1) == 3);

  world.link(0, 1).set_count(0, 9);
  world.link(0, 1).set_count(1, 4);
  world.link(0, 1).announce(1);
  REQUIRE(world.step_until([&] { return world.link(1, 0).heard(1) == 4; }));
  world.link(0, 1).announce(0);
  REQUIRE(world.step_until([&] { return world.link(1, 0).heard(0) == 9; }));
  CHECK(world.link(0, 1).announced(0) == 9);
}

TEST_CASE("link: control messages keep their order and their bytes among bulk data") {
  const Medium medium = HORA_EVERY_MEDIUM();
  CAPTURE(to_string(medium));
  LinkWorld world(medium, 2, test_layout());
  const std::vector<std::size_t> sizes{0, 1, 5, 64, 1000, 0, 131072, 131073, 1 << 20, 3};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> message(sizes[i]);
    fill(message, i);
    world.link(0, 1).send_control(message);
    if (i < world.layout.window) send(world, 0, 1, {0, 0, i}, 1 << 20, 100 + i);
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> message;
    REQUIRE(world.step_until([&] { return world.link(1, 0).take_control(message); }));
    CHECK(message.size() == sizes[i]);
    CHECK(holds(message, i));
  }
  for (std::uint64_t i = 0; i < world.layout.window; ++i) {
    REQUIRE(world.step_until([&] { return arrived(world, 1, 0, {0, 0, i}); }));
    CHECK(holds(*world.link(1, 0).poll({0, 0, i}), 100 + i));
  }
  std::vector<std::byte> none;
  CHECK_FALSE(world.link(1, 0).take_control(none));
}

TEST_CASE("link: a peer that leaves in good order is an end, and what it sent before stays") {
  const Medium medium = GENERATE(Medium::loopback, Medium::tcp);
  CAPTURE(to_string(medium));
  LinkWorld world(medium, 3, test_layout());
  send(world, 2, 0, {0, 1, 0}, 50'000, 5);
  world.link(2, 0).send_control(std::vector<std::byte>(10));
  world.settle();
  world[2].links.clear();
  REQUIRE(world.step_until([&] { return world.link(0, 2).failure().has_value(); }));
  CHECK(world.link(0, 2).failure()->kind == ErrorKind::shutdown);
  CHECK(world.link(0, 2).failure()->peer == Rank{2});
  CHECK_THAT(world.link(0, 2).failure()->message, Catch::Contains("rank 2"));
  CHECK_FALSE(world.link(0, 1).failure().has_value());

  REQUIRE(arrived(world, 0, 2, {0, 1, 0}));
  CHECK(holds(*world.link(0, 2).poll({0, 1, 0}), 5));
  std::vector<std::byte> control;
  CHECK(world.link(0, 2).take_control(control));

  // Sends vanish.
  send(world, 0, 2, {0, 1, 0}, 50'000, 5);
  world.link(0, 2).send_control(control);
  world.link(0, 2).announce(0);
  world.settle();
  CHECK(world.link(0, 2).failure()->kind == ErrorKind::shutdown);
}

/// All ranks send to all others, position after position, as far ahead as the window allows.
class Exchange {
 public:
  Exchange(LinkWorld& world, int self, std::uint64_t positions, std::uint64_t seed)
      : world_(world), self_(self), positions_(positions), seed_(seed) {}

  [[nodiscard]] bool done() const { return finished_ == positions_; }
  [[nodiscard]] bool wrong() const { return wrong_; }

  /// Starts and finishes what can be. True if anything changed.
  bool step() {
    bool changed = false;
    while (started_ < positions_ && started_ < floor() + world_.layout.window) {
      start(started_++);
      changed = true;
    }
    while (finished_ < started_ && complete(finished_)) {
      ++finished_;
      for_peers([&](int peer) {
        world_.link(self_, peer).set_count(0, finished_);
        world_.link(self_, peer).announce(0);
      });
      changed = true;
    }
    return changed;
  }

  /// Every peer knows that we are done, and we know it of every peer.
  [[nodiscard]] bool over() const { return done() && floor() == positions_; }

 private:
  template <class Body>
  void for_peers(const Body& body) const {
    for (int peer = 0; peer < static_cast<int>(world_.members.size()); ++peer) {
      if (peer != self_) body(peer);
    }
  }

  [[nodiscard]] std::uint64_t floor() const {
    std::uint64_t lowest = finished_;
    for_peers([&](int peer) { lowest = std::min(lowest, world_.link(self_, peer).heard(0)); });
    return lowest;
  }

  /// Same on both sides, from nothing, to a quarter of a slot, often small.
  [[nodiscard]] std::size_t bytes_of(std::uint64_t position, int from, int to) const {
    std::mt19937_64 random(seed_ + position * 64 + static_cast<std::uint64_t>(from * 8 + to));
    const std::size_t most = random() % 3 == 0 ? cell() : 300;
    return random() % (most + 1);
  }
  /// The slot holds one outgoing cell per peer, then one landing cell per peer.
  [[nodiscard]] std::size_t cell() const {
    return world_.layout.slot_bytes / (2 * world_.members.size()) / 64 * 64;
  }
  [[nodiscard]] std::uint64_t seed_of(std::uint64_t position, int from, int to) const {
    return position * 100 + static_cast<std::uint64_t>(from * 10 + to);
  }

  void start(std::uint64_t position) {
    for_peers([&](int peer) {
      const auto payload =
          world_[self_]
              .slot(world_.layout, 0, position)
              .subspan(static_cast<std::size_t>(peer) * cell(), bytes_of(position, self_, peer));
      fill(payload, seed_of(position, self_, peer));
      world_.link(self_, peer)
          .send({0, static_cast<std::uint16_t>(self_), position}, payload,
                (world_.members.size() + static_cast<std::size_t>(self_)) * cell());
    });
  }

  bool complete(std::uint64_t position) {
    bool all = true;
    for_peers([&](int peer) {
      const MessageKey key{0, static_cast<std::uint16_t>(peer), position};
      const auto payload = world_.link(self_, peer).poll(key);
      if (!payload) {
        all = false;
      } else if (payload->size() != bytes_of(position, peer, self_) ||
                 !holds(*payload, seed_of(position, peer, self_))) {
        wrong_ = true;
      }
    });
    return all;
  }

  LinkWorld& world_;
  int self_;
  std::uint64_t positions_;
  std::uint64_t seed_;
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;
  bool wrong_ = false;
};

LaneLayout small_layout() {
  return {.lanes = 1, .window = 3, .slot_bytes = 1 << 18, .tags = 4};
}

TEST_CASE("link: many windows of random messages between all ranks arrive unharmed") {
  const Medium medium = HORA_EVERY_MEDIUM();
  const int size = GENERATE(2, 3, 4);
  const std::uint64_t seed = GENERATE(1, 2, 3);
  CAPTURE(to_string(medium), size, seed);
  LinkWorld world(medium, size, small_layout());
  std::deque<Exchange> ranks;
  for (int i = 0; i < size; ++i)
    ranks.emplace_back(world, i, 60, seed);
  const bool over = world.step_until([&] {
    bool all = true;
    for (Exchange& rank : ranks) {
      rank.step();
      all = all && rank.over();
    }
    return all;
  });
  CHECK(over);
  for (const Exchange& rank : ranks)
    CHECK_FALSE(rank.wrong());
}

/// Drives one rank on a thread of its own and sleeps whenever there is nothing to do.
bool run_rank(LinkWorld& world, int self, std::uint64_t positions) {
  Exchange exchange(world, self, positions, 9);
  Member& member = world[self];
  // Only a lost wake-up takes that long, also under a sanitizer on a busy machine.
  const Deadline deadline = Deadline::after(240s);
  while (!exchange.over() && !deadline.passed(steady_now())) {
    const auto move = [&] {
      const bool moved = member.transport->progress();
      return exchange.step() || moved;
    };
    if (move()) {
      member.transport->flush();
      continue;
    }
    member.transport->flush();
    member.wait_point->sleep(deadline, {.rings = 1, .counts = true}, [&] { return !move(); });
    member.transport->flush();
  }
  return exchange.over() && !exchange.wrong();
}

TEST_CASE("link: ranks on threads of their own wake each other") {
  const Medium medium = HORA_EVERY_MEDIUM();
  CAPTURE(to_string(medium));
  LinkWorld world(medium, 3, small_layout());
  std::vector<char> right(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] { right[static_cast<std::size_t>(i)] = run_rank(world, i, 100); });
  for (std::thread& thread : threads)
    thread.join();
  CHECK(right == std::vector<char>{1, 1, 1});
}

}  // namespace
}  // namespace hora::test
