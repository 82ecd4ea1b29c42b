// Process sets and joins through whole engines: who gets which bytes, and who is refused.
#include <algorithm>
#include <numeric>
#include <set>

#include "tests/runtime/engine_calls.h"
#include "tests/support/engine_world.h"

namespace hora::test {
namespace {

using Ranks = std::vector<std::int32_t>;

/// A call in a process set, with its memory and what must come out.
struct SetCall {
  std::string name;
  std::vector<float> input, output, expected;
  Handle handle;
};

class SetWorld {
 public:
  SetWorld(int size, const std::vector<Ranks>& sets, unsigned seed)
      : sets_(size, sets), random(seed), world(options_of(size, sets)) {
    UNSCOPED_INFO("seed " << seed);
  }

  [[nodiscard]] const Ranks& ranks_of(SetId set) const { return sets_.find(set)->ranks; }

  /// `there`: the ranks that contribute; the others have joined.
  void allreduce(int rank, SetId set, const std::string& name, std::int64_t count,
                 const Ranks& there, ReduceOp op = ReduceOp::sum) {
    SetCall& call = add(name, values_of(rank, count), static_cast<std::size_t>(count));
    call.expected.assign(static_cast<std::size_t>(count), 0.0f);
    for (std::size_t i = 0; i < call.expected.size(); ++i) {
      for (const std::int32_t other : there)
        call.expected[i] += value_of(other, static_cast<std::int64_t>(i));
      if (op == ReduceOp::average) call.expected[i] /= static_cast<float>(ranks_of(set).size());
    }
    Request request = allreduce_request(name, count, op);
    request.set = set;
    post(rank, request, call, call.output.data());
  }

  void broadcast(int rank, SetId set, const std::string& name, std::int64_t count, int root) {
    SetCall& call = add(name, values_of(rank, count), static_cast<std::size_t>(count));
    call.expected = values_of(root, count);
    Request request = allreduce_request(name, count);
    request.kind = Kind::broadcast;
    request.set = set;
    request.root = root;
    post(rank, request, call, call.output.data());
  }

  /// Rank r gives `rows` + r rows.
  void allgather(int rank, SetId set, const std::string& name, std::int64_t rows) {
    SetCall& call = add(name, values_of(rank, rows + rank), 0);
    for (const std::int32_t other : ranks_of(set)) {
      const auto part = values_of(other, rows + other);
      call.expected.insert(call.expected.end(), part.begin(), part.end());
    }
    Request request = allreduce_request(name, rows + rank);
    request.kind = Kind::allgather;
    request.set = set;
    post(rank, request, call, nullptr);
  }

  void barrier(int rank, SetId set, const std::string& name) {
    post(rank, meeting(Kind::barrier, set, name), add(name, {}, 0), nullptr);
  }

  static Request meeting(Kind kind, SetId set = kGlobalSet, const std::string& name = "change",
                         Ranks members = {}) {
    Request request;
    request.kind = kind;
    request.set = set;
    request.name = name;
    request.members = std::move(members);
    return request;
  }

  /// All ranks change the sets, or join; the handles.
  std::vector<Handle> everywhere(const Request& request) {
    std::vector<Handle> handles;
    for (int rank = 0; rank < world.size(); ++rank) {
      auto handle = world.post(rank, request, nullptr, nullptr);
      REQUIRE(handle);
      handles.push_back(*handle);
    }
    world.run(random);
    return handles;
  }

  void add_set(const Ranks& ranks) { sets_.add(sets_.free_id(), ranks); }
  void remove_set(SetId set) { sets_.remove(set); }

  /// All calls are done and right.
  void check_all() {
    for (const auto& call : calls_) {
      INFO(call->name);
      REQUIRE(call->handle->done());
      if (!call->handle->outcome()) FAIL(call->handle->outcome().error().message);
      if (const auto output = call->handle->take_output()) {
        const auto* values = reinterpret_cast<const float*>(output.get());
        call->output.assign(values, values + call->expected.size());
      }
      REQUIRE(call->output == call->expected);
    }
    calls_.clear();
    for (int rank = 0; rank < world.size(); ++rank) {
      CHECK_FALSE(world[rank].busy());
      CHECK_FALSE(world[rank].stopped());
    }
  }

 private:
  static EngineWorldOptions options_of(int size, const std::vector<Ranks>& sets) {
    EngineWorldOptions options;
    options.size = size;
    options.config.process_sets = sets;
    return options;
  }

  SetCall& add(const std::string& name, std::vector<float> input, std::size_t outputs) {
    auto call = std::make_unique<SetCall>();
    call->name = name;
    call->input = std::move(input);
    call->output.assign(outputs, -1.0f);
    calls_.push_back(std::move(call));
    return *calls_.back();
  }

  void post(int rank, Request request, SetCall& call, void* output) {
    call.name += " of set " + std::to_string(request.set.value) + " on " + std::to_string(rank);
    auto handle = world.post(rank, std::move(request), call.input.data(), output);
    if (!handle) FAIL(handle.error().message);
    call.handle = *handle;
  }

