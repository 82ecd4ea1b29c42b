// Loopback: the plan of faults does what it says, to that message and no other.
#include "ops/transport/loopback.h"

#include <catch2/catch.hpp>

#include "tests/transport/link_world.h"

namespace hora::test {
namespace {

constexpr std::uint64_t kMessages = 6;

/// Rank 0 sends six messages in the order data, control, count, data, control, count.
void talk(LinkWorld& world) {
  Link& link = world.link(0, 1);
  for (std::uint64_t i = 0; i < 2; ++i) {
    const auto payload = world[0].slot(world.layout, 0, i).first(1000);
    fill(payload, i);
    link.send({0, 0, i}, payload, 0);
    std::vector<std::byte> control(50);
    fill(control, i);
    link.send_control(control);
    link.set_count(1, i + 1);
    link.announce(1);
  }
}

/// How many of the six rank 1 has got, one after the other; all of them must be right.
std::uint64_t got(LinkWorld& world) {
  Link& link = world.link(1, 0);
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < 2; ++i) {
    if (const auto payload = link.poll({0, 0, i})) {
      CHECK(holds(*payload, i));
      ++count;
    }
    std::vector<std::byte> control;
    if (link.take_control(control)) {
      CHECK(holds(control, i));
      ++count;
    }
  }
  std::vector<std::byte> none;
  CHECK_FALSE(link.take_control(none));
  return count + link.heard(1);
}

LinkWorld world_with(std::uint64_t message, FaultAction action) {
  return {Medium::loopback, 2, test_layout(), {{Rank{0}, Rank{1}, message, action}}};
}

TEST_CASE("loopback: messages are counted by direction") {
  LinkWorld world(Medium::loopback, 2, test_layout());
  talk(world);
  CHECK(world.hub->sent(Rank{0}, Rank{1}) == kMessages);
  CHECK(world.hub->sent(Rank{1}, Rank{0}) == 0);
  world.link(0, 1).announce(1);  // It is told already.
  CHECK(world.hub->sent(Rank{0}, Rank{1}) == kMessages);
  world.settle();
  CHECK(got(world) == kMessages);
}

TEST_CASE("loopback: a closed link delivers what came before and fails at both ends") {
  const std::uint64_t message = GENERATE(range(0, 6));
  CAPTURE(message);
  LinkWorld world = world_with(message, FaultAction::close);
  talk(world);
  world.settle();
  CHECK(got(world) == message);
  for (const auto& [self, peer] : {std::pair{0, 1}, std::pair{1, 0}}) {
    REQUIRE(world.link(self, peer).failure());
    CHECK(world.link(self, peer).failure()->kind == ErrorKind::peer_lost);
    CHECK(world.link(self, peer).failure()->peer == Rank{peer});
  }
}

TEST_CASE("loopback: a stalled direction delivers nothing more and tells nobody") {
  const std::uint64_t message = GENERATE(range(0, 6));
  CAPTURE(message);
  LinkWorld world = world_with(message, FaultAction::stall);
  talk(world);
  world.settle();
  CHECK(got(world) == message);
  world.link(1, 0).send_control(std::vector<std::byte>(3));
  world.settle();
  std::vector<std::byte> control;
  CHECK(world.link(0, 1).take_control(control));  // The other direction lives.
  CHECK_FALSE(world.link(0, 1).failure());
  CHECK_FALSE(world.link(1, 0).failure());
}

TEST_CASE("loopback: a changed message is never taken for the right one") {
  const std::uint64_t message = GENERATE(range(0, 6));
  CAPTURE(message);
  LinkWorld world = world_with(message, FaultAction::corrupt);
  talk(world);
  world.settle();
  CHECK(got(world) == message);
  REQUIRE(world.link(1, 0).failure());
  CHECK(world.link(1, 0).failure()->kind == ErrorKind::protocol);
  CHECK(world.link(0, 1).failure());
}

TEST_CASE("loopback: a message delivered twice is as good as once") {
  const std::uint64_t message = GENERATE(range(0, 6));
  CAPTURE(message);
  LinkWorld world = world_with(message, FaultAction::duplicate);
  talk(world);
  world.settle();
  CHECK(got(world) == kMessages);
  CHECK_FALSE(world.link(1, 0).failure());
}

}  // namespace
}  // namespace hora::test
