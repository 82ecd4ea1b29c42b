// The monitor's decisions, with time as the test says.
//
// Ranks 0 and 1 are watched with a limit of 2 s; `pass` lets time go by in steps of 100 ms.
#include "elastic/heartbeat_monitor.h"

#include <catch2/catch.hpp>

namespace hora::test {

namespace {

/// A monitor of ranks 0 and 1 with a limit of 2 s, asked every 100 ms.
struct Watch {
  HeartbeatMonitor monitor{2s};
  TimePoint now{};
  std::vector<HeartbeatMonitor::Silence> silences;

  Watch() {
    monitor.start(Rank(0), now);
    monitor.start(Rank(1), now);
  }
  /// Lets time pass while `alive` beat.
  void pass(Duration duration, const std::vector<Rank>& alive) {
    for (const TimePoint end = now + duration; now < end;) {
      now += 100ms;
      for (const Rank rank : alive)
        monitor.beat(rank, now);
      for (const auto& silence : monitor.check(now))
        silences.push_back(silence);
    }
  }
};

}  // namespace

TEST_CASE("heartbeat: a rank that beats is never named") {
  Watch watch;
  watch.pass(60s, {Rank(0), Rank(1)});
  CHECK(watch.silences.empty());
}

TEST_CASE("heartbeat: a silent rank is named once, when the limit is reached") {
  Watch watch;
  watch.pass(1900ms, {Rank(0)});
  CHECK(watch.silences.empty());
  watch.pass(10s, {Rank(0)});
  REQUIRE(watch.silences.size() == 1);
  CHECK(watch.silences[0].rank == Rank(1));
  CHECK(watch.silences[0].silent_for == 2s);
}

TEST_CASE("heartbeat: who comes back is back once, and may fall silent again") {
  Watch watch;
  watch.pass(3s, {Rank(0)});
  CHECK(watch.monitor.beat(Rank(1), watch.now));
  CHECK_FALSE(watch.monitor.beat(Rank(1), watch.now));
  watch.pass(3s, {Rank(0)});
  CHECK(watch.silences.size() == 2);
}

TEST_CASE("heartbeat: who has stopped is not missed, and a beat of it means nothing") {
  Watch watch;
  watch.monitor.stop(Rank(1));
  watch.pass(10s, {Rank(0)});
  CHECK(watch.silences.empty());
  CHECK_FALSE(watch.monitor.beat(Rank(1), watch.now));
}

TEST_CASE("heartbeat: a monitor that slept blames nobody for it") {
  Watch watch;
  watch.pass(1s, {Rank(0), Rank(1)});
  watch.now += 3600s;
  CHECK(watch.monitor.check(watch.now).empty());
  // From here on silence counts again.
  watch.pass(3s, {Rank(0)});
  REQUIRE(watch.silences.size() == 1);
  CHECK(watch.silences[0].rank == Rank(1));
}

TEST_CASE("heartbeat: a check is due while somebody is watched") {
  HeartbeatMonitor monitor{2s};
  CHECK_FALSE(monitor.next_check());
  monitor.start(Rank(0), TimePoint{});
  REQUIRE(monitor.next_check());
  CHECK(*monitor.next_check() < TimePoint{} + 1s);
  monitor.stop(Rank(0));
  CHECK_FALSE(monitor.next_check());
}

}  // namespace hora::test
