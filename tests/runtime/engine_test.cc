// The engines of a world in memory, stepped in random order by one thread.
//
// Values are small whole numbers, so that every sum is exact. What a rank submits lives in a Call
// until the test has looked at it. Faults have a file of their own: engine_fault_test.cc.
#include <algorithm>
#include <numeric>

#include "tests/runtime/engine_calls.h"
#include "tests/support/engine_world.h"

namespace hora::test {
namespace {

std::mt19937 seeded(unsigned seed) {
  UNSCOPED_INFO("seed " << seed);
  return std::mt19937(seed);
}

}  // namespace

TEST_CASE("engine: every collective ends right, for every number of ranks") {
  for (int size = 1; size <= 5; ++size) {
    auto random = seeded(static_cast<unsigned>(size));
    EngineWorld world({.size = size});
    std::vector<Calls> ranks(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      Calls& calls = ranks[static_cast<std::size_t>(rank)];
      for (const std::int64_t count : {0, 1, 7, 1001, 5000}) {
        calls.allreduce(world, rank, "sum" + std::to_string(count), count);
      }
      calls.allreduce(world, rank, "average", 33, ReduceOp::average);
      calls.allreduce(world, rank, "largest", 33, ReduceOp::max);
      for (int root = 0; root < size; ++root) {
        calls.broadcast(world, rank, "from" + std::to_string(root), 2000, root);
      }
      for (const std::int64_t rows : {0, 1, 300}) {
        calls.allgather(world, rank, "gather" + std::to_string(rows), rows);
      }
      for (const std::int64_t rows : {0, 1, 4, 7, 1001}) {
        calls.reducescatter(world, rank, "part" + std::to_string(rows), rows);
      }
      calls.reducescatter(world, rank, "average part", 500, ReduceOp::average);
      for (const std::int64_t most : {1, 2, 7, 900}) {
        calls.alltoall(world, rank, "blocks" + std::to_string(most), most);
      }
      calls.barrier(world, rank, "barrier");
    }
    world.run(random);
    for (int rank = 0; rank < size; ++rank) {
      for (const auto& call : ranks[static_cast<std::size_t>(rank)].all) {
        INFO("size " << size << " rank " << rank << " " << call->name);
        REQUIRE(call->handle->done());
        if (!call->handle->outcome()) FAIL(call->handle->outcome().error().message);
        call->check(rank, size);
      }
      CHECK_FALSE(world[rank].busy());
      CHECK_FALSE(world[rank].stopped());
    }
  }
}

TEST_CASE("engine: ranks may submit in any order") {
  constexpr int kSize = 4, kTensors = 100, kOrders = 50;
  auto random = seeded(1);
  EngineWorld world({.size = kSize});
  for (int order = 0; order < kOrders; ++order) {
    std::vector<Calls> ranks(kSize);
    std::vector<std::vector<int>> orders(kSize, std::vector<int>(kTensors));
    for (auto& one : orders) {
      std::iota(one.begin(), one.end(), 0);
      std::shuffle(one.begin(), one.end(), random);
    }
    for (int next = 0; next < kTensors; ++next) {
      for (int rank = 0; rank < kSize; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        const int tensor = orders[at][static_cast<std::size_t>(next)];
        ranks[at].allreduce(world, rank, "t" + std::to_string(tensor), 1 + tensor % 20);
        world.step(static_cast<int>(random() % kSize));
      }
    }
    world.run(random);
    for (int rank = 0; rank < kSize; ++rank) {
      for (const auto& call : ranks[static_cast<std::size_t>(rank)].all) {
        INFO("order " << order << " rank " << rank << " " << call->name);
        REQUIRE(call->handle->done());
        REQUIRE(call->handle->outcome());
        call->check(rank, kSize);
      }
    }
  }
}

TEST_CASE("engine: a disagreement fails everywhere alike, and the job goes on") {
  auto random = seeded(2);
  EngineWorld world({.size = 4});
  std::vector<Calls> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks[static_cast<std::size_t>(rank)].allreduce(world, rank, "fc1.weight", rank == 2 ? 5 : 10);
  }
  world.run(random);
  std::vector<Error> errors;
  for (Calls& calls : ranks) {
    REQUIRE(calls.all[0]->handle->done());
    REQUIRE_FALSE(calls.all[0]->handle->outcome());
    errors.push_back(calls.all[0]->handle->outcome().error());
  }
  CHECK(errors[0].kind == ErrorKind::mismatch);
  CHECK(errors[0].message.find("fc1.weight") != std::string::npos);
  for (const Error& error : errors)
    CHECK(error.message == errors[0].message);

  // The same name may be used again, and rightly this time.
  for (int rank = 0; rank < 4; ++rank) {
    ranks[static_cast<std::size_t>(rank)].allreduce(world, rank, "fc1.weight", 10);
  }
  world.run(random);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& call = ranks[static_cast<std::size_t>(rank)].all[1];
    REQUIRE(call->handle->done());
    REQUIRE(call->handle->outcome());
    call->check(rank, 4);
  }
}

