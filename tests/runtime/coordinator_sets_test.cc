// The root's answers about process sets and joins: to whom, when, and in which words.
#include <algorithm>

#include "runtime/negotiation.h"
#include "tests/runtime/negotiation_world.h"

namespace hora {
namespace {

NegotiationOptions of_size(int size, std::vector<std::vector<std::int32_t>> sets = {}) {
  NegotiationOptions options;
  options.size = size;
  options.sets = std::move(sets);
  return options;
}

Request in_set(std::uint32_t set, Request request) {
  request.set = SetId(set);
  return request;
}

Request add_of(std::vector<std::int32_t> ranks) {
  Request request = of_kind(Kind::add_set, "sets");
  request.members = std::move(ranks);
  return request;
}

Request remove_of(std::uint32_t set) {
  return in_set(set, of_kind(Kind::remove_set, "sets"));
}

Request join() {
  return of_kind(Kind::join, "");
}

/// What all ranks hear: one response, the same everywhere.
Response heard_everywhere(NegotiationWorld& world) {
  const auto responses = world.take_heard(0);
  REQUIRE(responses.size() == 1);
  for (std::size_t rank = 1; rank < world.workers.size(); ++rank) {
    const auto theirs = world.take_heard(rank);
    REQUIRE(theirs.size() == 1);
    CHECK(theirs[0].error == responses[0].error);
    CHECK(theirs[0].kind == responses[0].kind);
    CHECK(theirs[0].set->id == responses[0].set->id);
  }
  return responses[0];
}

/// The answer to what each of the ranks submits.
Response answer(NegotiationWorld& world, const std::vector<std::pair<int, Request>>& requests) {
  for (const auto& [rank, request] : requests)
    world.workers[static_cast<std::size_t>(rank)]->submit(request);
  world.flush_all();
  return heard_everywhere(world);
}

}  // namespace

TEST_CASE("sets: a tensor is answered when the ranks of its set have it, and all ranks hear it") {
  NegotiationWorld world(of_size(4, {{1, 3}}));
  world.workers[3]->submit(in_set(1, allreduce_of("x")));
  world.workers[3]->flush();
  world.settle();
  CHECK(world.heard[0].empty());
  CHECK(world.root.missing_ranks() == 1);
  for (int round = 0; round < 3; ++round) {
    if (round > 0) world.workers[3]->submit(in_set(1, allreduce_of("x")));
    const Response response = answer(world, {{1, in_set(1, allreduce_of("x"))}});
    CHECK(response.set->ranks == std::vector<std::int32_t>{1, 3});
    CHECK(response.tensors[0].request->name == "x");
    CHECK(response.error.empty());
  }
  CHECK(world.last_up_bytes <= 8);  // known by then
}

TEST_CASE("sets: one name in two sets is two tensors, and they do not fuse") {
  NegotiationWorld world(of_size(3, {{0, 1}, {1, 2}}));
  for (int round = 0; round < 2; ++round) {
    for (const auto& [set, ranks] : {std::pair{1u, std::pair{0u, 1u}}, {2u, {1u, 2u}}}) {
      for (const std::size_t rank : {ranks.first, ranks.second})
        world.workers[rank]->submit(in_set(set, allreduce_of("x", {std::int64_t{set} + 2})));
    }
    world.submit_everywhere(allreduce_of("x", {9}));
    world.flush_all();
    const auto responses = world.take_heard(2);
    REQUIRE(responses.size() == 3);
    for (const Response& response : responses) {
      REQUIRE(response.tensors.size() == 1);
      const std::int64_t elements =
          response.set->id == kGlobalSet ? 9 : std::int64_t{response.set->id.value} + 2;
      CHECK(response.tensors[0].request->shape == std::vector<std::int64_t>{elements});
    }
  }
}

TEST_CASE("sets: an allgather has one first dimension per rank of the set") {
  NegotiationWorld world(of_size(4, {{1, 3}}));
  for (int round = 0; round < 2; ++round) {
    const auto rows = [](std::int64_t n) {
      return in_set(1, of_kind(Kind::allgather, "g", {n, 2}));
    };
    const Response response = answer(world, {{1, rows(5 + round)}, {3, rows(7)}});
    CHECK(response.tensors[0].first_dims == std::vector<std::int64_t>{5 + round, 7});
  }
}

TEST_CASE("sets: a disagreement names ranks of the set by their numbers in the job") {
  NegotiationWorld world(of_size(4, {{1, 2, 3}}));
  const auto x = [](std::int64_t n) { return in_set(1, allreduce_of("x", {n})); };
  CHECK(answer(world, {{1, x(3)}, {2, x(4)}, {3, x(3)}}).error ==
        "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [3], but another rank "
        "sent a tensor of shape [4]. (tensor 'x' of process set 1: ranks 1,3 submitted float32[3], "
        "rank 2 submitted float32[4])");
  Request cast = in_set(1, of_kind(Kind::broadcast, "b", {1}));
  cast.root = 0;
  const Response outside = answer(world, {{1, cast}, {2, cast}, {3, cast}});
  CHECK(outside.error_kind == ErrorKind::invalid_argument);
  CHECK(outside.error ==
        "broadcast received invalid root rank 0 for provided process set: it has ranks 1-3. "
        "(tensor 'b' of process set 1, on all ranks)");
}

TEST_CASE("sets: one that all ranks add can be used behind the answer, until all remove it") {
  NegotiationWorld world(of_size(3));
  for (const std::uint32_t number : {1u, 1u}) {
    world.submit_everywhere(add_of({2, 0}));
    world.flush_all();
    const Response added = heard_everywhere(world);
    CHECK(added.kind == Kind::add_set);
    CHECK(added.set->id == SetId(number));
    CHECK(added.set->ranks == std::vector<std::int32_t>{0, 2});
    const Request x = in_set(number, allreduce_of("x"));
    CHECK(answer(world, {{0, x}, {2, x}}).error.empty());
    world.submit_everywhere(remove_of(number));
    world.flush_all();
    const Response removed = heard_everywhere(world);
    CHECK(removed.kind == Kind::remove_set);
    CHECK(removed.set->ranks == std::vector<std::int32_t>{0, 2});
  }
}

TEST_CASE("sets: changes that ranks disagree about, or that are impossible, change nothing") {
  NegotiationWorld world(of_size(2, {{0}}));
  Response response = answer(world, {{0, add_of({1})}, {1, add_of({0, 1})}});
  CHECK(response.error_kind == ErrorKind::mismatch);
  CHECK(response.error ==
        "Mismatched process sets: One rank wants to add [1], but another rank wants to add [0, 1]. "
        "(rank 0 submitted [1], rank 1 submitted [0, 1])");
  response = answer(world, {{0, add_of({1})}, {1, remove_of(1)}});
  CHECK(response.error ==
        "Mismatched operations: One rank did an ADD_PROCESS_SET, but another rank did an "
        "REMOVE_PROCESS_SET. (rank 0 submitted ADD_PROCESS_SET [1], rank 1 submitted "
        "REMOVE_PROCESS_SET 1)");
  response = answer(world, {{0, remove_of(1)}, {1, remove_of(2)}});
  CHECK(response.error_kind == ErrorKind::mismatch);
  response = answer(world, {{0, add_of({7})}, {1, add_of({7})}});
  CHECK(response.error_kind == ErrorKind::invalid_argument);
  CHECK(response.error == "rank 7 of a process set is not one of the 2 ranks 0 to 1");
  response = answer(world, {{0, remove_of(0)}, {1, remove_of(0)}});
  CHECK(response.error == "process set 0 cannot be removed");
  response = answer(world, {{0, add_of({0})}, {1, add_of({0})}});
  CHECK(response.error_kind == ErrorKind::invalid_argument);
  CHECK(answer(world, {{0, in_set(1, allreduce_of("x"))}}).error.empty());
}

TEST_CASE("sets: what is complete is answered before its set goes, what is not fails") {
  NegotiationWorld world(of_size(3, {{0, 1}}));
  world.outstanding = {2, 2};  // both lanes are full: nothing can be answered
  for (const std::size_t rank : {0, 1})
    world.workers[rank]->submit(in_set(1, allreduce_of("whole")));
  world.workers[0]->submit(in_set(1, allreduce_of("half")));
  world.workers[0]->submit(allreduce_of("half"));  // of all ranks: goes on
  world.submit_everywhere(remove_of(1));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    world.send(rank);
    while (world.hear(rank)) {
    }
  }
  CHECK(world.decide() == 0);
  world.settle();
  const auto responses = world.take_heard(1);
  REQUIRE(responses.size() == 3);
  CHECK(responses[0].tensors[0].request->name == "whole");
  CHECK(responses[0].error.empty());
  CHECK(responses[1].error ==
        "process set 1 was removed while tensor 'half' waited for rank 1; wait for all collectives "
        "of a process set before it is removed");
  CHECK(responses[2].kind == Kind::remove_set);
  REQUIRE(world.root.waiting().size() == 1);
}

