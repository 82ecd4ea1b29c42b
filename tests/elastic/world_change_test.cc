// Who is in the next World, decided by one place: losses, leavers, late reports and time come in.
//
// A World of four that may shrink to two; reports say that nothing was in flight, but for those
// that are about it.
#include "elastic/world_change.h"

#include <algorithm>

#include <catch2/catch.hpp>

namespace hora::test {

namespace {

constexpr Duration kLimit = 2s;

World world_of(int size, int min_size) {
  World world;
  world.epoch = Epoch(7);
  world.min_size = min_size;
  for (int rank = 0; rank < size; ++rank) {
    Member member;
    member.worker = make_worker_id();
    member.first_rank = rank;
    member.pid = 100 + rank;
    member.host_name = rank % 2 == 0 ? "even" : "odd";
    member.local_rank = rank / 2;
    member.local_size = 2;
    world.members.push_back(std::move(member));
  }
  return world;
}

WorkerReport idle_report(std::uint64_t done = 5) {
  WorkerReport report;
  report.epoch = Epoch(7);
  report.window = 4;
  report.lanes = {{done, done, done, {}}};
  return report;
}

struct Change {
  World world = world_of(4, 2);
  std::unique_ptr<WorldMaker> maker = make_sole_world_maker(world, {world.min_size, kLimit});
  TimePoint now{};

