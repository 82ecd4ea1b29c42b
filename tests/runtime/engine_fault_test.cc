// What becomes of calls when a link or a member is lost.
//
// A fault is walked over every message of a small run: whatever breaks, no rank ever gets a wrong
// result, no input changes, and once an engine has been told, by its links or by an event, it
// leaves no handle open and its error names the member.
#include "tests/runtime/engine_calls.h"
#include "tests/support/engine_world.h"

namespace hora::test {
namespace {

constexpr int kSize = 4;

std::vector<Calls> submit_some(EngineWorld& world) {
  std::vector<Calls> ranks(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    Calls& calls = ranks[static_cast<std::size_t>(rank)];
    calls.allreduce(world, rank, "small", 5);
    calls.allreduce(world, rank, "segments", 2500);
    calls.broadcast(world, rank, "broadcast", 300, 1);
    calls.allgather(world, rank, "gather", 20);
    calls.barrier(world, rank, "barrier");
  }
  return ranks;
}

/// Of every call: if it succeeded the result is right; if not the error is about a loss.
void check_calls(EngineWorld& world, std::vector<Calls>& ranks, bool told) {
  for (int rank = 0; rank < kSize; ++rank) {
    for (const auto& call : ranks[static_cast<std::size_t>(rank)].all) {
      INFO("rank " << rank << " " << call->name);
      CHECK(call->input == values_of(rank, static_cast<std::int64_t>(call->input.size())));
      if (told) REQUIRE(call->handle->done());
      if (!call->handle->done()) continue;
      if (call->handle->outcome()) {
        call->check(rank, kSize);
      } else {
        const Error& error = call->handle->outcome().error();
        INFO(error.message);
        REQUIRE(error.peer);
        CHECK(error.message.find("rank " + std::to_string(error.peer->value)) != std::string::npos);
      }
    }
    if (told && world[rank].stopped()) CHECK_FALSE(world[rank].busy());
  }
}

/// Which engines have stopped of themselves.
std::vector<int> stopped(EngineWorld& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    if (world[rank].stopped()) ranks.push_back(rank);
  }
  return ranks;
}

ControlEvent lost(int rank) {
  return {ControlEvent::Kind::peer_lost, Rank(rank), "killed by signal 9 (Killed)"};
}

bool all_done(const std::vector<Calls>& ranks) {
  for (const Calls& calls : ranks) {
    for (const auto& call : calls.all) {
      if (!call->handle->done() || !call->handle->outcome()) return false;
    }
  }
  return true;
}

void run_with_fault(const Fault& fault) {
  INFO("message " << fault.message << " from " << fault.from.value << " to " << fault.to.value);
  std::mt19937 random(7);
  EngineWorld world({.size = kSize, .faults = {fault}});
  std::vector<Calls> ranks = submit_some(world);
  world.run(random);
  check_calls(world, ranks, false);

  if (fault.action == FaultAction::duplicate) {
    REQUIRE(all_done(ranks));
    REQUIRE(stopped(world).empty());
    return check_calls(world, ranks, true);
  }
  if (fault.action == FaultAction::stall) {
    // Nobody is told by the links. The sender counts as silent, then as lost.
    REQUIRE(stopped(world).empty());
    for (int rank = 0; rank < kSize; ++rank)
      world[rank].post_event(lost(fault.from.value));
    world.run(random);
    return check_calls(world, ranks, true);
  }
  // The ends of the link find out by themselves; who depends on them is told by the launcher.
  world.advance(kEvidenceGrace);
  world.run(random);
  const std::vector<int> ends = stopped(world);
  REQUIRE(ends.size() == 2);
  for (const int rank : ends) {
    CHECK((rank == fault.from.value || rank == fault.to.value));
    const Error& error = *world[rank].stopped();
    CHECK(error.peer == (rank == fault.from.value ? fault.to : fault.from));
  }
  check_calls(world, ranks, false);
  for (int rank = 0; rank < kSize; ++rank)
    world[rank].post_event(lost(fault.to.value));
  world.run(random);
  check_calls(world, ranks, true);
}

/// Faults at every message of every direction, of the run that has none.
void walk(FaultAction action) {
  std::mt19937 random(7);
  EngineWorld healthy({.size = kSize});
  std::vector<Calls> ranks = submit_some(healthy);
  healthy.run(random);
  REQUIRE(all_done(ranks));
  for (int from = 0; from < kSize; ++from) {
    for (int to = 0; to < kSize; ++to) {
      const std::uint64_t messages = from == to ? 0 : healthy.hub().sent(Rank(from), Rank(to));
      for (std::uint64_t n = 0; n < messages; ++n) {
        run_with_fault({Rank(from), Rank(to), n, action});
      }
    }
  }
}

}  // namespace

