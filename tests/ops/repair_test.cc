// A rank dies at any task of any template, and the others finish: the walk of repair_walk.h over
// all transports, and a second death at any step of the repair.
#include <catch2/catch.hpp>

#include "tests/support/repair_walk.h"

namespace hora::test {
namespace {

constexpr int kSize = WalkCalls::kSize;

}  // namespace

TEST_CASE("repair: a rank dies at any task of any template, and the others finish") {
  for (const char* transport : {"loopback", "shm", "two hosts"}) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective == Collective::broadcast || is_private(row)) continue;
      INFO(transport << " " << row.name);
      for (int victim = 0; victim < kSize; ++victim) {
        const RepairCall call{&row, 0, 0, 0};
        walk({.transport = transport}, {call, call}, victim);
      }
    }
  }
}

TEST_CASE("repair: a broadcast goes on from a root that lives") {
  for (const char* transport : {"loopback", "shm", "two hosts"}) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective != Collective::broadcast) continue;
      INFO(transport << " " << row.name);
      for (int victim = 0; victim < kSize; ++victim) {
        const RepairCall call{&row, (victim + 1) % kSize, 0, 0};
        walk({.transport = transport}, {call, call}, victim);
      }
    }
  }
}

TEST_CASE("repair: collectives of all kinds on two lanes, and results are copied") {
  const std::vector<RepairCall> calls = calls_of_all_kinds();
  for (const char* transport : {"loopback", "shm", "two hosts"}) {
    std::size_t copies = 0;
    for (int victim = 0; victim < 3; ++victim)
      copies += walk({.transport = transport}, calls, victim);
    CHECK(copies > 0);
  }
}

TEST_CASE("repair: a second rank dies at any step of the first one's repair") {
  std::size_t second_deaths = 0;
  for (const char* transport : {"loopback", "shm", "two hosts"}) {
    for (const AlgorithmRow& row : algorithms()) {
      if (is_private(row) || row.collective == Collective::barrier) continue;
      INFO(transport << " " << row.name);
      const RepairCall call{&row, 3, 0, 0};
      for (const int victim : {0, 2}) {  // 0: whoever coordinates; then 1 or 0 dies as well.
        const std::uint64_t task = victim == 0 ? 9 : 6;
        WalkedDeath walked{.died = true, .second = true};
        for (int step = 0; walked.died && walked.second; ++step) {
          walked = run_with_death({.transport = transport}, {call, call}, victim, task,
                                  step % 2 == 0, step);
          second_deaths += walked.second ? 1 : 0;
        }
      }
    }
  }
  CHECK(second_deaths > 300);
}

TEST_CASE("repair: another rank dies while the first death is repaired") {
  const std::vector<RepairCall> calls = calls_of_all_kinds();
  int second_deaths = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    RepairSet set({.transport = seed % 2 == 0 ? "loopback" : "shm"});
    WalkCalls memory(set, calls, seed % 3 == 0);
    const int first = static_cast<int>(random() % 3);
    const int second = (first + 1 + static_cast<int>(random() % 2)) % 3;
    set.die_soon(first, static_cast<int>(random() % 60));
    set.run(random);
    if (set[first].alive) continue;
    memory.collect();
    set.die_soon(second, static_cast<int>(random() % 80));
    memory.repair(random);
    set.run(random);
    memory.collect();
    if (!set[second].alive) {
      ++second_deaths;
      if (set.place_of(second) < static_cast<int>(set.members().size())) {
        memory.repair(random);
        set.run(random);
        memory.collect();
      }
    }
    memory.check();
  }
  CHECK(second_deaths > 50);
}

}  // namespace hora::test
