// The walks that guard recovery catch every mutant of the real executor: with one rule taken out,
// some death at some task breaks what they demand. Without a mutant the same sources pass.
#include <functional>
#include <string>

#include <catch2/catch.hpp>

#include "tests/mutants/mutants.h"
#include "tests/support/encoded_repair_walk.h"
#include "tests/support/repair_walk.h"

namespace hora::test {
namespace {

/// What is broken within the walk, or nothing.
std::string broken_by(Mutant which, const std::function<void()>& walk) {
  mutant = which;
  std::string what;
  try {
    walk();
  } catch (const Violation& violation) {
    what = violation.what();
  }
  mutant = Mutant::none;
  return what;
}

/// A rank dies at each of its first tasks, in a template and over a transport.
void walk_plain(const std::string& transport, const char* algorithm) {
  const RepairCall call{find_algorithm(algorithm, Collective::allreduce), 0, 0, 0};
  for (const int victim : {0, 2}) {
    for (std::uint64_t task = 0; task < 60; ++task)
      run_with_death({.transport = transport}, {call, call}, victim, task, task % 2 == 0);
  }
}

void walk_encoded(const char* algorithm) {
  EncodedWalk walk("loopback", *find_algorithm(algorithm, Collective::allreduce), "int8+ef");
  for (std::uint64_t task = 0; task < 120; task += 3)
    walk.dies(2, task);
}

}  // namespace

TEST_CASE("mutants: what is not mutated passes the walks") {
  for (const char* transport : {"loopback", "shm"}) {
    for (const char* algorithm : {"ring", "direct"})
      CHECK(broken_by(Mutant::none, [&] { walk_plain(transport, algorithm); }).empty());
  }
  for (const char* algorithm : {"ring", "direct"})
    CHECK(broken_by(Mutant::none, [&] { walk_encoded(algorithm); }).empty());
}

TEST_CASE("mutants: one rule less, and a death at some task shows it") {
  for (const Mutant which :
       {Mutant::no_freeze, Mutant::early_reuse, Mutant::no_copy, Mutant::early_unpack}) {
    for (const std::string transport : {"loopback", "shm"}) {
      INFO("mutant " << static_cast<int>(which) << " " << transport);
      const std::string what = broken_by(which, [&] {
        walk_plain(transport, "direct");
        walk_plain(transport, "ring");
      });
      UNSCOPED_INFO(what);
      CHECK_FALSE(what.empty());
    }
  }
}

TEST_CASE("mutants: a residual that is committed twice or not at all is seen") {
  for (const Mutant which : {Mutant::residual_twice, Mutant::residual_forgotten}) {
    for (const char* algorithm : {"ring", "direct"}) {
      INFO("mutant " << static_cast<int>(which) << " " << algorithm);
      const std::string what = broken_by(which, [&] { walk_encoded(algorithm); });
      UNSCOPED_INFO(what);
      // What is committed too early goes into the redo as well.
      const bool early = which == Mutant::residual_twice;
      CHECK(what.find(early ? "the results" : "the residuals") != std::string::npos);
    }
  }
}

}  // namespace hora::test
