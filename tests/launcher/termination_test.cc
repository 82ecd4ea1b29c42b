// Termination: the end of a job, played through with time as an argument.
//
// Each case is a story: what happened, what is alive, what time it is; and what
// horarun must then do.
#include "launcher/termination.h"

#include <csignal>
#include <random>

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Phase = Termination::Phase;
using Order = Termination::Order;

constexpr TimePoint kStart{};
const Failure kKilled = {Rank(2), {true, SIGKILL, false}};

TEST_CASE("a job whose workers all succeed is over with code 0") {
  Termination job({});
  CHECK(job.step({2, false}, kStart) == Order::none);
  CHECK(job.step({1, false}, kStart + 100s) == Order::none);
  CHECK_FALSE(job.deadline().has_value());
  CHECK(job.step({0, false}, kStart + 200s) == Order::none);
  CHECK(job.phase() == Phase::over);
  CHECK(job.exit_code() == 0);
}

TEST_CASE("after a failure the others get notice, then SIGTERM, then SIGKILL") {
  Termination job({});
  job.on_failure(kKilled, kStart);
  CHECK(job.step({3, false}, kStart) == Order::none);
  CHECK(job.deadline() == kStart + 500ms);
  CHECK_FALSE(job.asked());
  CHECK(job.step({3, false}, kStart + 500ms) == Order::ask);
  CHECK(job.asked());
  CHECK(job.step({3, false}, kStart + 5499ms) == Order::none);
  CHECK(job.step({3, true}, kStart + 5500ms) == Order::kill);
  CHECK(job.step({0, false}, kStart + 5600ms) == Order::none);
  CHECK(job.phase() == Phase::over);
  CHECK(job.exit_code() == 137);
  CHECK_FALSE(job.gave_up());
}

TEST_CASE("workers that end within the notice are not signalled") {
  Termination job({});
  job.on_failure(kKilled, kStart);
  job.on_failure({Rank(0), {false, 1, false}}, kStart + 100ms);
  CHECK(job.step({0, false}, kStart + 200ms) == Order::none);
  CHECK(job.phase() == Phase::over);
  CHECK_FALSE(job.asked());
  CHECK(job.failure()->rank == Rank(2));
  CHECK(job.exit_code() == 137);
}

TEST_CASE("the first failure decides the code, not what follows") {
  Termination job({});
  job.on_failure({Rank(1), {false, 3, false}}, kStart);
  job.on_signal(SIGINT, kStart + 1ms);
  CHECK(job.step({1, false}, kStart + 1ms) == Order::ask);
  CHECK(job.exit_code() == 3);
}

TEST_CASE("the worker that gave last words is the cause, though others end before it") {
  Termination job({});
  job.on_last_words(Rank(2));
  job.on_failure({Rank(0), {false, 1, false}}, kStart);
  CHECK(job.step({2, false}, kStart + 2s) == Order::none);
  job.on_failure({Rank(1), {false, 1, false}}, kStart + 2s);
  job.on_failure({Rank(2), {false, 3, false}}, kStart + 2100ms);
  CHECK(job.step({1, false}, kStart + 2599ms) == Order::none);
  CHECK(job.step({1, false}, kStart + 2600ms) == Order::ask);
  CHECK(job.failure()->rank == Rank(2));
  CHECK(job.exit_code() == 3);
}

TEST_CASE("last words do not excuse the others for ever, nor count after a failure") {
  Termination job({});
  job.on_last_words(Rank(2));
  job.on_last_words(Rank(0));
  job.on_failure({Rank(0), {false, 1, false}}, kStart);
  CHECK(job.step({2, false}, kStart + 3s) == Order::ask);
  job.on_failure({Rank(2), {false, 3, false}}, kStart + 3100ms);
  CHECK(job.failure()->rank == Rank(0));

  Termination other({});
  other.on_failure(kKilled, kStart);
  other.on_last_words(Rank(0));
  other.on_failure({Rank(0), {false, 1, false}}, kStart + 1ms);
  CHECK(other.failure()->rank == Rank(2));
}