  WorldMaker::Actions lose(int rank) {
    return maker->on_lost(Rank(rank), world.describe(Rank(rank)) + ": killed", now);
  }
  WorldMaker::Actions report(int rank, WorkerReport said = idle_report()) {
    return maker->on_report(Rank(rank), std::move(said), now);
  }
};

std::vector<int> asked(const WorldMaker::Actions& actions) {
  std::vector<int> ranks;
  for (const ChangeAction& action : actions) {
    if (action.kind == ChangeAction::Kind::freeze) ranks.push_back(action.rank.value);
  }
  return ranks;
}

std::shared_ptr<const NextWorld> installed(const WorldMaker::Actions& actions) {
  REQUIRE(actions.size() == 1);
  REQUIRE(actions[0].kind == ChangeAction::Kind::install);
  return actions[0].next;
}

}  // namespace

TEST_CASE("world change: the survivors of a death report, and are the next World in order") {
  Change change;
  CHECK(change.maker->elastic());
  CHECK(asked(change.lose(1)) == std::vector<int>{0, 2, 3});
  CHECK(change.report(3).empty());
  CHECK(change.report(0).empty());
  const auto next = installed(change.report(2));
  CHECK(next->world.epoch == Epoch(8));
  CHECK(next->world.min_size == 2);
  CHECK(next->old_ranks == std::vector<std::int32_t>{0, 2, 3});
  REQUIRE(next->world.size() == 3);
  CHECK(next->world.members[1].first_rank == 2);
  CHECK(next->world.members[1].local_rank == 1);
  CHECK(next->world.members[2].local_rank == 0);  // Alone on its host now.
  CHECK(next->world.members[2].local_size == 1);
  CHECK(next->reason.find("rank 1 (pid 101 on odd): killed") != std::string::npos);
  CHECK_FALSE(change.maker->next_deadline());
}

TEST_CASE("world change: a second death during the reports is part of the same change") {
  Change change;
  (void)change.lose(1);
  (void)change.report(0);
  (void)change.report(3);
  const auto next = installed(change.lose(2));
  CHECK(next->old_ranks == std::vector<std::int32_t>{0, 3});
}

TEST_CASE("world change: a member that had reported and then dies is not waited for") {
  Change change;
  (void)change.lose(1);
  (void)change.report(0);
  CHECK(change.lose(0).empty());
  (void)change.report(2);
  CHECK(installed(change.report(3))->old_ranks == std::vector<std::int32_t>{2, 3});
}

TEST_CASE("world change: with fewer than the least the job is given up, and says who died") {
  Change change;
  (void)change.lose(1);
  (void)change.lose(2);
  const auto actions = change.lose(3);
  REQUIRE(actions.size() == 1);
  CHECK(actions[0].kind == ChangeAction::Kind::give_up);
  for (const char* rank : {"rank 1", "rank 2", "rank 3"})
    CHECK(actions[0].text.find(rank) != std::string::npos);
  CHECK(change.report(0).empty());
}

TEST_CASE("world change: a job that is not elastic is given up at the first death") {
  const World world = world_of(4, 0);
  auto maker = make_sole_world_maker(world, {0, kLimit});
  CHECK_FALSE(maker->elastic());
  const auto actions = maker->on_lost(Rank(2), "gone", {});
  REQUIRE(actions.size() == 1);
  CHECK(actions[0].kind == ChangeAction::Kind::give_up);
}

TEST_CASE("world change: who does not report in time is left out, and told") {
  Change change;
  (void)change.lose(1);
  (void)change.report(0);
  (void)change.report(2);
  CHECK(change.maker->on_tick(change.now + kLimit - 1ms).empty());
  REQUIRE(change.maker->next_deadline() == change.now + kLimit);
  const auto actions = change.maker->on_tick(change.now + kLimit);
  REQUIRE(actions.size() == 2);
  CHECK(actions[0].kind == ChangeAction::Kind::leave_out);
  CHECK(actions[0].rank == Rank(3));
  CHECK(actions[1].next->old_ranks == std::vector<std::int32_t>{0, 2});
  CHECK(change.report(3).empty());  // Too late.
}

TEST_CASE("world change: a member that leaves in order is missed only during a change") {
  Change change;
  CHECK(change.maker->on_left(Rank(3), change.now).empty());
  CHECK(asked(change.lose(1)) == std::vector<int>{0, 2});
  (void)change.report(0);
  CHECK(installed(change.report(2))->old_ranks == std::vector<std::int32_t>{0, 2});
}

TEST_CASE("world change: members that cannot reach each other get a World of the same members") {
  Change change;
  CHECK(asked(change.maker->on_suspect(Rank(0), Rank(3), "reset", change.now)) ==
        std::vector<int>{0, 1, 2, 3});
  CHECK(change.maker->on_suspect(Rank(3), Rank(0), "reset", change.now).empty());
  for (int rank = 0; rank < 3; ++rank)
    (void)change.report(rank);
  CHECK(installed(change.report(3))->old_ranks == std::vector<std::int32_t>{0, 1, 2, 3});
}

TEST_CASE("world change: reports of another World are ignored, those that contradict end the job") {
  Change change;
  (void)change.lose(1);
  WorkerReport old = idle_report();
  old.epoch = Epoch(6);
  CHECK(change.report(0, old).empty());
  (void)change.report(0, idle_report(5));
  (void)change.report(2, idle_report(50));
  const auto actions = change.report(3);
  REQUIRE(actions.size() == 1);
  CHECK(actions[0].kind == ChangeAction::Kind::give_up);
  CHECK(actions[0].text.find("contradict") != std::string::npos);
}

TEST_CASE("world change: answers that somebody has missed go to all, once and in order") {
  Change change;
  (void)change.lose(1);
  WorkerReport ahead = idle_report(), behind = idle_report(), between = idle_report();
  ahead.heard = 9;
  ahead.answers = {{3, {std::byte{1}}}, {7, {std::byte{2}}}, {9, {std::byte{3}}}};
  between.heard = 8;
  between.answers = {{3, {std::byte{1}}}, {7, {std::byte{2}}}};
  behind.heard = 6;
  behind.answers = {{3, {std::byte{1}}}};
  (void)change.report(0, ahead);
  (void)change.report(2, behind);
  const auto next = installed(change.report(3, between));
  REQUIRE(next->answers.size() == 2);
  CHECK(next->answers[0] == KeptAnswer{7, {std::byte{2}}});
  CHECK(next->answers[1] == KeptAnswer{9, {std::byte{3}}});
}

}  // namespace hora::test
