// The plan of a lane, for reports written down by hand and for random ones.
//
// The oracle of the random ones is the rule in its other form: one line through the lane, copies
// below it and redoes above it, instead of collective by collective.
#include "elastic/resolution.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <catch2/catch.hpp>

namespace hora::test {

namespace {

constexpr std::uint32_t kWindow = 4;

LaneCollective collective(std::uint64_t begin, std::uint64_t end, Ending ending = Ending::halves) {
  return {{begin, end}, ending, {}, {std::byte{7}}};
}

/// What a member says that is at `done`, has started up to `started` and knows of `lane`.
LaneReport report(std::uint64_t done, std::uint64_t started, std::uint64_t floor,
                  const std::vector<LaneCollective>& lane) {
  LaneReport said{done, started, floor, {}};
  for (const LaneCollective& one : lane) {
    if (one.at.end > floor && one.at.begin < std::max(done, started)) {
      said.collectives.push_back(one);
    }
  }
  return said;
}

std::vector<std::int32_t> ranks(std::size_t count) {
  std::vector<std::int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Result<LanePlan> plan_of(const std::vector<LaneReport>& reports) {
  return plan_resolution(reports, ranks(reports.size()), kWindow);
}

/// Where copies end and redoes begin, by the rule of one line.
std::uint64_t line_of(const std::vector<LaneReport>& reports,
                      const std::vector<LaneCollective>& lane) {
  std::uint64_t lowest = reports[0].done, highest = 0;
  for (const LaneReport& said : reports) {
    lowest = std::min(lowest, said.done);
    highest = std::max(highest, said.done);
  }
  for (const LaneCollective& one : lane) {
    if (lowest >= one.at.end || one.ending == Ending::halves) continue;
    const bool complete = one.ending == Ending::whole && highest >= one.at.end;
    if (!complete) return highest > one.at.begin ? one.at.begin : highest;
  }
  return highest;
}

}  // namespace

TEST_CASE("resolution: what one has is copied, what one has started is redone, the rest is new") {
  const std::vector lane = {collective(0, 4), collective(4, 7), collective(7, 9)};
  const auto plan = plan_of({report(3, 6, 2, lane), report(2, 4, 2, lane), report(5, 6, 2, lane)});
  REQUIRE(plan);
  CHECK(plan->done == std::vector<std::uint64_t>{3, 2, 5});
  REQUIRE(plan->collectives.size() == 2);
  CHECK(plan->collectives[0].copy == Positions{2, 4});
  CHECK(plan->collectives[0].redo.empty());
  CHECK(plan->collectives[1].copy == Positions{4, 5});
  CHECK(plan->collectives[1].redo == Positions{5, 7});
  CHECK(plan->next == 7);
  CHECK(plan->giver(plan->collectives[0], 2) == 0);  // Two hold it, and take turns.
  CHECK(plan->giver(plan->collectives[0], 3) == 2);
  CHECK(plan->giver(plan->collectives[1], 4) == 2);
}

TEST_CASE("resolution: where nothing was in flight there is nothing to do") {
  for (const auto& reports :
       {std::vector{report(0, 0, 0, {}), report(0, 0, 0, {})},
        std::vector{report(9, 9, 9, {collective(7, 9)}), report(9, 9, 8, {collective(7, 9)})}}) {
    const auto plan = plan_of(reports);
    REQUIRE(plan);
    CHECK(plan->collectives.empty());
    CHECK(plan->next == reports[0].done);
  }
}

TEST_CASE("resolution: a single survivor redoes what it lacks alone") {
  const auto plan = plan_of({report(5, 8, 4, {collective(3, 6), collective(6, 9)})});
  REQUIRE(plan);
  REQUIRE(plan->collectives.size() == 2);
  CHECK(plan->collectives[0].copy.empty());
  CHECK(plan->collectives[0].redo == Positions{5, 6});
  CHECK(plan->collectives[1].redo == Positions{6, 9});
}

TEST_CASE("resolution: an all-gather is copied if one has all of it, else restarted") {
  const std::vector lane = {collective(2, 5, Ending::whole)};
  const auto copied = plan_of({report(5, 5, 2, lane), report(3, 5, 2, lane)});
  REQUIRE(copied);
  CHECK(copied->collectives[0].copy == Positions{3, 5});
  CHECK(copied->collectives[0].redo.empty());

  const auto restarted = plan_of({report(4, 5, 2, lane), report(3, 5, 2, lane)});
  REQUIRE(restarted);
  CHECK(restarted->collectives[0].copy.empty());
  CHECK(restarted->collectives[0].redo == Positions{2, 5});
  CHECK(restarted->done == std::vector<std::uint64_t>{2, 2});
}

TEST_CASE("resolution: a private collective is restarted unless all have it") {
  const std::vector lane = {collective(0, 2, Ending::shut), collective(2, 4)};
  const auto restarted = plan_of({report(2, 2, 0, lane), report(1, 2, 0, lane)});
  REQUIRE(restarted);
  CHECK(restarted->collectives[0].redo == Positions{0, 2});
  CHECK(restarted->done == std::vector<std::uint64_t>{0, 0});

  const auto complete = plan_of({report(2, 3, 0, lane), report(2, 2, 0, lane)});
  REQUIRE(complete);
  CHECK(complete->done == std::vector<std::uint64_t>{2, 2});
  REQUIRE(complete->collectives.size() == 1);
  CHECK(complete->collectives[0].redo == Positions{2, 4});
}

TEST_CASE("resolution: who is outside of a group passes its positions and holds nothing of them") {
  // Ranks 0, 1 run the first collective, ranks 2, 3 the second; rank 1 has died.
  std::vector lane = {collective(0, 2), collective(2, 4)};
  lane[0].group = {0, 1};
  lane[1].group = {2, 3};
  const auto plan = plan_resolution(
      {report(1, 2, 0, lane), report(4, 4, 0, lane), report(2, 3, 0, lane)}, {0, 2, 3}, kWindow);
  REQUIRE(plan);
  REQUIRE(plan->collectives.size() == 2);
  CHECK(plan->collectives[0].collective.group == std::vector<std::int32_t>{0});
  CHECK(plan->collectives[0].copy.empty());
  CHECK(plan->collectives[0].redo == Positions{1, 2});
  CHECK(plan->collectives[1].collective.group == std::vector<std::int32_t>{1, 2});
  CHECK(plan->collectives[1].copy == Positions{2, 4});
  CHECK(plan->giver(plan->collectives[1], 3) == 1);
  CHECK(plan->next == 4);
}

TEST_CASE("resolution: a group that has died out leaves positions that nobody runs") {
  std::vector lane = {collective(0, 2)};
  lane[0].group = {1};
  const auto plan =
      plan_resolution({report(1, 2, 0, lane), report(2, 2, 0, lane)}, {0, 2}, kWindow);
  REQUIRE(plan);
  CHECK(plan->collectives[0].collective.group.empty());
  CHECK(plan->next == 2);
}

TEST_CASE("resolution: reports that contradict each other are refused") {
  const std::vector lane = {collective(0, 4), collective(4, 9)};
  const std::vector other = {collective(0, 4, Ending::whole)};
  const std::vector shut = {collective(0, 2, Ending::shut), collective(2, 4)};
  const std::vector wrong = {
      std::vector{report(0, 1, 0, lane), report(5, 6, 0, lane)},    // too far apart
      std::vector{report(0, 2, 0, lane), report(1, 2, 0, other)},   // different
      std::vector{report(3, 4, 3, lane), LaneReport{4, 6, 4, {}}},  // nobody names the second
      std::vector{report(3, 3, 0, shut), report(1, 2, 0, shut)},    // beyond what was shut
      std::vector{LaneReport{0, 1, 0, {{{0, 0}, Ending::halves, {}, {}}}}}  // nothing
  };
  for (const auto& reports : wrong) {
    const auto plan = plan_of(reports);
    REQUIRE_FALSE(plan);
    CHECK(plan.error().kind == ErrorKind::protocol);
  }
  CHECK_FALSE(plan_resolution({}, {}, kWindow));
}

TEST_CASE("resolution: random lanes are cut by one line, copies below and redoes above") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    std::vector<LaneCollective> lane;
    std::uint64_t end = random() % 3;
    while (lane.size() < 5) {
      const std::uint64_t begin = end;
      end += 1 + random() % 4;
      lane.push_back(collective(begin, end, random() % 3 == 0 ? Ending::whole : Ending::halves));
    }
    const std::uint64_t lowest = lane[0].at.begin + random() % (end - kWindow - lane[0].at.begin);
    std::vector<LaneReport> reports;
    for (std::size_t member = 0; member < 1 + random() % 4; ++member) {
      const std::uint64_t done = member == 0 ? lowest : lowest + random() % (kWindow + 1);
      const std::uint64_t started = std::min(lowest + kWindow, done + random() % (kWindow + 1));
      reports.push_back(
          report(done, std::max(done, started), lowest - random() % (lowest + 1), lane));
    }
    const auto plan = plan_of(reports);
    REQUIRE(plan);
    const std::uint64_t line = line_of(reports, lane);
    for (const Resolved& resolved : plan->collectives) {
      const auto [begin, finish] = resolved.collective.at;
      const Positions copy{std::clamp(lowest, begin, finish), std::clamp(line, begin, finish)};
      const Positions redo{std::clamp(line, begin, finish), finish};
      CHECK(resolved.redo.empty() == redo.empty());
      if (!redo.empty()) CHECK(resolved.redo == redo);
      CHECK(resolved.copy.empty() == copy.empty());
      if (!copy.empty()) CHECK(resolved.copy == copy);
      for (std::uint64_t p = resolved.copy.begin; p < resolved.copy.end; ++p) {
        CHECK(reports[plan->giver(resolved, p)].done > p);
      }
    }
  }
}

}  // namespace hora::test