TEST_CASE("engine: a group is taken whole or not at all") {
  EngineWorld world({.size = 1});
  std::vector<float> memory(4);
  const auto submission = [&](const std::string& name) {
    Request request = allreduce_request(name, 4);
    request.group = "g";
    request.group_size = 2;
    return Submission{request, memory.data(), memory.data(), true};
  };
  const auto taken = world.post(0, allreduce_request("busy", 4), memory.data(), memory.data());
  REQUIRE(taken);
  for (const auto& names : {std::pair{"a", "busy"}, std::pair{"a", "a"}}) {
    const auto refused = world[0].post_group({submission(names.first), submission(names.second)});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::duplicate_name);
  }
  const auto handles = world[0].post_group({submission("a"), submission("b")});  // "a" is free.
  REQUIRE(handles);
  auto random = seeded(9);
  world.run(random);
  for (const Handle& handle : *handles) {
    REQUIRE(handle->done());
    CHECK(handle->outcome());
  }
}

TEST_CASE("engine: a name in flight is refused at once, and is free when its call is over") {
  auto random = seeded(3);
  EngineWorld world({.size = 2});
  std::vector<Calls> ranks(2);
  ranks[0].allreduce(world, 0, "x", 3);
  std::vector<float> memory(3);
  const auto again = world.post(0, allreduce_request("x", 3), memory.data(), memory.data());
  REQUIRE_FALSE(again);
  CHECK(again.error().kind == ErrorKind::duplicate_name);
  CHECK(again.error().message.find("'x'") != std::string::npos);
  ranks[1].allreduce(world, 1, "x", 3);
  world.run(random);
  for (int rank = 0; rank < 2; ++rank) {
    ranks[static_cast<std::size_t>(rank)].allreduce(world, rank, "x", 3);
  }
  world.run(random);
  for (Calls& calls : ranks) {
    for (const auto& call : calls.all)
      REQUIRE(call->handle->done());
  }
}

TEST_CASE("engine: too many tensors in flight are refused with the knob's name") {
  Config config;
  config.submit_queue_limit = 2;
  EngineWorld world({.size = 2, .config = config});
  Calls calls;
  calls.allreduce(world, 0, "a", 1);
  calls.allreduce(world, 0, "b", 1);
  float value = 0;
  const auto third = world.post(0, allreduce_request("c", 1), &value, &value);
  REQUIRE_FALSE(third);
  CHECK(third.error().kind == ErrorKind::resource);
  CHECK(third.error().message.find("HORA_SUBMIT_QUEUE_LIMIT") != std::string::npos);
}

TEST_CASE("engine: a tensor that some ranks submit waits, and ends when the others come") {
  auto random = seeded(4);
  EngineWorld world({.size = 4});
  std::vector<Calls> ranks(4);
  for (const int rank : {0, 1, 3}) {
    ranks[static_cast<std::size_t>(rank)].allreduce(world, rank, "late", 10);
  }
  world.run(random);
  world.advance(600s);  // Ten stall reports later it is still waiting.
  world.run(random);
  for (const int rank : {0, 1, 3}) {
    CHECK_FALSE(ranks[static_cast<std::size_t>(rank)].all[0]->handle->done());
    CHECK(world[rank].busy());
  }
  ranks[2].allreduce(world, 2, "late", 10);
  world.run(random);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& call = ranks[static_cast<std::size_t>(rank)].all[0];
    REQUIRE(call->handle->done());
    call->check(rank, 4);
  }
}

TEST_CASE("engine: a stall beyond the limit ends the job and names who is missing") {
  auto random = seeded(5);
  Config config;
  config.stall_check_seconds = 10;
  config.stall_shutdown_seconds = 30;
  EngineWorld world({.size = 3, .config = config});
  std::vector<Calls> ranks(3);
  for (const int rank : {0, 1}) {
    ranks[static_cast<std::size_t>(rank)].allreduce(world, rank, "late", 10);
  }
  world.run(random);
  REQUIRE(world[0].next_deadline());
  for (int i = 0; i < 4; ++i) {
    world.advance(10s);
    world.run(random);
  }
  for (const int rank : {0, 1}) {
    const auto& handle = ranks[static_cast<std::size_t>(rank)].all[0]->handle;
    REQUIRE(handle->done());
    REQUIRE_FALSE(handle->outcome());
    CHECK(handle->outcome().error().kind == ErrorKind::timeout);
    CHECK(handle->outcome().error().message.find("late") != std::string::npos);
    CHECK(handle->outcome().error().message.find('2') != std::string::npos);
  }
  CHECK(world[2].stopped());
}