TEST_CASE("sets: a rank that submits to a set of others is refused as malformed") {
  NegotiationWorld world(of_size(3, {{0, 1}}));
  for (const std::uint32_t set : {1u, 5u}) {
    WorkerNegotiator outsider(Rank{2}, of_size(3));
    outsider.submit(in_set(set, allreduce_of("x")));
    const auto message = outsider.take_message();
    REQUIRE(message);
    const auto outcome = world.root.on_message(Rank{2}, *message, world.now);
    REQUIRE(!outcome);
    CHECK(outcome.error().kind == ErrorKind::protocol);
  }
}

TEST_CASE("sets: a stall report speaks of the set's ranks") {
  auto options = of_size(4, {{1, 3}});
  options.stall_warning = 1s;
  NegotiationWorld world(options);
  world.workers[3]->submit(in_set(1, allreduce_of("x")));
  world.settle();
  world.now += 2s;
  world.settle();
  REQUIRE(world.notices[0].size() == 1);
  const std::string& report = world.notices[0][0];
  CHECK(report.find("'x' (ALLREDUCE in process set 1): rank 3 has it, rank 1 does not, for 2 s") !=
        std::string::npos);
  CHECK(report.find("\n1: [x]") != std::string::npos);
  CHECK(report.find("\n0: [") == std::string::npos);
}

