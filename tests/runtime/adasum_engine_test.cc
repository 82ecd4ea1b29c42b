// Adasum through whole engines: three runs of a lane, with local work between them, among others.
#include <algorithm>
#include <map>
#include <random>

#include "tests/runtime/engine_calls.h"
#include "tests/support/adasum_oracle.h"
#include "tests/support/engine_world.h"

namespace hora::test {
namespace {

using Ranks = std::vector<std::int32_t>;

/// What a rank has, reduced in place.
std::vector<float> gradient_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 7919) + static_cast<unsigned>(count));
  std::normal_distribution<float> normal(0.3f);
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random);
  return values;
}

/// Of the ranks of a set; those that are not `there` give zeros.
Vector expected_of(const Ranks& set, const Ranks& there, std::size_t count) {
  std::vector<Vector> inputs;
  for (const std::int32_t rank : set) {
    const auto values = gradient_of(rank, count);
    const bool gives = std::find(there.begin(), there.end(), rank) != there.end();
    inputs.push_back(gives ? Vector(values.begin(), values.end()) : Vector(count));
  }
  return adasum_of(inputs, 0, inputs.size());
}

struct Reduced {
  std::string name;
  std::vector<float> values;
  Vector expected;
  Handle handle;
};

class Reductions {
 public:
  void start(EngineWorld& world, int rank, const std::string& name, std::size_t count,
             const Ranks& set, const Ranks& there, SetId id = kGlobalSet) {
    auto& call = all_[rank].emplace_back(std::make_unique<Reduced>());
    call->name = name;
    call->values = gradient_of(rank, count);
    call->expected = expected_of(set, there, count);
    Request request = allreduce_request(name, static_cast<std::int64_t>(count), ReduceOp::adasum);
    request.set = id;
    auto handle = world.post(rank, request, call->values.data(), call->values.data());
    REQUIRE(handle);
    call->handle = *handle;
  }

  void check() {
    std::map<std::string, std::vector<float>> first;
    for (const auto& [rank, calls] : all_) {
      for (const auto& call : calls) {
        INFO("rank " << rank << " " << call->name);
        REQUIRE(call->handle->done());
        if (!call->handle->outcome()) FAIL(call->handle->outcome().error().message);
        for (std::size_t i = 0; i < call->values.size(); ++i) {
          if (call->values[i] != Approx(call->expected[i]).epsilon(1e-5).margin(1e-6)) {
            FAIL_CHECK("element " << i << ": " << call->values[i] << " for " << call->expected[i]);
          }
        }
        const auto [same, is_first] = first.emplace(call->name, call->values);
        CHECK(same->second == call->values);
      }
    }
    all_.clear();
  }

 private:
  std::map<int, std::vector<std::unique_ptr<Reduced>>> all_;
};

Ranks ranks_to(int size) {
  Ranks ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(rank);
  return ranks;
}

}  // namespace

TEST_CASE("engine: adasum of any size among any number of ranks, in place") {
  for (int size = 1; size <= 8; ++size) {
    std::mt19937 random(static_cast<unsigned>(size));
    INFO("size " << size);
    EngineWorld world({.size = size});
    Reductions reductions;
    std::vector<Calls> others(static_cast<std::size_t>(size));
    const Ranks all = ranks_to(size);
    for (int rank = 0; rank < size; ++rank) {
      const auto n = static_cast<std::size_t>(size);
      for (const std::size_t count :
           {std::size_t{0}, std::size_t{1}, n, n + 1, std::size_t{5000}}) {
        reductions.start(world, rank, "adasum" + std::to_string(count), count, all, all);
        others[static_cast<std::size_t>(rank)].allreduce(world, rank, "sum" + std::to_string(count),
                                                         1000);
        world.step(static_cast<int>(random() % n));
      }
    }
    world.run(random);
    reductions.check();
    for (int rank = 0; rank < size; ++rank) {
      for (const auto& call : others[static_cast<std::size_t>(rank)].all) {
        REQUIRE(call->handle->done());
        call->check(rank, size);
      }
      CHECK_FALSE(world[rank].busy());
    }
  }
}

TEST_CASE("engine: adasum in process sets, while the others pass it") {
  Config config;
  config.process_sets = {{0, 2, 3}, {1, 4}};
  std::mt19937 random(1);
  EngineWorld world({.size = 5, .config = config});
  Reductions reductions;
  for (int round = 0; round < 10; ++round) {
    for (int rank = 0; rank < 5; ++rank) {
      const bool odd = rank == 1 || rank == 4;
      const Ranks set = odd ? Ranks{1, 4} : Ranks{0, 2, 3};
      const std::string name = (odd ? "odd" : "even") + std::to_string(round);
      reductions.start(world, rank, name, 1234, set, set, SetId{odd ? 2u : 1u});
      reductions.start(world, rank, "all" + std::to_string(round), 77, ranks_to(5), ranks_to(5));
    }
    world.run(random);
  }
  reductions.check();
}

TEST_CASE("engine: adasum takes zeros of a rank that has joined") {
  std::mt19937 random(2);
  EngineWorld world({.size = 4});
  Reductions reductions;
  Request join;
  join.kind = Kind::join;
  std::vector<Handle> joins;
  const auto joined = [&](int rank) {
    auto handle = world.post(rank, join, nullptr, nullptr);
    REQUIRE(handle);
    joins.push_back(*handle);
  };
  joined(2);
  for (const int rank : {0, 1, 3})
    reductions.start(world, rank, "gradient", 3000, ranks_to(4), {0, 1, 3});
  world.run(random);
  reductions.check();
  for (const int rank : {0, 1, 3})
    joined(rank);
  world.run(random);
  for (const Handle& handle : joins)
    CHECK(handle->done());
}

}  // namespace hora::test
