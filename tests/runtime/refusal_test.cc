// Refusals: a call that fails on one rank before it begins fails on the others, too, at once.
#include <algorithm>

#include "tests/runtime/engine_calls.h"
#include "tests/support/engine_world.h"

namespace hora::test {
namespace {

using Catch::Matchers::Contains;

constexpr int kSize = 3;
constexpr int kRefusing = 1;

Request named(Kind kind, const std::string& name) {
  Request request;
  request.kind = kind;
  request.name = name;
  return request;
}

/// One call of a kind, right on every rank.
void submit(EngineWorld& world, Calls& calls, int rank, Kind kind, const std::string& name) {
  switch (kind) {
    case Kind::allreduce:
      return calls.allreduce(world, rank, name, 10);
    case Kind::allgather:
      return calls.allgather(world, rank, name, 2);
    case Kind::broadcast:
      return calls.broadcast(world, rank, name, 10, 0);
    case Kind::reducescatter:
      return calls.reducescatter(world, rank, name, 4);
    case Kind::alltoall:
      return calls.alltoall(world, rank, name, 3);
    default:
      return calls.barrier(world, rank, name);
  }
}

constexpr Kind kKinds[] = {Kind::allreduce,     Kind::allgather, Kind::broadcast,
                           Kind::reducescatter, Kind::alltoall,  Kind::barrier};

/// The error of a handle that has failed.
std::string error_of(const Handle& handle) {
  REQUIRE(handle->done());
  REQUIRE_FALSE(handle->outcome());
  CHECK(handle->outcome().error().kind == ErrorKind::mismatch);
  return handle->outcome().error().message;
}

}  // namespace

TEST_CASE("refusal: the others' calls fail with its rank, tensor and reason") {
  for (const Kind kind : kKinds) {
    for (const bool refuses_first : {true, false}) {
      std::mt19937 random(1);
      EngineWorld world({.size = kSize});
      std::vector<Calls> ranks(kSize);
      const std::vector<Request> refused = {named(kind, "fc1.weight")};
      if (refuses_first) CHECK(world[kRefusing].post_refusals(refused, "no such thing"));
      for (int rank = 0; rank < kSize; ++rank) {
        if (rank == kRefusing) continue;
        submit(world, ranks[static_cast<std::size_t>(rank)], rank, kind, "fc1.weight");
      }
      if (!refuses_first) {
        world.run(random);
        CHECK(world[kRefusing].post_refusals(refused, "no such thing"));
      }
      world.run(random);
      for (int rank = 0; rank < kSize; ++rank) {
        INFO(to_string(kind) << " rank " << rank);
        CHECK_FALSE(world[rank].busy());
        if (rank == kRefusing) continue;
        const std::string error = error_of(ranks[static_cast<std::size_t>(rank)].all[0]->handle);
        CHECK_THAT(error, Contains("rank 1") && Contains("'fc1.weight'") &&
                              Contains("no such thing") && Contains(title_of(kind)));
      }
      // The name is free again, and the job goes on.
      for (int rank = 0; rank < kSize; ++rank)
        submit(world, ranks[static_cast<std::size_t>(rank)], rank, kind, "fc1.weight");
      world.run(random);
      for (int rank = 0; rank < kSize; ++rank) {
        const auto& call = ranks[static_cast<std::size_t>(rank)].all.back();
        REQUIRE(call->handle->done());
        REQUIRE(call->handle->outcome());
        call->check(rank, kSize);
      }
    }
  }
}

TEST_CASE("refusal: what all ranks refuse is forgotten") {
  for (const Kind kind : kKinds) {
    std::mt19937 random(2);
    EngineWorld world({.size = kSize});
    for (int rank = 0; rank < kSize; ++rank) {
      const std::vector<Request> refused = {named(kind, "x")};
      CHECK(world[rank].post_refusals(refused, rank == 2 ? "another reason" : "a reason"));
    }
    world.run(random);
    for (int rank = 0; rank < kSize; ++rank)
      CHECK_FALSE(world[rank].busy());
  }
}

TEST_CASE("refusal: splits for another number of ranks are told to those who wait") {
  std::mt19937 random(3);
  EngineWorld world({.size = kSize});
  std::vector<Calls> ranks(kSize);
  for (const int rank : {0, 2})
    ranks[static_cast<std::size_t>(rank)].alltoall(world, rank, "blocks", 3);
  Request bad = named(Kind::alltoall, "blocks");
  bad.shape = {4, 2};
  bad.splits = {2, 2};
  const auto posted = world[1].post({bad, nullptr, nullptr, true});
  REQUIRE_FALSE(posted.has_value());
  CHECK(posted.error().kind == ErrorKind::invalid_argument);
  world.run(random);
  CHECK_THAT(error_of(ranks[0].all[0]->handle),
             Contains("rank 1") && Contains("Number of entries in splits"));
}

TEST_CASE("refusal: a group is refused as a whole") {
  std::mt19937 random(4);
  EngineWorld world({.size = kSize});
  std::vector<float> in(8, 1.0f), out(8);
  std::vector<Handle> waiting;
  const auto member = [](const std::string& name) {
    Request request = allreduce_request(name, 4);
    request.group = "g";
    request.group_size = 2;
    return request;
  };
  for (const int rank : {0, 2}) {
    auto handles = world[rank].post_group({{member("g_1of2"), in.data(), out.data(), false},
                                           {member("g_2of2"), in.data(), out.data(), true}});
    REQUIRE(handles);
    waiting.insert(waiting.end(), handles->begin(), handles->end());
  }
  const std::vector<Request> refused = {member("g_1of2"), member("g_2of2")};
  CHECK(world[1].post_refusals(refused, "not contiguous"));
  world.run(random);
  for (const Handle& handle : waiting)
    CHECK_THAT(error_of(handle), Contains("rank 1") && Contains("not contiguous"));
  for (int rank = 0; rank < kSize; ++rank)
    CHECK_FALSE(world[rank].busy());
}

TEST_CASE("refusal: a rank may go on with the name, and make the mistake again") {
  for (int mistakes = 1; mistakes <= 3; ++mistakes) {
    std::mt19937 random(6);
    EngineWorld world({.size = 2});
    std::vector<Calls> ranks(2);
    const std::vector<Request> refused = {named(Kind::allreduce, "x")};
    for (int i = 0; i < mistakes; ++i)
      CHECK(world[0].post_refusals(refused, "mistake " + std::to_string(i)));
    ranks[0].allreduce(world, 0, "x", 10);
    ranks[0].allreduce(world, 0, "y", 10);
    const auto twice = world[0].post({allreduce_request("x", 10), nullptr, nullptr, true});
    REQUIRE_FALSE(twice.has_value());
    CHECK(twice.error().kind == ErrorKind::duplicate_name);
    world.run(random);
    ranks[1].allreduce(world, 1, "y", 10);
    for (int i = 0; i < mistakes; ++i) {
      ranks[1].allreduce(world, 1, "x", 10);
      world.run(random);
      CHECK_THAT(error_of(ranks[1].all.back()->handle), Contains("mistake " + std::to_string(i)));
    }
    ranks[1].allreduce(world, 1, "x", 10);
    world.run(random);
    for (int rank = 0; rank < 2; ++rank) {
      const auto& last = ranks[static_cast<std::size_t>(rank)].all[rank == 0 ? 0 : 1 + mistakes];
      REQUIRE(last->handle->done());
      REQUIRE(last->handle->outcome());
      last->check(rank, 2);
      CHECK_FALSE(world[rank].busy());
    }
  }
}

TEST_CASE("refusal: a join comes after what is held back") {
  std::mt19937 random(7);
  EngineWorld world({.size = 2});
  std::vector<Calls> ranks(2);
  CHECK(world[0].post_refusals(std::vector<Request>{named(Kind::allreduce, "x")}, "why"));
  ranks[0].allreduce(world, 0, "x", 10);
  const auto joined = world[0].post({named(Kind::join, ""), nullptr, nullptr, true});
  REQUIRE(joined);
  for (int i = 0; i < 2; ++i) {
    ranks[1].allreduce(world, 1, "x", 10);
    world.run(random);
  }
  error_of(ranks[1].all[0]->handle);
  const auto other = world[1].post({named(Kind::join, ""), nullptr, nullptr, true});
  REQUIRE(other);
  world.run(random);
  REQUIRE(ranks[0].all[0]->handle->outcome());
  ranks[0].all[0]->check(0, 2);
  CHECK((*joined)->outcome().has_value());
  CHECK((*other)->outcome().has_value());
}

TEST_CASE("refusal: what is held back fails when the job ends") {
  std::mt19937 random(8);
  EngineWorld world({.size = 2});
  std::vector<Calls> ranks(2);
  CHECK(world[0].post_refusals(std::vector<Request>{named(Kind::allreduce, "x")}, "why"));
  ranks[0].allreduce(world, 0, "x", 10);
  world[1].post_shutdown("bye");
  world.run(random);
  REQUIRE(ranks[0].all[0]->handle->done());
  CHECK_FALSE(ranks[0].all[0]->handle->outcome());
}

TEST_CASE("refusal: a name in flight, an unknown set, and a long reason") {
  std::mt19937 random(5);
  EngineWorld world({.size = 2});
  std::vector<Calls> ranks(2);
  ranks[0].allreduce(world, 0, "busy", 4);
  CHECK_FALSE(world[0].post_refusals(std::vector<Request>{named(Kind::allreduce, "busy")}, "why"));
  Request elsewhere = named(Kind::allreduce, "x");
  elsewhere.set = SetId(7);
  CHECK_FALSE(world[0].post_refusals(std::vector<Request>{elsewhere}, "why"));
  const std::string name(kMaxNameBytes + 1, 'x');
  CHECK_FALSE(world[0].post_refusals(std::vector<Request>{named(Kind::allreduce, name)}, "why"));
  CHECK(world[1].post_refusals(std::vector<Request>{named(Kind::allreduce, "busy")},
                               std::string(100000, 'y')));
  world.run(random);
  CHECK(error_of(ranks[0].all[0]->handle).size() < 2 * kMaxRefusalBytes);
}

}  // namespace hora::test