  ProcessSets sets_;
  std::vector<std::unique_ptr<SetCall>> calls_;

 public:
  std::mt19937 random;
  EngineWorld world;
};

const Error& error_of(const Handle& handle) {
  REQUIRE(handle->done());
  REQUIRE_FALSE(handle->outcome());
  return handle->outcome().error();
}

}  // namespace

TEST_CASE("engine sets: overlapping sets in any order, the same names in all of them") {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    std::vector<Ranks> sets;
    for (std::int32_t first = 0; first < size; ++first) {
      Ranks ranks;
      for (std::int32_t rank = first; rank < std::min(size, first + 1 + static_cast<int>(seed % 3));
           ++rank)
        ranks.push_back(rank);
      if (static_cast<int>(ranks.size()) < size) sets.push_back(ranks);
    }
    SetWorld all(size, sets, seed);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<std::function<void()>>> todo(static_cast<std::size_t>(size));
      for (std::uint32_t number = 0; number <= sets.size(); ++number) {
        const SetId set(number);
        for (const std::int32_t rank : all.ranks_of(set)) {
          auto& mine = todo[static_cast<std::size_t>(rank)];
          for (const std::int64_t count : {0, 1, 1001, 5000}) {
            mine.emplace_back([&all, rank, set, count] {
              all.allreduce(rank, set, "sum" + std::to_string(count), count, all.ranks_of(set));
            });
          }
          mine.emplace_back([&all, rank, set] {
            all.allreduce(rank, set, "average", 60, all.ranks_of(set), ReduceOp::average);
          });
          mine.emplace_back([&all, rank, set] { all.allgather(rank, set, "gather", 700); });
          mine.emplace_back([&all, rank, set] { all.barrier(rank, set, "barrier"); });
          for (const std::int32_t root : all.ranks_of(set)) {
            mine.emplace_back([&all, rank, set, root] {
              all.broadcast(rank, set, "from" + std::to_string(root), 1500, root);
            });
          }
        }
      }
      for (std::size_t rank = 0; rank < todo.size(); ++rank)
        std::shuffle(todo[rank].begin(), todo[rank].end(), all.random);
      for (bool any = true; any;) {
        any = false;
        for (auto& mine : todo) {
          if (mine.empty()) continue;
          mine.back()();
          mine.pop_back();
          any = true;
          all.world.step(static_cast<int>(all.random() % static_cast<unsigned>(size)));
        }
      }
      all.world.run(all.random);
      all.check_all();
    }
  }
}

TEST_CASE("engine sets: sets come and go, and every rank knows the same ones") {
  SetWorld all(4, {{2, 3}}, 21);
  for (int round = 0; round < 4; ++round) {
    const Ranks ranks = round % 2 == 0 ? Ranks{3, 0, 1} : Ranks{1};
    for (const Handle& handle : all.everywhere(SetWorld::meeting(Kind::add_set, {}, "c", ranks))) {
      REQUIRE(handle->outcome());
      CHECK(handle->value() == 2);
    }
    all.add_set(ranks);
    const SetId set(2);
    for (int rank = 0; rank < 4; ++rank) {
      const auto known = all.world[rank].process_sets();
      REQUIRE(known.size() == 3);
      CHECK(known[2]->ranks == all.ranks_of(set));
    }
    for (const std::int32_t rank : all.ranks_of(set))
      all.allreduce(rank, set, "x", 3000, all.ranks_of(set));
    all.world.run(all.random);
    all.check_all();
    for (const Handle& handle : all.everywhere(SetWorld::meeting(Kind::remove_set, set, "c")))
      REQUIRE(handle->outcome());
    all.remove_set(set);
  }
}

TEST_CASE("engine sets: what one rank may not submit is refused there, and nowhere else") {
  SetWorld all(3, {{0, 1}}, 22);
  const auto refusal = [&](int rank, const Request& request) {
    const auto refused = all.world.post(rank, request, nullptr, nullptr);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::invalid_argument);
    return refused.error().message;
  };
  const SetId pair(1);
  CHECK(refusal(2, SetWorld::meeting(Kind::barrier, pair)) ==
        "Barrier: Rank 2 is not a member of the provided process set. (process set 1 (ranks 0,1))");
  CHECK(refusal(0, SetWorld::meeting(Kind::allreduce, SetId(7))) ==
        "Allreduce: Process set provided does not exist, or has not been registered. (process set "
        "7)");
  CHECK(refusal(0, SetWorld::meeting(Kind::remove_set, SetId(7))).find("does not exist") !=
        std::string::npos);

  // From the moment a rank asks for its removal it has no use of a set, unless that fails.
  const auto removal =
      all.world.post(0, SetWorld::meeting(Kind::remove_set, pair), nullptr, nullptr);
  REQUIRE(removal);
  CHECK(refusal(0, SetWorld::meeting(Kind::barrier, pair)).find("does not exist") !=
        std::string::npos);
  for (const int rank : {1, 2}) {
    REQUIRE(all.world.post(rank, SetWorld::meeting(Kind::add_set, {}, "change", {2}), nullptr,
                           nullptr));
  }
  all.world.run(all.random);
  CHECK(error_of(*removal).kind == ErrorKind::mismatch);
  for (const int rank : {0, 1})
    all.barrier(rank, pair, "b");
  all.world.run(all.random);
  all.check_all();
}

