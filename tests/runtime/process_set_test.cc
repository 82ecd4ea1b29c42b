// The table of process sets: which ranks can be a set, and under which number.
#include "runtime/process_set.h"

#include <catch2/catch.hpp>

namespace hora {

TEST_CASE("process sets: set 0 is all ranks, others are given the lowest free number") {
  ProcessSets sets(4, {{3, 1}});
  CHECK(sets.global()->ranks == std::vector<std::int32_t>{0, 1, 2, 3});
  REQUIRE(sets.find(SetId(1)));
  CHECK(sets.find(SetId(1))->ranks == std::vector<std::int32_t>{1, 3});
  CHECK(!sets.find(SetId(2)));
  CHECK(!sets.find(SetId(4000000000u)));
  CHECK(sets.free_id() == SetId(2));
  sets.add(sets.free_id(), {0});
  sets.add(sets.free_id(), {1});
  const SharedSet kept = sets.find(SetId(2));
  sets.remove(SetId(2));
  CHECK(kept->ranks == std::vector<std::int32_t>{0});  // for who still runs it
  CHECK(!sets.find(SetId(2)));
  CHECK(sets.free_id() == SetId(2));
  CHECK(sets.all().size() == 3);
  sets.remove(SetId(3));
  CHECK(sets.free_id() == SetId(2));
}

TEST_CASE("process sets: a rank's place in a set") {
  ProcessSets sets(5, {{4, 2, 0}});
  const ProcessSet& some = *sets.find(SetId(1));
  CHECK(some.index_of(Rank(0)) == 0);
  CHECK(some.index_of(Rank(2)) == 1);
  CHECK(some.index_of(Rank(4)) == 2);
  CHECK(some.index_of(Rank(1)) == -1);
  CHECK(!some.includes(Rank(9)));
  CHECK(sets.global()->index_of(Rank(4)) == 4);
  CHECK(sets.global()->index_of(Rank(5)) == -1);
  CHECK(sets.global()->index_of(Rank(-1)) == -1);
  CHECK(sets.any_without(Rank(1)));
  CHECK(!sets.any_without(Rank(0)));
}

TEST_CASE("process sets: what cannot be a set, and why") {
  const ProcessSets sets(3, {{0, 2}});
  const auto why = [&](const std::vector<std::int32_t>& ranks) {
    const auto refused = sets.refuse(ranks);
    if (refused) CHECK(refused->kind == ErrorKind::invalid_argument);
    return refused ? refused->message : std::string();
  };
  CHECK(why({}) == "a process set has at least one rank");
  CHECK(why({0, 3}) == "rank 3 of a process set is not one of the 3 ranks 0 to 2");
  CHECK(why({-1}) == "rank -1 of a process set is not one of the 3 ranks 0 to 2");
  CHECK(why({1, 0, 1}) == "a process set names rank 1 twice");
  CHECK(why({2, 0}) ==
        "Attempted to add a duplicate process set: process set 1 (ranks 0,2) has the same ranks");
  CHECK(why({2, 1, 0}) ==
        "Attempted to add a duplicate process set: process set 0 (ranks 0-2) has the same ranks");
  CHECK(why({1}).empty());
}

}  // namespace hora
