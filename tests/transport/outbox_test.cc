// Outbox: what goes first, and that no way of cutting a write harms what is sent.
#include "ops/transport/outbox.h"

#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "ops/transport/inbox.h"
#include "tests/transport/link_world.h"

namespace hora::test {
namespace {

constexpr Epoch kEpoch{7};

/// All bytes of a plan.
std::vector<std::byte> bytes_of(std::span<const iovec> plan) {
  std::vector<std::byte> bytes;
  for (const iovec& piece : plan) {
    const auto* start = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), start, start + piece.iov_len);
  }
  return bytes;
}

/// The lines in a stream of whole frames.
std::vector<Line> lines_of(const std::vector<std::byte>& bytes) {
  std::vector<Line> lines;
  for (std::size_t at = 0; at < bytes.size();) {
    Line line;
    REQUIRE(bytes.size() - at >= sizeof line);
    std::memcpy(&line, bytes.data() + at, sizeof line);
    lines.push_back(line);
    at += sizeof line + line.length;
  }
  return lines;
}

LineKind kind_of(const Line& line) {
  return static_cast<LineKind>(line.kind);
}

struct Fixture {
  LaneLayout layout = test_layout();
  Member member = make_member(layout, false);
  Outbox outbox{layout, kEpoch};

  void send(std::uint16_t lane, std::uint16_t tag, std::uint64_t position, std::size_t bytes) {
    outbox.send({lane, tag, position}, member.slot(layout, lane, position).first(bytes), 0);
  }
  std::vector<Line> plan_lines() { return lines_of(bytes_of(outbox.plan())); }
  void sent_all() {
    std::size_t bytes = 0;
    for (const iovec& piece : outbox.plan())
      bytes += piece.iov_len;
    outbox.sent(bytes);
  }
};

TEST_CASE("outbox: nothing waits, nothing is planned") {
  Fixture fixture;
  CHECK(fixture.outbox.plan().empty());
  CHECK(fixture.outbox.waiting() == 0);
  fixture.outbox.set_count(0, 5);  // Nobody asked to announce it.
  CHECK(fixture.outbox.plan().empty());
}

TEST_CASE("outbox: control and small messages overtake bulk, counts come before it") {
  Fixture fixture;
  fixture.send(0, 0, 0, 300'000);
  fixture.send(0, 1, 0, kSmallBytes);
  fixture.send(0, 2, 0, 10);
  REQUIRE(fixture.outbox.send_control(std::vector<std::byte>(5)));
  fixture.outbox.set_count(1, 3);
  fixture.outbox.announce(1);
  const auto lines = fixture.plan_lines();
  REQUIRE(lines.size() == 7);
  CHECK(kind_of(lines[0]) == LineKind::control);
  CHECK(lines[1].tag == 1);
  CHECK(lines[2].tag == 2);
  CHECK(kind_of(lines[3]) == LineKind::count);
  CHECK(lines[3].lane == 1);
  CHECK(lines[3].count == 3);
  CHECK(lines[4].length == kPartBytes);
  CHECK(lines[5].length == kPartBytes);
  CHECK(lines[6].length == 300'000 - 2 * kPartBytes);
  CHECK(Part::of(lines[6]).offset == 2 * kPartBytes);
  CHECK(Part::of(lines[6]).total == 300'000);
}

TEST_CASE("outbox: what becomes urgent waits for the rest of one part only") {
  Fixture fixture;
  fixture.send(0, 0, 0, 1 << 20);
  fixture.send(0, 0, 1, 1 << 20);
  fixture.outbox.plan();
  // The socket takes two parts and a little more.
  fixture.outbox.sent(2 * (sizeof(Line) + kPartBytes) + 100);
  CHECK(fixture.outbox.mid_frame());
  REQUIRE(fixture.outbox.send_control(std::vector<std::byte>(5)));
  const auto bytes = bytes_of(fixture.outbox.plan());
  const std::size_t rest = sizeof(Line) + kPartBytes - 100;
  Line next;
  std::memcpy(&next, bytes.data() + rest, sizeof next);
  CHECK(kind_of(next) == LineKind::control);
}

TEST_CASE("outbox: a count is told once, by whatever line comes first") {
  Fixture fixture;
  fixture.outbox.set_count(0, 2);
  fixture.outbox.announce(0);
  SECTION("alone") {
    const auto lines = fixture.plan_lines();
    REQUIRE(lines.size() == 1);
    CHECK(kind_of(lines[0]) == LineKind::count);
    CHECK(fixture.outbox.announced(0) == 0);  // Not sent yet.
  }
  SECTION("with a small message") {
    fixture.send(0, 0, 2, 8);
    const auto lines = fixture.plan_lines();
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].count == 2);
  }
  SECTION("with a long message") {
    fixture.send(0, 0, 2, 100'000);
    const auto lines = fixture.plan_lines();
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].count == 2);
  }
  fixture.sent_all();
  CHECK(fixture.outbox.announced(0) == 2);
  fixture.outbox.announce(0);
  CHECK(fixture.outbox.plan().empty());
  fixture.outbox.set_count(0, 3);
  CHECK(fixture.outbox.plan().empty());
  fixture.outbox.announce(0);
  CHECK(fixture.plan_lines().size() == 1);
}