TEST_CASE("engine sets: who waits for a set that is removed is told") {
  SetWorld all(3, {{0, 1}}, 23);
  float value = 1;
  Request alone = allreduce_request("alone", 1);
  alone.set = SetId(1);
  const auto waiting = all.world.post(0, alone, &value, &value);
  REQUIRE(waiting);
  for (const Handle& handle : all.everywhere(SetWorld::meeting(Kind::remove_set, SetId(1))))
    REQUIRE(handle->outcome());
  const Error& error = error_of(*waiting);
  CHECK(error.kind == ErrorKind::mismatch);
  CHECK(error.message.find("process set 1 was removed while tensor 'alone' waited for rank 1") ==
        0);
  for (int rank = 0; rank < 3; ++rank)
    all.allreduce(rank, kGlobalSet, "alone", 100, {0, 1, 2});
  all.world.run(all.random);
  all.check_all();
}

TEST_CASE("engine join: uneven ranks of any sets; who has joined gives zeros") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const int size = 1 + static_cast<int>(seed % 4);
    const std::vector<Ranks> sets =
        size == 4 ? std::vector<Ranks>{{0, 1}, {1, 2, 3}} : std::vector<Ranks>{};
    SetWorld all(size, sets, seed);
    for (int phase = 0; phase < 3; ++phase) {
      std::vector<int> steps(static_cast<std::size_t>(size));
      for (int& mine : steps)
        mine = static_cast<int>(all.random() % 5);
      for (int step = 0; step < 5; ++step) {
        for (std::uint32_t number = 0; number <= sets.size(); ++number) {
          Ranks there;
          for (const std::int32_t rank : all.ranks_of(SetId(number))) {
            if (steps[static_cast<std::size_t>(rank)] > step) there.push_back(rank);
          }
          const std::string name = std::to_string(step);
          for (const std::int32_t rank : there) {
            all.allreduce(rank, SetId(number), "large" + name, 4000, there);
            all.allreduce(rank, SetId(number), "small" + name, 5, there, ReduceOp::average);
            all.barrier(rank, SetId(number), "barrier" + name);
            all.world.step(rank);
          }
        }
      }
      std::vector<Handle> joins;
      for (int rank = 0; rank < size; ++rank) {
        auto handle = all.world.post(rank, SetWorld::meeting(Kind::join), nullptr, nullptr);
        REQUIRE(handle);
        joins.push_back(*handle);
        all.world.step(static_cast<int>(all.random() % static_cast<unsigned>(size)));
      }
      all.world.run(all.random);
      std::set<std::int64_t> lasts;
      for (const Handle& join : joins) {
        REQUIRE(join->done());
        REQUIRE(join->outcome());
        lasts.insert(join->value());
      }
      CHECK(lasts.size() == 1);
      CHECK((*lasts.begin() >= 0 && *lasts.begin() < size));
      all.check_all();
    }
  }
}

TEST_CASE("engine join: a joined rank submits nothing until all have joined") {
  SetWorld all(2, {}, 24);
  const auto join = all.world.post(0, SetWorld::meeting(Kind::join), nullptr, nullptr);
  REQUIRE(join);
  for (const Kind kind : {Kind::barrier, Kind::join, Kind::add_set}) {
    const auto refused = all.world.post(0, SetWorld::meeting(kind), nullptr, nullptr);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::invalid_argument);
    CHECK(refused.error().message.find("rank 0 has joined") == 0);
  }
  REQUIRE(all.world.post(1, SetWorld::meeting(Kind::join), nullptr, nullptr));
  all.world.run(all.random);
  REQUIRE((*join)->done());
  for (const int rank : {0, 1})
    all.barrier(rank, kGlobalSet, "b");
  all.world.run(all.random);
  all.check_all();
}

TEST_CASE("engine join: a rank that leaves or is lost ends the join of the others") {
  for (const bool orderly : {true, false}) {
    SetWorld all(3, {}, 25);
    std::vector<Handle> joins;
    for (const int rank : {0, 1}) {
      auto handle = all.world.post(rank, SetWorld::meeting(Kind::join), nullptr, nullptr);
      REQUIRE(handle);
      joins.push_back(*handle);
    }
    all.world.run(all.random);
    if (orderly) {
      all.world[2].post_shutdown("has no more data");
    } else {
      all.world[0].post_event({ControlEvent::Kind::peer_lost, Rank(2), "killed by signal 9"});
      all.world[1].post_event({ControlEvent::Kind::peer_lost, Rank(2), "killed by signal 9"});
    }
    all.world.run(all.random);
    for (const Handle& join : joins) {
      CHECK(error_of(join).kind == (orderly ? ErrorKind::shutdown : ErrorKind::peer_lost));
    }
  }
}

}  // namespace hora::test
