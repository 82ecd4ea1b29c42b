// The decisions of the rendezvous, without a socket.
//
// Connection 10 + r belongs to rank r; the test says what time it is and reads what the rendezvous
// would send, close and tell.
#include "elastic/rendezvous.h"

#include <catch2/catch.hpp>

namespace hora::test {

namespace {

using Kind = RendezvousAction::Kind;

/// A rendezvous, a clock, and what was said to whom.
class Stage {
 public:
  explicit Stage(int size, Duration grace = 0ms)
      : rendezvous_({size, {}, 2s, grace, [](const Member&) { return "state T (stopped)"; }}) {}

  static Member member(int rank, std::int64_t pid) {
    Member member;
    member.worker = make_worker_id();
    member.pid = pid;
    member.host_name = "node1";
    member.host_id = "boot";
    (void)rank;
    return member;
  }
  void join(int rank, ConnectionId connection, const Member& who, int size = 0) {
    take(rendezvous_.on_message(connection, Join{Rank(rank), size == 0 ? 3 : size, 60000, who},
                                now));
  }
  /// All of three ranks join on connections `base` + rank.
  void join_all(ConnectionId base = 10) {
    for (int rank = 0; rank < 3; ++rank) {
      join(rank, base + static_cast<ConnectionId>(rank), member(rank, 100 + rank));
    }
  }
  void hear(ConnectionId from, const Message& message) {
    take(rendezvous_.on_message(from, message, now));
  }
  void close(ConnectionId connection) { take(rendezvous_.on_closed(connection, now)); }
  void exit(int rank, const std::string& text) { take(rendezvous_.on_exit(Rank(rank), text, now)); }
  void end(const std::string& text) { take(rendezvous_.on_end(text)); }
  void stop() { take(rendezvous_.on_stop()); }
  /// Time passes, ticks come when they are due, and `alive` send heartbeats.
  void pass(Duration duration, const std::vector<ConnectionId>& alive) {
    for (const TimePoint until = now + duration; now < until;) {
      now += 100ms;
      for (const ConnectionId connection : alive)
        hear(connection, Heartbeat{});
      if (const auto due = rendezvous_.next_deadline(); due && now >= *due) {
        take(rendezvous_.on_tick(now));
      }
    }
  }

  /// Messages of one kind to a connection.
  template <class T>
  [[nodiscard]] std::vector<T> said(ConnectionId to) const {
    std::vector<T> found;
    for (const auto& action : log) {
      if (action.kind != Kind::send || action.connection != to) continue;
      auto message = decode(std::span(*action.bytes).subspan(4));
      if (message && std::holds_alternative<T>(*message)) found.push_back(std::get<T>(*message));
    }
    return found;
  }
  [[nodiscard]] std::vector<RendezvousAction> told(Kind kind) const {
    std::vector<RendezvousAction> found;
    for (const auto& action : log) {
      if (action.kind == kind) found.push_back(action);
    }
    return found;
  }
  [[nodiscard]] bool closed(ConnectionId connection) const {
    for (const auto& action : log) {
      if (action.kind == Kind::close && action.connection == connection) return true;
    }
    return false;
  }

  TimePoint now{};
  std::vector<RendezvousAction> log;

 private:
  void take(Rendezvous::Actions actions) {
    for (auto& action : actions)
      log.push_back(std::move(action));
  }
  Rendezvous rendezvous_;
};

}  // namespace

TEST_CASE("rendezvous: the World is made when the last rank joins, in rank order") {
  Stage stage(3);
  const Member late = Stage::member(0, 7);
  stage.join(2, 12, Stage::member(2, 9));
  stage.join(1, 11, Stage::member(1, 8));
  CHECK(stage.log.empty());
  stage.join(0, 10, late);
  for (const ConnectionId connection : {10, 11, 12}) {
    const auto welcomes = stage.said<Welcome>(connection);
    REQUIRE(welcomes.size() == 1);
    CHECK(welcomes[0].world.epoch == Epoch(1));
    REQUIRE(welcomes[0].world.size() == 3);
    CHECK(welcomes[0].world.members[0].worker == late.worker);
    CHECK(welcomes[0].world.members[2].pid == 9);
  }
  CHECK(stage.told(Kind::formed).size() == 1);
}

TEST_CASE("rendezvous: the second process of a rank is refused, by name; the first stays") {
  Stage stage(3);
  stage.join(2, 12, Stage::member(2, 17));
  stage.join(2, 13, Stage::member(2, 18));
  const auto refused = stage.said<Refuse>(13);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error.message ==
        "two processes say they are rank 2: pid 17 on node1 came first, pid 18 on node1 is "
        "refused; every process needs a rank of its own");
  CHECK(stage.closed(13));
  CHECK_FALSE(stage.closed(12));
  stage.join(0, 10, Stage::member(0, 1));
  stage.join(1, 11, Stage::member(1, 2));
  CHECK(stage.said<Welcome>(12).size() == 1);
}