TEST_CASE("outbox: control messages are bounded by their bytes and their number") {
  Fixture fixture;
  const std::size_t size = GENERATE(0, std::size_t{4} << 20);
  const std::vector<std::byte> message(size);
  std::size_t taken = 0;
  while (taken < 100'000 && fixture.outbox.send_control(message))
    ++taken;
  CHECK(taken == (size == 0 ? 1u << 16 : 16u));
  CHECK(fixture.outbox.waiting() == taken);
}

TEST_CASE("outbox: writes cut anywhere make the same messages") {
  const std::uint64_t seed = GENERATE(range(0, 30));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Fixture fixture;
  Member receiver = make_member(fixture.layout, false);
  Inbox inbox(*receiver.arena, receiver.area_offset, fixture.layout, kEpoch);

  struct Sent {
    MessageKey key;
    std::size_t bytes;
    std::uint64_t seed;
  };
  std::vector<Sent> sent;
  std::vector<std::size_t> controls;
  std::vector<std::byte> wire;
  const auto write_some = [&](std::size_t most) {
    const auto plan = bytes_of(fixture.outbox.plan());
    const std::size_t taken = std::min(plan.size(), most);
    wire.insert(wire.end(), plan.begin(), plan.begin() + static_cast<std::ptrdiff_t>(taken));
    fixture.outbox.sent(taken);
    return !plan.empty();
  };
  for (std::uint16_t tag = 0; tag < 8; ++tag) {
    for (std::uint64_t position = 0; position < 4; ++position) {
      const std::size_t cell = fixture.layout.slot_bytes / 8;
      const std::size_t bytes = random() % (random() % 2 == 0 ? 500 : cell);
      const auto payload =
          fixture.member.slot(fixture.layout, 0, position).subspan(tag * cell, bytes);
      sent.push_back({{0, tag, position}, bytes, random()});
      fill(payload, sent.back().seed);
      fixture.outbox.send(sent.back().key, payload, tag * cell);
      if (random() % 4 == 0) {
        std::vector<std::byte> control(random() % 300'000);
        fill(control, controls.size());
        controls.push_back(control.size());
        REQUIRE(fixture.outbox.send_control(control));
      }
      fixture.outbox.set_count(1, position);
      if (random() % 3 == 0) fixture.outbox.announce(1);
      if (random() % 2 == 0) write_some(random() % (random() % 2 == 0 ? 200 : 300'000));
    }
  }
  while (write_some(1 + random() % (random() % 2 == 0 ? 200 : 2'000'000))) {
  }
  CHECK(fixture.outbox.waiting() == 0);

  for (std::size_t at = 0; at < wire.size();) {
    Line line;
    std::memcpy(&line, wire.data() + at, sizeof line);
    at += sizeof line;
    const auto fate = inbox.accept(line);
    REQUIRE(fate);
    REQUIRE(*fate == Inbox::Fate::keep);
    if (line.length > 0) std::memcpy(inbox.target(line), wire.data() + at, line.length);
    at += line.length;
    inbox.complete(line);
  }
  for (const Sent& message : sent) {
    const auto payload = inbox.poll(message.key);
    REQUIRE(payload);
    CHECK(payload->size() == message.bytes);
    CHECK(holds(*payload, message.seed));
  }
  for (std::size_t i = 0; i < controls.size(); ++i) {
    std::vector<std::byte> control;
    REQUIRE(inbox.take_control(control));
    CHECK(control.size() == controls[i]);
    CHECK(holds(control, i));
  }
}

}  // namespace
}  // namespace hora::test