TEST_CASE("engine: a connection that ends at any message breaks no result and leaves no handle") {
  walk(FaultAction::close);
}

TEST_CASE("engine: a message that is changed on its way never becomes a result") {
  walk(FaultAction::corrupt);
}

TEST_CASE("engine: a member that falls silent at any message ends nothing until it is lost") {
  walk(FaultAction::stall);
}

TEST_CASE("engine: a message that arrives twice changes nothing") {
  walk(FaultAction::duplicate);
}

TEST_CASE("engine: a lost member is named with how it died and what this rank was doing") {
  std::mt19937 random(1);
  EngineWorld world({.size = kSize});
  std::vector<Calls> ranks(kSize);
  for (int rank = 0; rank < 3; ++rank) {
    ranks[static_cast<std::size_t>(rank)].allreduce(world, rank, "layer.0", 10);
  }
  world.run(random);
  for (int rank = 0; rank < 3; ++rank)
    world[rank].post_event(lost(3));
  world.run(random);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& handle = ranks[static_cast<std::size_t>(rank)].all[0]->handle;
    REQUIRE(handle->done());
    const Error& error = handle->outcome().error();
    CHECK(error.kind == ErrorKind::peer_lost);
    CHECK(error.peer == Rank(3));
    for (const char* words : {"rank 3 (pid 103 on node)", "signal 9", "'layer.0'"}) {
      INFO(error.message);
      CHECK(error.message.find(words) != std::string::npos);
    }
    float value = 1;
    const auto late = world.post(rank, allreduce_request("late", 1), &value, &value);
    REQUIRE_FALSE(late);
    CHECK(late.error().message == error.message);
  }
}

TEST_CASE("engine: the launcher's account of a death is better than the end of a connection") {
  std::mt19937 random(2);
  // The first message from rank 2 to rank 1 after the agreement is one of data.
  EngineWorld world({.size = kSize, .faults = {{Rank(2), Rank(1), 0, FaultAction::close}}});
  std::vector<Calls> ranks = submit_some(world);
  world.run(random);
  CHECK_FALSE(world[1].stopped());  // It waits for the better word ...
  CHECK(world[1].busy());
  CHECK(world[1].next_deadline());
  world[1].post_event(lost(2));
  world.run(random);
  REQUIRE(world[1].stopped());
  CHECK(world[1].stopped()->message.find("signal 9") != std::string::npos);
  world.advance(kEvidenceGrace);  // ... but not for long.
  world.run(random);
  REQUIRE(world[2].stopped());
  CHECK(world[2].stopped()->message.find("closed its connection") != std::string::npos);
}

TEST_CASE("engine: a silent member ends the job only if one wants that") {
  for (const bool abort : {false, true}) {
    std::mt19937 random(3);
    Config config;
    config.heartbeat_abort = abort;
    EngineWorld world({.size = 2, .config = config});
    std::vector<Calls> ranks(2);
    ranks[0].allreduce(world, 0, "x", 4);
    world[0].post_event({ControlEvent::Kind::peer_silent, Rank(1), "has sent no heartbeat"});
    world.run(random);
    CHECK(world[0].stopped().has_value() == abort);
    if (abort) continue;
    world[0].post_event({ControlEvent::Kind::peer_back, Rank(1), "is back"});
    ranks[1].allreduce(world, 1, "x", 4);
    world.run(random);
    for (int rank = 0; rank < 2; ++rank) {
      REQUIRE(ranks[static_cast<std::size_t>(rank)].all[0]->handle->done());
      ranks[static_cast<std::size_t>(rank)].all[0]->check(rank, 2);
    }
  }
}

TEST_CASE("engine: the end of the job fails what is open with the launcher's words") {
  std::mt19937 random(4);
  EngineWorld world({.size = 2});
  Calls calls;
  calls.allreduce(world, 1, "x", 4);
  world.run(random);
  world[1].post_event({ControlEvent::Kind::job_ended, std::nullopt, "interrupted by signal 2"});
  world.run(random);
  REQUIRE(calls.all[0]->handle->done());
  CHECK(calls.all[0]->handle->outcome().error().message.find("interrupted by signal 2") !=
        std::string::npos);
}

TEST_CASE("engine: a connection that ends before the ranks have agreed stops both ends") {
  std::mt19937 random(5);
  EngineWorld world({.size = 2, .faults = {{Rank(1), Rank(0), 0, FaultAction::close}}});
  world.run(random);
  CHECK_FALSE(world[0].agreed());
  world.advance(kEvidenceGrace);
  world.run(random);
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(world[rank].stopped());
    CHECK(world[rank].stopped()->peer == Rank(1 - rank));
  }
}

}  // namespace hora::test
