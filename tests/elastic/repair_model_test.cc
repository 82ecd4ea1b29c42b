// All runs of a small lane that is repaired, and the mutants that must not survive them.
//
// Numbers of states are no assertion; that the interesting plans occur is one, because a model that
// never gets there proves nothing.
#include "tests/elastic/repair_model.h"

#include <catch2/catch.hpp>

namespace hora::test {

namespace {

constexpr std::size_t kMostStates = 2'000'000;

std::string text_of(const Exploration& found) {
  std::string text = found.violation + ", after:";
  for (const std::string& step : found.trace)
    text += "\n  " + step;
  return text;
}

Exploration explored_without_violation(const ModelOptions& options) {
  const Exploration found = explore(options, kMostStates);
  INFO(text_of(found));
  CHECK(found.violation.empty());
  CHECK(found.states < kMostStates);
  return found;
}

std::size_t steps_to_violation(Mutant mutant, ModelOptions options) {
  options.mutant = mutant;
  const Exploration found = explore(options, kMostStates);
  REQUIRE_FALSE(found.violation.empty());
  return found.trace.size();
}

constexpr Ending kHalves = Ending::halves, kWhole = Ending::whole, kShut = Ending::shut;

}  // namespace

TEST_CASE("repair model: three members, two crashes, two more Worlds: no rule is ever broken") {
  const Exploration found = explored_without_violation({});
  CHECK(found.most_apart == 2);  // The window is used up.
  CHECK(found.plan_with_both);
  CHECK(found.both_apart);
  CHECK(found.plan_cut_short);
}

TEST_CASE("repair model: four members and one repair") {
  const Exploration found = explored_without_violation({.members = 4, .segments = 2, .worlds = 2});
  CHECK(found.plan_with_both);
}

TEST_CASE("repair model: a chain of collectives of one segment") {
  explored_without_violation({.collectives = {kHalves, kHalves, kHalves, kHalves}, .segments = 1});
}

TEST_CASE("repair model: an all-gather before and behind an all-reduce is restarted whole") {
  for (const auto& collectives : {std::vector{kWhole, kHalves}, std::vector{kHalves, kWhole}}) {
    const Exploration found =
        explored_without_violation({.collectives = collectives, .segments = 2});
    CHECK(found.restarted_whole);
  }
}

TEST_CASE("repair model: a private collective is done by all or redone by all") {
  for (const auto& collectives : {std::vector{kShut, kHalves}, std::vector{kHalves, kShut}}) {
    const Exploration found =
        explored_without_violation({.collectives = collectives, .segments = 2});
    CHECK(found.restarted_whole);
  }
}

TEST_CASE("repair model: whoever breaks a rule is caught") {
  const ModelOptions plain;
  const ModelOptions shut{.collectives = {kShut, kHalves}};
  CHECK(steps_to_violation(Mutant::no_freeze, plain) > 0);
  CHECK(steps_to_violation(Mutant::no_copy, plain) > 0);
  CHECK(steps_to_violation(Mutant::slot_reused_early, plain) > 0);
  CHECK(steps_to_violation(Mutant::window_too_wide, plain) > 0);
  CHECK(steps_to_violation(Mutant::plan_taken_as_done, plain) > 0);
  CHECK(steps_to_violation(Mutant::written_before_freeze, plain) > 0);
  CHECK(steps_to_violation(Mutant::copy_onto_input, plain) > 0);
  CHECK(steps_to_violation(Mutant::no_shut, shut) > 0);
}

}  // namespace hora::test