TEST_CASE("rendezvous: a rank of a running job cannot be taken by another process") {
  Stage stage(3);
  stage.join_all();
  stage.join(1, 21, Stage::member(1, 999));
  REQUIRE(stage.said<Refuse>(21).size() == 1);
  CHECK_THAT(stage.said<Refuse>(21)[0].error.message,
             Catch::Contains("pid 101 on node1 came first"));
}

TEST_CASE("rendezvous: ranks that disagree about the size are told both numbers") {
  Stage stage(3);
  stage.join(1, 11, Stage::member(1, 8), 5);
  REQUIRE(stage.said<Refuse>(11).size() == 1);
  CHECK(stage.said<Refuse>(11)[0].error.message ==
        "rank 1 (pid 8 on node1) was started for a job of 5 ranks, but the job that meets here has "
        "3");
}

TEST_CASE("rendezvous: a time-out names who is missing and who is here") {
  Stage stage(3);
  stage.join(0, 10, Stage::member(0, 7));
  stage.join(1, 11, Stage::member(1, 8));
  stage.close(11);
  stage.pass(61s, {});
  const auto refused = stage.said<Refuse>(10);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].error.kind == ErrorKind::timeout);
  CHECK(refused[0].error.message ==
        "not all of the 3 ranks have come. Missing: 1 (came and went: rank 1 (pid 8 on node1)), 2. "
        "Here: 0 (pid 7 on node1). Look at the output of the missing ranks, or raise "
        "HORA_START_TIMEOUT_MS");
}

TEST_CASE("rendezvous: the end of a connection without Leave is a loss, told to the others") {
  Stage stage(3);
  stage.join_all();
  stage.hear(11, Report{"RuntimeError: boom"});
  stage.close(11);
  for (const ConnectionId other : {10, 12}) {
    const auto events = stage.said<Event>(other);
    REQUIRE(events.size() == 1);
    CHECK(events[0].event.kind == ControlEvent::Kind::peer_lost);
    CHECK(events[0].event.peer == Rank(1));
    CHECK(events[0].event.text == "its process has ended; its last words: RuntimeError: boom");
  }
  CHECK(stage.told(Kind::report)[0].text == "RuntimeError: boom");
  CHECK(stage.told(Kind::lost)[0].text ==
        "rank 1 (pid 101 on node1): its process has ended; its last words: RuntimeError: boom");
}

TEST_CASE("rendezvous: with a launcher the end of a connection waits for its explanation") {
  Stage stage(3, 100ms);
  stage.join_all();
  stage.close(11);
  CHECK(stage.said<Event>(10).empty());
  SECTION("which comes") {
    stage.exit(1, "killed by signal 9 (Killed)");
  }
  SECTION("or does not") {
    stage.pass(200ms, {10, 12});
  }
  stage.pass(1s, {10, 12});
  const auto events = stage.said<Event>(10);
  REQUIRE(events.size() == 1);
  CHECK((events[0].event.text == "killed by signal 9 (Killed)" ||
         events[0].event.text == "its process has ended"));
}