TEST_CASE("engine: tensors that nobody waits for are fused into few collectives") {
  auto random = seeded(6);
  EngineWorld world({.size = 3});
  std::vector<Calls> ranks(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (int i = 0; i < 200; ++i) {
      ranks[static_cast<std::size_t>(rank)].allreduce(world, rank, "g" + std::to_string(i), i % 90,
                                                      ReduceOp::sum, false);
    }
  }
  world.run(random);
  CHECK_FALSE(ranks[0].all[7]->handle->done());  // Held, for company.
  const auto release = world[0].next_deadline();
  REQUIRE(release);
  world.advance(50ms);
  world.run(random);
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& call : ranks[static_cast<std::size_t>(rank)].all) {
      REQUIRE(call->handle->done());
      REQUIRE(call->handle->outcome());
      call->check(rank, 3);
    }
    CHECK(world[rank].stats().tensors == 200);
    CHECK(world[rank].stats().collectives < 10);
  }
}

TEST_CASE("engine: an output may be the input") {
  auto random = seeded(7);
  EngineWorld world({.size = 3});
  std::vector<std::vector<float>> memory(3, std::vector<float>(4000, 2.0f));
  std::vector<Handle> handles;
  for (int rank = 0; rank < 3; ++rank) {
    float* data = memory[static_cast<std::size_t>(rank)].data();
    auto handle = world.post(rank, allreduce_request("inplace", 4000), data, data);
    REQUIRE(handle);
    handles.push_back(*handle);
  }
  world.run(random);
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(handles[static_cast<std::size_t>(rank)]->done());
    CHECK(memory[static_cast<std::size_t>(rank)] == std::vector<float>(4000, 6.0f));
  }
}

TEST_CASE(
    "engine: what was answered before an orderly end finishes, the rest fails with its words") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    auto random = seeded(seed);
    EngineWorld world({.size = 4});
    std::vector<Calls> ranks(4);
    for (int rank = 0; rank < 4; ++rank) {
      Calls& calls = ranks[static_cast<std::size_t>(rank)];
      calls.allreduce(world, rank, "answered", 8000);
      if (rank != 3) calls.allreduce(world, rank, "never", 10);
    }
    // Until the root has answered: then the answer is in every rank's stream before the end.
    while (world[0].stats().collectives == 0)
      world.step(static_cast<int>(random() % 4));
    const Handle told = world[3].post_shutdown("loss is nan");
    // Ranks leave as soon as they have stopped, the others may be far behind.
    for (int left = 4; left > 0;) {
      const int rank = static_cast<int>(random() % 4);
      world.step(rank);
      if (world.present(rank) && world[rank].stopped()) {
        world.leave(rank);
        world.advance(kEvidenceGrace);
        --left;
      }
    }
    CHECK(told->done());
    for (int rank = 0; rank < 4; ++rank) {
      INFO("rank " << rank);
      const Calls& calls = ranks[static_cast<std::size_t>(rank)];
      REQUIRE(calls.all[0]->handle->done());
      if (!calls.all[0]->handle->outcome()) FAIL(calls.all[0]->handle->outcome().error().message);
      calls.all[0]->check(rank, 4);
      if (rank == 3) continue;
      REQUIRE(calls.all[1]->handle->done());
      REQUIRE_FALSE(calls.all[1]->handle->outcome());
      const Error& error = calls.all[1]->handle->outcome().error();
      CHECK(error.kind == ErrorKind::shutdown);
      CHECK(error.message.find("loss is nan") != std::string::npos);
      CHECK(error.message.find("rank 3") != std::string::npos);
    }
  }
}

TEST_CASE("engine: after the end nothing is accepted, on any rank") {
  auto random = seeded(8);
  EngineWorld world({.size = 3});
  world.run(random);
  const Handle told = world[1].post_shutdown("done");
  CHECK(world[1].post_shutdown("done again") == told);
  const Handle other = world[2].post_shutdown("me too");
  world.run(random);
  CHECK(told->done());
  CHECK(other->done());
  for (int rank = 0; rank < 3; ++rank) {
    float value = 1;
    const auto late = world.post(rank, allreduce_request("late", 1), &value, &value);
    REQUIRE_FALSE(late);
    CHECK(late.error().kind == ErrorKind::shutdown);
    CHECK(world[rank].post_shutdown("")->done());
    CHECK_FALSE(world[rank].busy());
  }
}

TEST_CASE("engine: a destroyed engine leaves no handle open") {
  Calls calls;
  {
    auto random = seeded(9);
    EngineWorld world({.size = 2});
    calls.allreduce(world, 0, "stepped", 10);
    world.run(random);
    calls.allreduce(world, 0, "in the inbox", 10);
  }
  for (const auto& call : calls.all) {
    REQUIRE(call->handle->done());
    CHECK(call->handle->outcome().error().kind == ErrorKind::shutdown);
  }
}

}  // namespace hora::test