TEST_CASE("join: tensors are complete without the ranks that joined, all in one order") {
  NegotiationWorld world(of_size(3, {{1, 2}}));
  world.submit_everywhere(allreduce_of("known"));
  world.flush_all();
  for (std::size_t rank = 0; rank < 3; ++rank)
    world.take_heard(rank);

  world.workers[0]->submit(allreduce_of("early"));
  world.workers[1]->submit(allreduce_of("early"));
  world.workers[2]->submit(join());
  world.flush_all();  // it waited for rank 2 alone
  CHECK(heard_everywhere(world).tensors[0].request->name == "early");
  for (const char* name : {"known", "new"}) {
    const Response late = answer(world, {{0, allreduce_of(name)}, {1, allreduce_of(name)}});
    CHECK(late.error.empty());
    CHECK(late.dtype == DType::float32);
    CHECK(late.tensors[0].request->shape == std::vector<std::int64_t>{4});
  }
  CHECK(answer(world, {{1, in_set(1, allreduce_of("x"))}}).set->id == SetId(1));
  CHECK(answer(world, {{0, of_kind(Kind::barrier, "b")}, {1, of_kind(Kind::barrier, "b")}})
            .error.empty());
  world.workers[0]->submit(join());
  world.flush_all();
  CHECK(world.heard[0].empty());
  const Response joined = answer(world, {{1, join()}});
  CHECK(joined.kind == Kind::join);
  CHECK(joined.root == 1);
  // All begin anew.
  world.workers[0]->submit(allreduce_of("known"));
  world.flush_all();
  CHECK(world.heard[0].empty());
  REQUIRE(world.root.waiting().size() == 1);
}

TEST_CASE("join: it is answered behind everything else") {
  NegotiationWorld world(of_size(2));
  world.outstanding = {2, 2};
  world.workers[0]->submit(allreduce_of("x"));
  for (const std::size_t rank : {1, 0}) {
    world.workers[rank]->submit(join());
    world.send(rank);
    while (world.hear(rank)) {
    }
  }
  CHECK(world.decide() == 0);
  world.settle();
  const auto responses = world.take_heard(1);
  REQUIRE(responses.size() == 2);
  CHECK(responses[0].kind == Kind::allreduce);
  CHECK(responses[1].kind == Kind::join);
  CHECK(responses[1].root == 0);
}

TEST_CASE("join: what needs the joined rank fails, with Horovod's words") {
  NegotiationWorld world(of_size(3));
  world.workers[1]->submit(join());
  world.flush_all();
  const auto error_of = [&](const Request& request) {
    return answer(world, {{0, request}, {2, request}});
  };
  Response response = error_of(of_kind(Kind::allgather, "g", {2}));
  CHECK(response.error_kind == ErrorKind::mismatch);
  CHECK(response.error ==
        "Allgather is not supported with Join at this time. Specify sparse_to_dense=True if using "
        "DistributedOptimizer (tensor 'g': rank 1 has joined)");
  response = error_of(of_kind(Kind::broadcast, "b", {2}));
  CHECK(response.error ==
        "Broadcast is not supported with Join at this time. (tensor 'b': rank 1 has joined)");
  response = error_of(add_of({0}));
  CHECK(response.error ==
        "Add process set is not supported with Join at this time. (rank 1 has joined)");
  // What the joined rank had submitted before is complete in the usual way.
  NegotiationWorld early(of_size(2));
  early.workers[1]->submit(of_kind(Kind::allgather, "g", {2}));
  early.workers[1]->submit(join());
  CHECK(answer(early, {{0, of_kind(Kind::allgather, "g", {1})}}).error.empty());
}

TEST_CASE("join: a rank that joins twice, or submits after it, is refused as malformed") {
  for (const Request& second : {join(), allreduce_of("x")}) {
    NegotiationWorld world(of_size(2));
    world.workers[1]->submit(join());
    world.send(1);
    world.hear(1);
    world.workers[1]->submit(second);
    world.send(1);
    const auto message = world.up[1].front();
    const auto outcome = world.root.on_message(Rank{1}, message, world.now);
    REQUIRE(!outcome);
    CHECK(outcome.error().kind == ErrorKind::protocol);
  }
}

TEST_CASE("join: ranks that have joined are not missing in a stall report") {
  auto options = of_size(4);
  options.stall_warning = 1s;
  NegotiationWorld world(options);
  world.workers[1]->submit(join());
  world.workers[2]->submit(allreduce_of("x"));
  world.settle();
  world.now += 2s;
  world.settle();
  REQUIRE(world.notices[0].size() == 1);
  CHECK(world.notices[0][0].find("rank 2 has it, ranks 0,3 do not") != std::string::npos);
}

}  // namespace hora