TEST_CASE("rendezvous: who leaves is not lost, and the last one out is told to the owner") {
  Stage stage(3);
  stage.join_all();
  for (const ConnectionId connection : {11, 10, 12}) {
    CHECK(stage.told(Kind::all_left).empty());
    stage.hear(connection, Leave{});
    stage.close(connection);
  }
  CHECK(stage.told(Kind::all_left).size() == 1);
  CHECK(stage.told(Kind::lost).empty());
  CHECK(stage.said<Event>(12).empty());
}

TEST_CASE("rendezvous: a rank that is silent is named with what the kernel says, and may return") {
  Stage stage(3);
  stage.join_all();
  stage.pass(5s, {10, 12});
  auto events = stage.said<Event>(10);
  REQUIRE(events.size() == 1);
  CHECK(events[0].event.kind == ControlEvent::Kind::peer_silent);
  CHECK_THAT(events[0].event.text, Catch::StartsWith("has sent no heartbeat for 2."));
  CHECK_THAT(events[0].event.text, Catch::EndsWith(" s; state T (stopped)"));
  CHECK_THAT(stage.told(Kind::silent)[0].text,
             Catch::StartsWith("rank 1 (pid 101 on node1) has sent no heartbeat for 2."));
  stage.hear(11, Heartbeat{});
  events = stage.said<Event>(10);
  REQUIRE(events.size() == 2);
  CHECK(events[1].event.kind == ControlEvent::Kind::peer_back);
  CHECK(stage.said<Event>(11).empty());
}

TEST_CASE(
    "rendezvous: an exit before the World is there fails everybody who waits, and who comes") {
  Stage stage(3);
  stage.join(0, 10, Stage::member(0, 7));
  stage.exit(2, "exit code 3");
  REQUIRE(stage.said<Refuse>(10).size() == 1);
  CHECK(stage.said<Refuse>(10)[0].error.message ==
        "rank 2 ended before all had started: exit code 3");
  CHECK(stage.said<Refuse>(10)[0].error.peer == Rank(2));
  stage.join(1, 11, Stage::member(1, 8));
  REQUIRE(stage.said<Refuse>(11).size() == 1);
  CHECK_THAT(stage.said<Refuse>(11)[0].error.message,
             Catch::Contains("will not come: exit code 3"));
}

TEST_CASE("rendezvous: the same processes may meet again and again, each time in the next epoch") {
  Stage stage(3);
  for (std::uint32_t round = 1; round <= 50; ++round) {
    const ConnectionId base = 100 * round;
    stage.log.clear();
    stage.join_all(base);
    REQUIRE(stage.said<Welcome>(base).size() == 1);
    CHECK(stage.said<Welcome>(base)[0].world.epoch == Epoch(round));
    CHECK(stage.told(Kind::lost).empty());
    // Rank 2 is fast: it comes again before its Leave and its end have been seen.
    stage.hear(base, Leave{});
    stage.hear(base + 1, Leave{});
  }
}

TEST_CASE("rendezvous: the end of the job reaches members, waiters and latecomers") {
  Stage stage(3);
  stage.join_all();
  stage.join(0, 20, Stage::member(0, 100));
  stage.end("Ctrl-C");
  CHECK(stage.said<Event>(11)[0].event.kind == ControlEvent::Kind::job_ended);
  CHECK(stage.said<Event>(11)[0].event.text == "Ctrl-C");
  CHECK(stage.said<Refuse>(20)[0].error.kind == ErrorKind::shutdown);
  stage.join(1, 21, Stage::member(1, 101));
  CHECK(stage.said<Refuse>(21)[0].error.message == "the job has ended: Ctrl-C");
}

TEST_CASE("rendezvous: an orderly end says goodbye to members only") {
  Stage stage(3);
  stage.join_all();
  stage.join(0, 20, Stage::member(0, 100));
  stage.stop();
  CHECK(stage.said<Goodbye>(11).size() == 1);
  CHECK(stage.said<Goodbye>(20).empty());
  CHECK(stage.closed(20));
}

TEST_CASE("rendezvous: words without a World, or of the wrong sort, end the connection") {
  Stage stage(3);
  stage.hear(10, Heartbeat{});
  CHECK(stage.closed(10));
  stage.join_all(20);
  stage.hear(21, Goodbye{});
  CHECK(stage.closed(21));
}

}  // namespace hora::test
