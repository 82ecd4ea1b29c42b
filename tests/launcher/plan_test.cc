// Plan: ranks host by host, local ranks within a host, cross ranks across the hosts that have it.
//
// Expected values are written out from the definition in plan.h; impossible wishes give errors
// that say what to write instead.
#include "launcher/plan.h"

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Catch::Matchers::Contains;

Slot slot(const char* host, int rank, int size, int local_rank, int local_size, int cross_rank,
          int cross_size) {
  return {host, Rank(rank), size, local_rank, local_size, cross_rank, cross_size};
}

TEST_CASE("without hosts all ranks are local") {
  CHECK(plan_slots({}, 3).value() == std::vector<Slot>{slot("localhost", 0, 3, 0, 3, 0, 1),
                                                       slot("localhost", 1, 3, 1, 3, 0, 1),
                                                       slot("localhost", 2, 3, 2, 3, 0, 1)});
}

TEST_CASE("hosts of different sizes see different cross sizes") {
  CHECK(plan_slots({{"a", 2}, {"b", 1}}, std::nullopt).value() ==
        std::vector<Slot>{slot("a", 0, 3, 0, 2, 0, 2), slot("a", 1, 3, 1, 2, 0, 1),
                          slot("b", 2, 3, 0, 1, 1, 2)});
}

TEST_CASE("the number of processes is a cap on the slots") {
  CHECK(plan_slots({{"a", 4}, {"b", 4}}, 2).value() ==
        std::vector<Slot>{slot("a", 0, 2, 0, 2, 0, 1), slot("a", 1, 2, 1, 2, 0, 1)});
}

TEST_CASE("impossible numbers of processes are refused with the reason") {
  CHECK_THAT(plan_slots({}, std::nullopt).error().message, Contains("-np N"));
  for (const int np : {0, -1, 1025}) {
    CHECK_THAT(plan_slots({}, np).error().message,
               Contains("from 1 to 1024, not " + std::to_string(np)));
  }
  CHECK_THAT(plan_slots({{"a", 2}}, 3).error().message,
             Contains("Requested more processes (3) than there are available slots (2)"));
  // Sums of slots must not overflow.
  CHECK_FALSE(plan_slots({{"a", 2147483647}, {"b", 2147483647}}, std::nullopt).has_value());
}

TEST_CASE("slots are grouped by host") {
  const auto groups = group_by_host(plan_slots({{"a", 2}, {"b", 1}}, std::nullopt).value());
  REQUIRE(groups.size() == 2);
  CHECK(groups[0] == std::vector<Slot>{slot("a", 0, 3, 0, 2, 0, 2), slot("a", 1, 3, 1, 2, 0, 1)});
  CHECK(groups[1] == std::vector<Slot>{slot("b", 2, 3, 0, 1, 1, 2)});
}

}  // namespace
}  // namespace hora
