// Frames between horarun and its agents: every message comes back as it was, in any cutting of the
// stream, and nothing else is taken for one.
#include "launcher/agent_messages.h"

#include <csignal>
#include <random>

#include <catch2/catch.hpp>

namespace hora {
namespace {

Prepare some_job() {
  Prepare job;
  job.job = "job";
  job.secret = std::string("s\0t", 3);
  job.endpoints = {"10.0.0.1:5", "[::1]:6"};
  job.arguments = {"python", "", "a b"};
  job.environment = {"A=1", "B=" + std::string(100'000, 'x')};
  job.directory = "/work";
  job.slots = {{"b", Rank(2), 4, 0, 2, 1, 2}, {"b", Rank(3), 4, 1, 2, 1, 2}};
  job.patience_ms = 7;
  job.silence_ms = 8;
  return job;
}

std::vector<ToAgent> orders() {
  return {some_job(),
          StartWorkers{},
          SignalWorkers{SignalWorkers::Target::everything, SIGKILL},
          StdinBytes{std::string(1, '\0')},
          StdinBytes{},
          Consumed{1ull << 40},
          Ping{},
          Finish{}};
}

std::vector<FromAgent> answers() {
  return {Hello{kAgentProtocol, "0.1", "/bin/horarun", "b", "10.0.0.1"},
          Ready{"10.0.0.1:5", "10.0.0.2", {"note"}},
          Refused{127, "no"},
          Started{Rank(3), 1ll << 40},
          OutputBytes{Rank(2), Stream::err, "bytes\n"},
          OutputEnd{Rank(2), Stream::out},
          Exited{Rank(2), {true, SIGSEGV, true, false}},
          HostCensus{3, true},
          StdinTaken{},
          Pong{},
          Note{""}};
}

template <class Message>
std::string stream_of(const std::vector<Message>& messages) {
  std::string bytes;
  for (const Message& message : messages)
    bytes += encode(message);
  return bytes;
}

// What comes out when the stream is fed in pieces of `step` bytes: each message encoded again.
template <class Message>
std::vector<std::string> read_back(std::string_view bytes, std::size_t step) {
  FrameReader<Message> reader;
  std::vector<std::string> seen;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    reader.feed(bytes.substr(at, step));
    while (true) {
      auto message = reader.next();
      REQUIRE(message);
      if (!*message) break;
      seen.push_back(encode(**message));
    }
  }
  return seen;
}

template <class Message>
void check_all_cuts(const std::vector<Message>& messages) {
  std::vector<std::string> expected;
  for (const Message& message : messages)
    expected.push_back(encode(message));
  const std::string bytes = stream_of(messages);
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, bytes.size()}) {
    CAPTURE(step);
    CHECK(read_back<Message>(bytes, step) == expected);
  }
}

TEST_CASE("agent messages: all of them survive any cutting of the stream") {
  check_all_cuts(orders());
  check_all_cuts(answers());
}

TEST_CASE("agent messages: fields arrive in their places") {
  FrameReader<ToAgent> reader;
  reader.feed(encode(ToAgent(some_job())));
  const auto message = reader.next();
  const Prepare& job = std::get<Prepare>(**message);
  CHECK(job.secret == some_job().secret);
  CHECK(job.endpoints == some_job().endpoints);
  CHECK(job.environment == some_job().environment);
  CHECK(job.slots == some_job().slots);
  CHECK(job.silence_ms == 8);
  FrameReader<FromAgent> answers_reader;
  answers_reader.feed(encode(FromAgent(Exited{Rank(2), {true, SIGSEGV, true, false}})));
  const auto answer = answers_reader.next();
  CHECK(std::get<Exited>(**answer).status == ExitStatus{true, SIGSEGV, true, false});
}

TEST_CASE("agent messages: a frame with a wrong length, kind or field is refused") {
  const auto refused = [](std::string bytes) {
    FrameReader<ToAgent> reader;
    reader.feed(bytes);
    return !reader.next().has_value();
  };
  std::string ping = encode(ToAgent(Ping{}));
  CHECK_FALSE(refused(ping));
  CHECK(refused(std::string(5, '\0')));
  CHECK(refused(std::string(5, '\xff')));
  std::string unknown = ping;
  unknown[4] = 99;
  CHECK(refused(unknown));
  std::string longer = ping + "x";
  longer[0] = 2;
  CHECK(refused(longer));
  std::string signal = encode(ToAgent(SignalWorkers{SignalWorkers::Target::each, SIGTERM}));
  signal[5] = 3;
  CHECK(refused(signal));
  CHECK(refused(encode(ToAgent(SignalWorkers{SignalWorkers::Target::each, 0}))));
  CHECK(refused(encode(ToAgent(SignalWorkers{SignalWorkers::Target::each, 1000}))));
}

TEST_CASE("agent messages: damaged bytes never make a reader wander") {
  std::mt19937 random(5);
  const std::string bytes = stream_of(answers());
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = bytes;
    for (int hits = 0; hits < 3; ++hits)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    FrameReader<FromAgent> reader;
    reader.feed(damaged);
    std::size_t messages = 0;
    while (true) {
      auto message = reader.next();
      if (!message || !*message) break;
      REQUIRE(++messages <= damaged.size());
    }
  }
}

}  // namespace
}  // namespace hora
