// TCP: what a socket brings that is not as it should be, and who goes first when it is full.
#include "ops/transport/tcp.h"

#include <csignal>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "tests/transport/link_world.h"

namespace hora::test {
namespace {

constexpr Epoch kEpoch{7};

/// One rank with a link over a socket whose other end the test writes and reads by hand.
struct HalfLink {
  LaneLayout layout = test_layout();
  Member member = make_member(layout, false);
  TcpTransport* tcp = nullptr;
  Fd raw;

  HalfLink() : HalfLink(tcp_pair()) {}
  explicit HalfLink(std::pair<Fd, Fd> ends) : raw(std::move(ends.second)) {
    auto transport =
        *TcpTransport::make(*member.arena, member.area_offset, layout, kEpoch, Rank{0});
    tcp = transport.get();
    member.transport = std::move(transport);
    member.links.push_back(
        tcp->connect(Rank{2}, std::move(ends.first), "tcp 127.0.0.1:4242", "no-such-algorithm"));
  }

  Link& link() { return *member.links[0]; }

  void write(std::span<const std::byte> bytes) {
    // Enough fits into the buffers of both ends; a link that failed reads no more.
    (void)!::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    settle();
  }
  void write(const Line& line, std::span<const std::byte> payload = {}) {
    std::vector<std::byte> bytes(sizeof line);
    std::memcpy(bytes.data(), &line, sizeof line);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    write(bytes);
  }
  void settle() {
    while (member.step()) {
    }
  }
  /// Everything that can be read by hand now.
  std::vector<std::byte> read() {
    std::vector<std::byte> bytes;
    std::vector<std::byte> buffer(1 << 20);
    for (;;) {
      const ssize_t got = ::recv(raw.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got <= 0) return bytes;
      bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + got);
    }
  }
  bool step_until(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::after(30s);
    while (!done() && !deadline.passed(steady_now()))
      member.step();
    return done();
  }
};

Line line_of(LineKind kind, std::uint64_t position = 0, std::uint32_t length = 0) {
  Line line;
  line.magic = kLineMagic;
  line.epoch = kEpoch.value;
  line.kind = static_cast<std::uint16_t>(kind);
  line.position = position;
  line.length = length;
  line.stamp = Part{0, length}.stamp();
  return line;
}

/// Everything of the arena that no message may touch, as a sum.
std::size_t bytes_set_outside_of_slots(Member& member, const LaneLayout& layout) {
  const std::byte* end = member.arena->at(member.arena->bytes());
  std::size_t set = 0;
  for (const std::byte* p = member.arena->at(member.area_offset + layout.area_bytes()); p < end;
       ++p)
    set += *p != std::byte{} ? 1 : 0;
  return set;
}

TEST_CASE("tcp: a line that is wrong in any field ends the link with a protocol error") {
  struct Case {
    const char* text;
    void (*spoil)(Line&);
  };
  const Case wrong = GENERATE(values<Case>({
      {"not a frame", [](Line& line) { line.magic = 0; }},
      {"epoch 1 in epoch 7", [](Line& line) { line.epoch = 1; }},
      {"unknown kind 77", [](Line& line) { line.kind = 77; }},
      {"lane 2 of 2", [](Line& line) { line.lane = 2; }},
      {"tag 8 of 8", [](Line& line) { line.tag = 8; }},
      {"unknown flags", [](Line& line) { line.flags = 1; }},
      {"position 4", [](Line& line) { line.position = 4; }},
      {"to land at", [](Line& line) { line.landing = (1 << 20) + 4096; }},
      {"of a message of", [](Line& line) { line.length = 1 << 30; }},
      {"in a slot of",
       [](Line& line) {
         line.length = 1 << 30;
         line.stamp = Part{0, 1 << 30}.stamp();
       }},
      {"checksum", [](Line& line) { line.crc32c = 1; }},
  }));
  CAPTURE(wrong.text);
  HalfLink half;
  Line line = line_of(LineKind::data, 3, 100);
  wrong.spoil(line);
  half.write(line, std::vector<std::byte>(100, std::byte{0xff}));
  REQUIRE(half.link().failure());
  CHECK(half.link().failure()->kind == ErrorKind::protocol);
  CHECK(half.link().failure()->peer == Rank{2});
  CHECK_THAT(half.link().failure()->message,
             Catch::Contains("rank 2 (tcp 127.0.0.1:4242) sent") && Catch::Contains(wrong.text));
  CHECK_FALSE(half.link().poll({0, 0, 3}));
  CHECK(bytes_set_outside_of_slots(half.member, half.layout) == 0);
  // The connection is closed, so that the peer learns of it.
  char byte;
  pollfd closed{.fd = half.raw.get(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&closed, 1, 30'000) == 1);
  CHECK(::recv(half.raw.get(), &byte, 1, MSG_DONTWAIT) <= 0);
}

TEST_CASE("tcp: random bytes end the link, and nothing outside of the slots is touched") {
  const std::uint64_t seed = GENERATE(range(0, 40));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  HalfLink half;
  // A few good frames, then one whose bytes were turned, then noise.
  std::vector<std::byte> bytes;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const Line line = line_of(LineKind::data, i, static_cast<std::uint32_t>(random() % 3000));
    const auto* start = reinterpret_cast<const std::byte*>(&line);
    bytes.insert(bytes.end(), start, start + sizeof line);
    bytes.insert(bytes.end(), line.length, std::byte{0xff});
  }
  bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
  for (int i = 0; i < 100'000; ++i)
    bytes.push_back(static_cast<std::byte>(random()));
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t some = std::min<std::size_t>(bytes.size() - at, 1 + random() % 20'000);
    half.write(std::span(bytes).subspan(at, some));
    at += some;
  }
  REQUIRE(half.link().failure());
  CHECK(half.link().failure()->kind == ErrorKind::protocol);
  CHECK(bytes_set_outside_of_slots(half.member, half.layout) == 0);
}

TEST_CASE("tcp: frames that come byte by byte, or many at once, are the same frames") {
  const std::size_t step = GENERATE(1, 63, 64, 65, 1000, 1 << 20);
  CAPTURE(step);
  HalfLink half;
  std::vector<std::byte> bytes;
  for (std::uint16_t tag = 0; tag < 8; ++tag) {
    Line line = line_of(LineKind::data, 0, tag * 37u);
    line.tag = tag;
    line.landing = tag * 400u;
    const auto* start = reinterpret_cast<const std::byte*>(&line);
    bytes.insert(bytes.end(), start, start + sizeof line);
    std::vector<std::byte> payload(line.length);
    fill(payload, tag);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
  }
  for (std::size_t at = 0; at < bytes.size(); at += step)
    half.write(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
  for (std::uint16_t tag = 0; tag < 8; ++tag) {
    REQUIRE(half.link().poll({0, tag, 0}));
    CHECK(half.link().poll({0, tag, 0})->size() == tag * 37u);
    CHECK(holds(*half.link().poll({0, tag, 0}), tag));
  }
}

TEST_CASE("tcp: duplicates and late messages are read, dropped and counted") {
  HalfLink half;
  std::vector<std::byte> payload(100'000);
  fill(payload, 1);
  const Line line = line_of(LineKind::data, 0, 100'000);
  half.write(line, payload);
  std::vector<std::byte> other(100'000);
  fill(other, 2);
  half.write(line, other);
  REQUIRE(half.link().poll({0, 0, 0}));
  CHECK(holds(*half.link().poll({0, 0, 0}), 1));
  CHECK(half.tcp->counters().dropped_frames == 1);

  half.link().set_count(0, 1);
  Line late = line;
  late.tag = 5;
  half.write(late, other);
  CHECK(half.tcp->counters().dropped_frames == 2);
  CHECK(holds(half.member.slot(half.layout, 0, 0).first(100'000), 1));
  half.write(line_of(LineKind::data, 4, 100'000), other);  // The next use of the slot.
  REQUIRE(half.link().poll({0, 0, 4}));
  CHECK(holds(*half.link().poll({0, 0, 4}), 2));
  CHECK_FALSE(half.link().failure());
}

TEST_CASE("tcp: what is left of a payload is forgotten once its position is done") {
  HalfLink half;
  std::vector<std::byte> payload(50'000, std::byte{0x55});
  half.write(line_of(LineKind::data, 0, 100'000), payload);
  half.link().set_count(0, 1);
  half.write(payload);
  const auto slot = half.member.slot(half.layout, 0, 0);
  CHECK(slot[49'999] == std::byte{0x55});
  CHECK(slot[50'000] == std::byte{});
  half.write(line_of(LineKind::data, 1, 10), std::span(payload).first(10));
  CHECK(half.link().poll({0, 0, 1}));
}

TEST_CASE("tcp: the end of a connection is told with what it interrupted") {
  HalfLink half;
  std::string text = "rank 2 (tcp 127.0.0.1:4242) closed its connection";
  SECTION("in a line") {
    half.write(std::vector<std::byte>(10));
    text += " in the middle of a message";
  }
  SECTION("in a payload") {
    half.write(line_of(LineKind::data, 0, 100), std::vector<std::byte>(99));
    text += " in the middle of a message";
  }
  SECTION("between the parts of a message") {
    Line line = line_of(LineKind::data, 0, 100);
    line.stamp = Part{0, 200}.stamp();
    half.write(line, std::vector<std::byte>(100));
    text += " in the middle of a message";
  }
  SECTION("with messages queued") {
    const auto slot = half.member.slot(half.layout, 0, 0);
    for (std::uint16_t tag = 0; tag < 3; ++tag)
      half.link().send({0, tag, 0}, slot.first(100), 0);
    text += " while 3 messages were queued";
  }
  SECTION("between messages") {}
  half.raw.reset();
  half.member.transport->progress();
  REQUIRE(half.step_until([&] { return half.link().failure().has_value(); }));
  CHECK(half.link().failure()->kind == ErrorKind::peer_lost);
  CHECK(half.link().failure()->peer == Rank{2});
  CHECK(half.link().failure()->message == text);
}

/// Fills the socket until the link can write no more, with bulk left in the queue.
void fill_socket(HalfLink& half) {
  for (std::uint64_t position = 0; position < 4; ++position) {
    const auto slot = half.member.slot(half.layout, 0, position);
    for (std::uint16_t tag = 0; tag < 8; ++tag)
      half.link().send({0, tag, position}, slot.first(1 << 20), 0);
  }
  half.settle();
  half.settle();
}

std::size_t bytes_in_socket(HalfLink& half) {
  return half.tcp->counters().sent_bytes;
}

TEST_CASE("tcp: an urgent message waits for what the kernel has, and one part at most") {
  HalfLink half;
  fill_socket(half);
  const std::size_t before = bytes_in_socket(half);
  REQUIRE(before < std::size_t{32} << 20);  // It is full, and bulk waits.
  half.link().send_control(std::vector<std::byte>(7));
  half.link().send({1, 0, 0}, half.member.slot(half.layout, 1, 0).first(100), 0);
  std::vector<std::byte> stream;
  half.step_until([&] {
    const auto more = half.read();
    stream.insert(stream.end(), more.begin(), more.end());
    return stream.size() >= before + 2 * (kPartBytes + sizeof(Line));
  });
  std::size_t control_at = 0;
  std::size_t small_at = 0;
  for (std::size_t at = 0; at + sizeof(Line) <= stream.size();) {
    Line line;
    std::memcpy(&line, stream.data() + at, sizeof line);
    REQUIRE(line.magic == kLineMagic);
    CHECK(line.length <= kPartBytes);
    if (static_cast<LineKind>(line.kind) == LineKind::control) control_at = at;
    if (line.lane == 1) small_at = at;
    at += sizeof line + line.length;
  }
  CHECK(control_at > 0);
  CHECK(control_at < before + kPartBytes + sizeof(Line));
  CHECK(small_at == control_at + sizeof(Line) + 7);
}

TEST_CASE("tcp: a peer that reads no control messages loses its link, not our memory") {
  HalfLink half;
  const std::vector<std::byte> message(kMaxControlMessage);
  for (int i = 0; i < 8 && !half.link().failure(); ++i)
    half.link().send_control(message);
  REQUIRE(half.link().failure());
  CHECK(half.link().failure()->kind == ErrorKind::resource);
  CHECK_THAT(half.link().failure()->message, Catch::Contains("does not read"));
}

TEST_CASE("tcp: a link that is destroyed says good-bye behind all that was sent") {
  HalfLink half;
  half.link().send({0, 1, 0}, half.member.slot(half.layout, 0, 0).first(50), 0);
  half.write(line_of(LineKind::data, 0, 100));  // Unread bytes must not make a reset of it.
  half.member.links.clear();
  const auto stream = half.read();
  REQUIRE(stream.size() == 2 * sizeof(Line) + 50);
  Line last;
  std::memcpy(&last, stream.data() + sizeof(Line) + 50, sizeof last);
  CHECK(static_cast<LineKind>(last.kind) == LineKind::bye);
}

TEST_CASE("tcp: the poll descriptor is readable when something has come, and only then") {
  HalfLink half;
  half.settle();
  pollfd ready{.fd = half.tcp->poll_fd(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&ready, 1, 0) == 0);
  const Line line = line_of(LineKind::data, 0, 0);
  REQUIRE(::send(half.raw.get(), &line, sizeof line, 0) == sizeof line);
  CHECK(::poll(&ready, 1, 30'000) == 1);
  half.settle();
  CHECK(::poll(&ready, 1, 0) == 0);
  CHECK(half.link().poll({0, 0, 0}));
}

TEST_CASE("tcp: the fault point kills the process after so many bytes") {
  auto [one, other] = tcp_pair();
  const pid_t child = ::fork();
  if (child == 0) {
    HalfLink half({std::move(one), Fd()});
    half.tcp->set_fault_after_bytes(sizeof(Line) + 1000);
    half.link().send({0, 0, 0}, half.member.slot(half.layout, 0, 0).first(5000), 0);
    half.member.step();
    ::_exit(1);
  }
  one.reset();
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
  std::vector<std::byte> stream(10'000);
  CHECK(::recv(other.get(), stream.data(), stream.size(), MSG_WAITALL) == sizeof(Line) + 1000);
}

}  // namespace
}  // namespace hora::test
