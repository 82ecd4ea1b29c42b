// The wire format of control messages: what is written is read, and nothing else is believed.
//
// Every sample is cut at every byte, damaged at random (fixed seed) and streamed in odd pieces.
#include "elastic/messages.h"

#include <cstring>
#include <random>

#include <catch2/catch.hpp>

namespace hora::test {

namespace {

Member sample_member(int number) {
  Member member;
  member.worker = make_worker_id();
  member.pid = 100 + number;
  member.host_name = "node" + std::to_string(number);
  member.host_id = "boot/1";
  member.addresses = {{"10.0.0.1", 4711}, {"fd00::1", 4712}};
  member.unix_name = "hora-abc";
  member.local_rank = number;
  member.local_size = 4;
  member.slot_bytes = 1 << 20;
  member.window = 4;
  member.settings = "algorithm=ring";
  return member;
}

std::vector<Message> samples() {
  World world;
  world.job[3] = std::byte{7};
  world.epoch = Epoch(5);
  for (int i = 0; i < 3; ++i)
    world.members.push_back(sample_member(i));
  const LaneCollective collective{{3, 7}, Ending::whole, {0, 2}, {std::byte{9}, std::byte{8}}};
  WorkerReport report{Epoch(5), 4, {{4, 6, 3, {collective}}, {}}, 11, {{10, {std::byte{1}}}}};
  NextWorld next;
  next.world = world;
  next.old_ranks = {0, 1, 3};
  next.lanes = {{{3, 3, 4}, {{collective, {3, 4}, {4, 7}}}, 7}};
  next.answers = {{10, {std::byte{1}}}};
  next.reason = "rank 2 is dead";
  return {Freeze{Epoch(5), "rank 2 is dead"},
          Frozen{report},
          Install{next},
          Suspect{Epoch(5), Rank(1), "reset"},
          Join{Rank(2), 4, 1500, sample_member(2)},
          Welcome{world},
          Refuse{{ErrorKind::timeout, "too late", Rank(3)}},
          Refuse{{ErrorKind::shutdown, "ended", std::nullopt}},
          Heartbeat{},
          Event{{ControlEvent::Kind::peer_lost, Rank(1), "killed"}},
          Event{{ControlEvent::Kind::job_ended, std::nullopt, ""}},
          Report{"RuntimeError: out of memory"},
          Leave{},
          Goodbye{}};
}

std::span<const std::byte> payload_of(const std::vector<std::byte>& encoded) {
  return std::span(encoded).subspan(sizeof(std::uint32_t));
}

}  // namespace

TEST_CASE("messages: what is written is read back") {
  for (const Message& message : samples()) {
    const auto bytes = encode(message);
    const auto back = decode(payload_of(bytes));
    REQUIRE(back);
    CHECK(back->index() == message.index());
    // Everything is written from the fields, so equal bytes mean equal fields.
    CHECK(encode(*back) == bytes);
  }
  const auto join = std::get<Join>(*decode(payload_of(encode(samples()[4]))));
  CHECK(join.rank == Rank(2));
  CHECK(join.wait_ms == 1500);
  CHECK(join.member.pid == 102);
  CHECK(join.member.addresses[1] == Address{"fd00::1", 4712});
  const auto refuse = std::get<Refuse>(*decode(payload_of(encode(samples()[6]))));
  CHECK(refuse.error.kind == ErrorKind::timeout);
  CHECK(refuse.error.peer == Rank(3));
}

TEST_CASE("messages: no prefix of a message and nothing longer is a message") {
  for (const Message& message : samples()) {
    auto bytes = encode(message);
    const auto payload = payload_of(bytes);
    for (std::size_t length = 0; length < payload.size(); ++length) {
      CHECK_FALSE(decode(payload.first(length)));
    }
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode(payload_of(bytes)));
  }
}

TEST_CASE("messages: damaged and random bytes are errors or messages, never anything else") {
  std::mt19937 random(20260101);
  for (int round = 0; round < 20000; ++round) {
    auto bytes = encode(samples()[random() % samples().size()]);
    for (int hits = 0; hits < 3; ++hits)
      bytes[random() % bytes.size()] = std::byte(random() % 256);
    const auto message = decode(payload_of(bytes));
    if (message) (void)encode(*message);
  }
  SUCCEED();
}

TEST_CASE("messages: a count of a million members costs nothing") {
  std::vector<std::byte> bytes(1 + 16 + 4 + 4, std::byte{0});
  bytes[0] = std::byte{1};  // Welcome.
  const std::uint32_t count = 60000;
  std::memcpy(bytes.data() + 21, &count, sizeof count);
  CHECK_FALSE(decode(bytes));
}

TEST_CASE("messages: long text is cut, not refused") {
  const auto back = decode(payload_of(encode(Report{std::string(100000, 'x')})));
  REQUIRE(back);
  CHECK(std::get<Report>(*back).text.size() == 4096);
}

TEST_CASE("messages: a reader finds messages wherever the stream is cut") {
  std::vector<std::byte> stream;
  for (const Message& message : samples()) {
    const auto bytes = encode(message);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  for (std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{50}, stream.size()}) {
    MessageReader reader(kMaxMessageToWorker);
    std::vector<std::size_t> kinds;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      reader.feed(std::span(stream).subspan(at, std::min(step, stream.size() - at)));
      for (;;) {
        auto message = reader.next();
        REQUIRE(message);
        if (!*message) break;
        kinds.push_back((*message)->index());
      }
    }
    REQUIRE(kinds.size() == samples().size());
    for (std::size_t i = 0; i < kinds.size(); ++i)
      CHECK(kinds[i] == samples()[i].index());
  }
}

TEST_CASE("messages: a reader refuses a length beyond its bound at once") {
  MessageReader reader(kMaxMessageToServer);
  const std::uint32_t length = kMaxMessageToServer + 1;
  reader.feed(std::as_bytes(std::span(&length, 1)));
  CHECK_FALSE(reader.next());
}

}  // namespace hora::test