TEST_CASE("a signal asks at once and the code is 128 more") {
  Termination job({});
  job.on_signal(SIGINT, kStart);
  CHECK(job.step({2, false}, kStart) == Order::ask);
  job.on_failure({Rank(0), {true, SIGTERM, false}}, kStart + 1ms);
  CHECK_FALSE(job.failure().has_value());
  CHECK(job.step({0, false}, kStart + 2ms) == Order::none);
  CHECK(job.exit_code() == 130);
}

TEST_CASE("workers' ends seen together with the signal are its doing") {
  Termination job({});
  job.on_signal(SIGTERM, kStart);
  job.on_failure({Rank(0), {false, 1, false}}, kStart);
  CHECK(job.step({1, false}, kStart) == Order::ask);
  CHECK(job.exit_code() == 143);
}

TEST_CASE("a second signal kills at once") {
  Termination job({});
  job.on_signal(SIGINT, kStart);
  CHECK(job.step({2, false}, kStart) == Order::ask);
  job.on_signal(SIGINT, kStart + 10ms);
  CHECK(job.step({2, false}, kStart + 10ms) == Order::kill);
}

TEST_CASE("what workers leave behind gets a quiet moment, SIGTERM, and SIGKILL") {
  Termination job({});
  CHECK(job.step({0, true}, kStart) == Order::none);
  CHECK(job.phase() == Phase::leftovers);
  CHECK(job.step({0, true}, kStart + 500ms) == Order::ask);
  CHECK(job.step({0, true}, kStart + 5400ms) == Order::none);
  CHECK(job.step({0, true}, kStart + 5500ms) == Order::kill);
  CHECK(job.step({0, false}, kStart + 5501ms) == Order::none);
  CHECK(job.phase() == Phase::over);
  CHECK(job.exit_code() == 0);
}

TEST_CASE("left processes do not get more time than the grace after a failure") {
  Termination job({});
  job.on_failure(kKilled, kStart);
  CHECK(job.step({1, false}, kStart + 500ms) == Order::ask);
  CHECK(job.step({0, true}, kStart + 5300ms) == Order::none);
  CHECK(job.phase() == Phase::leftovers);
  CHECK(job.step({0, true}, kStart + 5500ms) == Order::kill);
}

TEST_CASE("killing is repeated, since children come to us one generation at a time") {
  Termination job({});
  job.on_abandoned(kStart);
  CHECK(job.step({2, false}, kStart) == Order::kill);
  CHECK(job.step({0, true}, kStart + 1ms) == Order::none);
  CHECK(job.step({0, true}, kStart + 20ms) == Order::kill);
}

TEST_CASE("what cannot be killed is given up after a bounded time") {
  Termination job({});
  job.on_abandoned(kStart);
  CHECK(job.step({0, true}, kStart) == Order::kill);
  CHECK(job.step({0, true}, kStart + 9900ms) == Order::kill);
  CHECK(job.step({0, true}, kStart + 10s) == Order::none);
  CHECK(job.phase() == Phase::over);
  CHECK(job.gave_up());
}

TEST_CASE("property: whatever happens, a disturbed job is over in bounded time") {
  const auto seed = GENERATE(range(0u, 300u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  Termination job({});
  Census alive = {4, false};
  TimePoint now = kStart;
  job.on_failure(kKilled, now);
  bool killed = false;
  for (int step = 0; step < 20000 && job.phase() != Phase::over; ++step) {
    const Order order = job.step(alive, now);
    killed = killed || order == Order::kill;
    // Nothing here dies of SIGTERM; SIGKILL takes one generation after the other, or nobody at all.
    if (order == Order::kill && seed % 3 != 0) {
      if (alive.workers > 0)
        alive = {0, true};
      else if (random() % 4 == 0)
        alive.others = false;
    }
    if (random() % 50 == 0 && alive.workers > 0 && --alive.workers == 0) alive.others = true;
    if (random() % 100 == 0) job.on_signal(SIGTERM, now);
    if (random() % 200 == 0) job.on_failure({Rank(0), {false, 1, false}}, now);
    now += std::chrono::milliseconds(1 + random() % 30);
  }
  CHECK(job.phase() == Phase::over);
  CHECK(killed);
  CHECK(now - kStart < 17s);
  CHECK(job.exit_code() == 137);
  CHECK(job.gave_up() == (alive.workers > 0 || alive.others));
}

}  // namespace
}  // namespace hora
