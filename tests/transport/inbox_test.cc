// Inbox: no line that a peer can write makes a byte land where it must not.
#include "ops/transport/inbox.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "ops/transport/transport.h"
#include "tests/transport/link_world.h"

namespace hora::test {
namespace {

constexpr Epoch kEpoch{7};
const LaneLayout kLayout{.lanes = 2, .window = 4, .slot_bytes = 8192, .tags = 3};

/// An inbox in the middle of an arena.
struct Fixture {
  Member member = make_member(kLayout, false);
  Inbox inbox{*member.arena, member.area_offset, kLayout, kEpoch};

  /// Delivers a frame as a transport does.
  Result<Inbox::Fate> deliver(const Line& line, std::uint64_t seed = 1) {
    Result<Inbox::Fate> fate = inbox.accept(line);
    if (fate && *fate == Inbox::Fate::keep) {
      if (line.length > 0) {
        fill(std::span(inbox.target(line), line.length), seed);
      }
      inbox.complete(line);
    }
    return fate;
  }
};

Line data_line(std::uint64_t position, std::uint32_t length) {
  Line line;
  line.magic = kLineMagic;
  line.epoch = kEpoch.value;
  line.kind = static_cast<std::uint16_t>(LineKind::data);
  line.position = position;
  line.length = length;
  line.stamp = Part{0, length}.stamp();
  return line;
}

Line part_line(std::uint64_t position, std::uint32_t offset, std::uint32_t length,
               std::uint32_t total) {
  Line line = data_line(position, length);
  line.landing = offset;
  line.stamp = Part{offset, total}.stamp();
  return line;
}

Line control_line(std::uint64_t number, std::uint32_t offset, std::uint32_t length,
                  std::uint32_t total) {
  Line line = data_line(number, length);
  line.kind = static_cast<std::uint16_t>(LineKind::control);
  line.stamp = Part{offset, total}.stamp();
  return line;
}

TEST_CASE("inbox: each field of a line is checked, and the error names it") {
  struct Case {
    const char* text;
    void (*spoil)(Line&);
  };
  const Case wrong = GENERATE(values<Case>({
      {"not a frame", [](Line& line) { line.magic ^= 1; }},
      {"epoch 8 in epoch 7", [](Line& line) { line.epoch = 8; }},
      {"epoch 6 in epoch 7", [](Line& line) { line.epoch = 6; }},
      {"unknown kind 0", [](Line& line) { line.kind = 0; }},
      {"unknown kind 5", [](Line& line) { line.kind = 5; }},
      {"lane 2 of 2", [](Line& line) { line.lane = 2; }},
      {"lane 65535 of 2", [](Line& line) { line.lane = 65535; }},
      {"tag 3 of 3", [](Line& line) { line.tag = 3; }},
      {"unknown flags", [](Line& line) { line.flags = 0x8000; }},
      {"unknown flags", [](Line& line) { line.floor = 1; }},
      {"beyond our window", [](Line& line) { line.position = 4; }},
      {"beyond our window", [](Line& line) { line.position = ~0ull; }},
      {"to land at 8093", [](Line& line) { line.landing = 8093; }},
      {"to land at", [](Line& line) { line.landing = ~0ull; }},
      {"to land at", [](Line& line) { line.landing = ~0ull - 50; }},
      {"101 bytes at 0 of a message of 100", [](Line& line) { line.length = 101; }},
      {"4294967295 bytes at 0", [](Line& line) { line.length = ~0u; }},
      {"0 bytes at 0 of a message of 100", [](Line& line) { line.length = 0; }},
      {"in a slot of 8192",
       [](Line& line) {
         line.length = 8193;
         line.stamp = Part{0, 8193}.stamp();
       }},
      {"100 bytes at 1 of a message of 100",
       [](Line& line) {
         line.landing = 1;
         line.stamp = Part{1, 100}.stamp();
       }},
      {"without its beginning",
       [](Line& line) {
         line.landing = 100;
         line.stamp = Part{100, 200}.stamp();
       }},
      {"a count with a payload",
       [](Line& line) { line.kind = static_cast<std::uint16_t>(LineKind::count); }},
      {"a count with a payload",
       [](Line& line) { line.kind = static_cast<std::uint16_t>(LineKind::bye); }},
      {"out of order",
       [](Line& line) {
         line.kind = static_cast<std::uint16_t>(LineKind::control);
         line.position = 1;
       }},
      {"more than 16777216",
       [](Line& line) {
         line.kind = static_cast<std::uint16_t>(LineKind::control);
         line.stamp = Part{0, static_cast<std::uint32_t>(kMaxControlMessage) + 1}.stamp();
       }},
  }));
  CAPTURE(wrong.text);
  Fixture fixture;
  Line line = data_line(0, 100);
  line.landing = 8092;  // The last place where it fits.
  REQUIRE(fixture.deliver(line));
  line.tag = 1;
  wrong.spoil(line);
  line.count = 5;
  const auto fate = fixture.deliver(line);
  REQUIRE_FALSE(fate);
  CHECK(fate.error().kind == ErrorKind::protocol);
  CHECK_THAT(fate.error().message, Catch::Contains(wrong.text));
  CHECK(fixture.inbox.heard(0) == 0);  // Nothing of a bad line is used.
}

TEST_CASE("inbox: a message is there when its last part is, and not before") {
  Fixture fixture;
  REQUIRE(fixture.deliver(part_line(2, 0, 1000, 2500), 1));
  CHECK(fixture.inbox.mid_message());
  REQUIRE(fixture.deliver(data_line(1, 7), 9));  // Another message in between.
  REQUIRE(fixture.deliver(part_line(2, 1000, 1000, 2500), 2));
  CHECK_FALSE(fixture.inbox.poll({0, 0, 2}));
  REQUIRE(fixture.deliver(part_line(2, 2000, 500, 2500), 3));
  const auto payload = fixture.inbox.poll({0, 0, 2});
  REQUIRE(payload);
  CHECK(payload->size() == 2500);
  CHECK(holds(payload->first(1000), 1));
  CHECK(holds(payload->subspan(1000, 1000), 2));
  CHECK(holds(payload->subspan(2000), 3));
  CHECK_FALSE(fixture.inbox.mid_message());
}

TEST_CASE("inbox: duplicates and late messages are dropped and counted") {
  Fixture fixture;
  REQUIRE(*fixture.deliver(data_line(0, 100), 1) == Inbox::Fate::keep);
  CHECK(*fixture.deliver(data_line(0, 100), 2) == Inbox::Fate::drop);
  CHECK(holds(*fixture.inbox.poll({0, 0, 0}), 1));
  CHECK(*fixture.deliver(data_line(1, 0)) == Inbox::Fate::keep);
  CHECK(*fixture.deliver(data_line(1, 0)) == Inbox::Fate::drop);

  REQUIRE(*fixture.deliver(part_line(2, 0, 60, 90)) == Inbox::Fate::keep);
  CHECK(*fixture.deliver(part_line(2, 0, 60, 90)) == Inbox::Fate::drop);
  CHECK(*fixture.deliver(part_line(2, 60, 30, 90)) == Inbox::Fate::keep);
  CHECK(*fixture.deliver(part_line(2, 60, 30, 90)) == Inbox::Fate::drop);

  fixture.inbox.set_count(0, 3);
  Line late = data_line(2, 100);
  late.tag = 2;
  CHECK(*fixture.deliver(late) == Inbox::Fate::drop);
  CHECK(fixture.inbox.dropped() == 5);
}

TEST_CASE("inbox: a second, different message under one tag is refused") {
  Fixture fixture;
  REQUIRE(fixture.deliver(part_line(0, 0, 60, 90)));
  const Line wrong = GENERATE(part_line(0, 50, 40, 90), part_line(0, 60, 31, 91),
                              part_line(0, 70, 20, 90), data_line(0, 10));
  CHECK_FALSE(fixture.deliver(wrong));
}

TEST_CASE("inbox: the window moves with the own count, and a slot is used again") {
  Fixture fixture;
  for (std::uint64_t position = 0; position < 20; ++position) {
    Line line = data_line(position, 50 + static_cast<std::uint32_t>(position));
    REQUIRE(*fixture.deliver(line, position) == Inbox::Fate::keep);
    CHECK_FALSE(fixture.inbox.accept(data_line(position + 4, 1)));
    REQUIRE(fixture.inbox.poll({0, 0, position}));
    CHECK(fixture.inbox.poll({0, 0, position})->size() == 50 + position);
    CHECK(holds(*fixture.inbox.poll({0, 0, position}), position));
    fixture.inbox.set_count(0, position + 1);
  }
}

TEST_CASE("inbox: a payload whose position is done meanwhile has no target any more") {
  Fixture fixture;
  const Line line = data_line(0, 100);
  REQUIRE(*fixture.inbox.accept(line) == Inbox::Fate::keep);
  CHECK(fixture.inbox.target(line) != nullptr);
  fixture.inbox.set_count(0, 1);
  CHECK(fixture.inbox.target(line) == nullptr);
}

TEST_CASE("inbox: the newest count counts, in whichever order they come") {
  Fixture fixture;
  Line line = data_line(0, 0);
  line.count = 4;
  REQUIRE(fixture.deliver(line));
  line.count = 2;
  REQUIRE(fixture.deliver(line));
  CHECK(fixture.inbox.heard(0) == 4);
}

TEST_CASE("inbox: control messages come once and in order; too many waiting is an error") {
  Fixture fixture;
  std::vector<std::byte> message;
  REQUIRE(fixture.deliver(control_line(0, 0, 0, 0)));
  REQUIRE(fixture.deliver(control_line(1, 0, 10, 30), 1));
  REQUIRE(fixture.deliver(control_line(1, 10, 20, 30), 2));
  CHECK(*fixture.deliver(control_line(1, 10, 20, 30), 3) == Inbox::Fate::drop);
  REQUIRE(fixture.inbox.take_control(message));
  CHECK(message.empty());
  REQUIRE(fixture.inbox.take_control(message));
  REQUIRE(message.size() == 30);
  CHECK(holds(std::span(message).first(10), 1));
  CHECK(holds(std::span(message).subspan(10), 2));
  CHECK_FALSE(fixture.inbox.take_control(message));

  CHECK_FALSE(fixture.inbox.accept(control_line(2, 5, 5, 10)));  // Without a beginning.
  std::uint64_t number = 2;
  while (number < 100'000 && fixture.deliver(control_line(number, 0, 1, 1)))
    ++number;
  CHECK(number < 100'000);
}

/// A line that is nearly right: a few fields from small or extreme ranges. `done`: by lane.
Line random_line(std::mt19937_64& random, const std::uint64_t (&done)[2]) {
  const auto pick = [&](std::initializer_list<std::uint64_t> choices) {
    return *(choices.begin() + random() % choices.size());
  };
  const auto total = static_cast<std::uint32_t>(pick({0, 1, 100, 4096, 8192, 8193, ~0u}));
  const auto offset = static_cast<std::uint32_t>(pick({0, 0, 0, 1, 50, 100, 4096, ~0u}));
  Line line;
  line.magic = random() % 50 == 0 ? static_cast<std::uint32_t>(random()) : kLineMagic;
  line.epoch = random() % 50 == 0 ? 6 : kEpoch.value;
  line.kind = static_cast<std::uint16_t>(pick({1, 1, 1, 1, 2, 3, 0, 9}));
  line.lane = static_cast<std::uint16_t>(pick({0, 0, 0, 1, 1, 1, 2, 65535}));
  line.tag = static_cast<std::uint16_t>(pick({0, 1, 2, 0, 1, 2, 3, 65535}));
  line.flags = random() % 50 == 0 ? 1 : 0;
  const std::uint64_t near = done[line.lane % 2] + random() % 6;
  line.position = pick({near, near, near, near - 1, near + 8, ~0ull, 1ull << 63});
  if (line.kind == static_cast<std::uint16_t>(LineKind::control)) line.position = random() % 3;
  line.landing = pick({offset, offset + 64ull, random() % 8200, ~0ull, ~0ull - 8192});
  line.count = random() % 10;
  line.length = static_cast<std::uint32_t>(pick({total, total - offset, 1, 50, 0, ~0u}));
  line.stamp = Part{offset, total}.stamp();
  return line;
}

TEST_CASE("inbox: random lines never get a target outside of their slot") {
  const std::uint64_t seed = GENERATE(range(0, 20));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Fixture fixture;
  std::uint64_t done[2] = {0, 0};
  std::size_t kept = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Line line = random_line(random, done);
    const auto fate = fixture.inbox.accept(line);
    if (fate && *fate == Inbox::Fate::keep) {
      ++kept;
      if (static_cast<LineKind>(line.kind) == LineKind::data) {
        const auto slot = fixture.member.slot(kLayout, line.lane, line.position);
        const std::byte* target = fixture.inbox.target(line);
        REQUIRE(line.position >= done[line.lane]);
        REQUIRE(line.position < done[line.lane] + kLayout.window);
        REQUIRE(target >= slot.data());
        REQUIRE(line.length <= slot.size());
        REQUIRE(target + line.length <= slot.data() + slot.size());
      }
      fixture.inbox.complete(line);
    }
    if (random() % 50 == 0) {
      const auto lane = static_cast<std::uint16_t>(random() % 2);
      fixture.inbox.set_count(lane, ++done[lane]);
    }
    std::vector<std::byte> control;
    fixture.inbox.take_control(control);
  }
  CHECK(kept > 100);
}

}  // namespace
}  // namespace hora::test
