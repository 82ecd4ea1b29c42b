// Members die between any two steps, and the engines of the others go on with the same calls.
//
// Every rank runs the same loop: rounds of collectives of all kinds, the next round when the last
// one is complete. Whatever the seed: the survivors finish all rounds; their bytes are equal; every
// element is the sum of exactly the ranks that the handle names, all survivors among them.
#include <algorithm>
#include <numeric>

#include "tests/runtime/engine_calls.h"
#include "tests/support/elastic_world.h"

namespace hora::test {
namespace {

constexpr int kSize = 4;

/// One call of one rank and its memory.
struct Submitted {
  Request request;
  std::vector<float> input, output;
  std::vector<int> members;  ///< First ranks, when it was submitted.
  Handle handle;
};

constexpr std::int64_t kScattered = 22;  // Rows of a reducescatter.

/// `codec`: of the all-reduces, which have the same names in every round then.
std::vector<Request> round_of(int round, int root, int size, const std::string& codec) {
  const std::string n = std::to_string(round);
  const std::string m = codec.empty() ? n : "";
  std::vector<Request> requests = {allreduce_request("small." + m, 7),
                                   allreduce_request("long." + m, 2600),
                                   allreduce_request("mean." + m, 300, ReduceOp::average)};
  for (Request& request : requests)
    request.codec = codec;
  Request gather = allreduce_request("rows." + n, 0);
  gather.kind = Kind::allgather;
  gather.shape = {20, 3};
  requests.push_back(gather);
  Request scatter = allreduce_request("part." + n, 0);
  scatter.kind = Kind::reducescatter;
  scatter.shape = {kScattered, 40};
  requests.push_back(scatter);
  Request exchange = allreduce_request("each." + n, 0);
  exchange.kind = Kind::alltoall;
  exchange.shape = {10 * size};
  exchange.splits.assign(static_cast<std::size_t>(size), 10);
  requests.push_back(exchange);
  Request broadcast = allreduce_request("from." + n, 900);
  broadcast.kind = Kind::broadcast;
  broadcast.root = root;
  requests.push_back(broadcast);
  Request barrier;
  barrier.kind = Kind::barrier;
  barrier.name = "all." + n;
  requests.push_back(barrier);
  return requests;
}

bool is_private(Kind kind) {
  return kind == Kind::reducescatter || kind == Kind::alltoall;
}

/// The loops of all ranks.
class Loops {
 public:
  Loops(ElasticWorld& world, int rounds, std::string codec = "")
      : world_(world), rounds_(rounds), codec_(std::move(codec)), calls_(kSize) {}

  /// Each rank whose round is complete submits the next one.
  void submit() {
    for (int rank = 0; rank < kSize; ++rank) {
      auto& calls = calls_[static_cast<std::size_t>(rank)];
      if (!world_.alive(rank) || static_cast<int>(calls.size()) == rounds_) continue;
      const bool complete =
          calls.empty() || std::all_of(calls.back().begin(), calls.back().end(),
                                       [](const auto& call) { return call->handle->done(); });
      if (complete) submit_round(rank);
    }
  }

  /// Steps everything until nothing moves and nobody submits, or `most` turns.
  void run(std::mt19937& random, int most) {
    for (int turn = 0; turn < most; ++turn) {
      submit();
      world_.run(random, 25);
      if (finished()) return;
    }
  }

  [[nodiscard]] bool finished() const {
    for (int rank = 0; rank < kSize; ++rank) {
      const auto& calls = calls_[static_cast<std::size_t>(rank)];
      if (!world_.alive(rank)) continue;
      if (static_cast<int>(calls.size()) < rounds_) return false;
      for (const auto& call : calls.back()) {
        if (!call->handle->done()) return false;
      }
    }
    return true;
  }

  void dump() {
    for (int rank = 0; rank < kSize; ++rank) {
      if (!world_.alive(rank)) continue;
      const auto& calls = calls_[static_cast<std::size_t>(rank)];
      std::string t;
      for (const auto& call : calls.back())
        if (!call->handle->done()) t += call->request.name + " ";
      UNSCOPED_INFO("rank " << rank << " rounds " << calls.size() << " waits " << t << " epoch "
                            << world_[rank].world()->epoch.value);
    }
  }
  /// Everything that survivors have got.
  void check() {
    std::vector<int> survivors;
    for (int rank = 0; rank < kSize; ++rank) {
      if (world_.alive(rank)) survivors.push_back(rank);
    }
    for (std::size_t round = 0; round < static_cast<std::size_t>(rounds_); ++round) {
      for (std::size_t c = 0; c < round_of(0, 0, kSize, codec_).size(); ++c) {
        const Submitted& first = *calls_[static_cast<std::size_t>(survivors[0])][round][c];
        for (const int rank : survivors) {
          Submitted& call = *calls_[static_cast<std::size_t>(rank)][round][c];
          INFO("rank " << rank << " " << call.request.name);
          if (!call.handle->outcome()) INFO(call.handle->outcome().error().message);
          REQUIRE(call.handle->outcome().has_value() == first.handle->outcome().has_value());
          if (!call.handle->outcome()) {
            ++failed_;
            REQUIRE((call.request.kind == Kind::broadcast || is_private(call.request.kind)));
            continue;
          }
          check_call(rank, call, survivors);
          if (is_private(call.request.kind)) {
            check_private(rank, round, c);
          } else {
            REQUIRE(call.output == first.output);
          }
        }
      }
    }
  }

  int failed_ = 0;    ///< Broadcasts whose root had died.
  int repaired_ = 0;  ///< Results with more than one list of contributors.

 private:
  void submit_round(int rank) {
    auto& calls = calls_[static_cast<std::size_t>(rank)];
    const int round = static_cast<int>(calls.size());
    auto& mine = calls.emplace_back();
    const auto now = world_[rank].world();
    for (const Request& request : round_of(round, 0, now->size(), codec_)) {
      auto call = std::make_unique<Submitted>();
      call->request = request;
      for (const Member& member : now->members)
        call->members.push_back(member.first_rank);
      const std::int64_t elements = std::accumulate(request.shape.begin(), request.shape.end(),
                                                    std::int64_t{1}, std::multiplies<>{});
      if (request.kind != Kind::barrier) call->input = values_of(rank, elements);
      call->output.assign(call->input.size(), -1.0f);
      void* output = has_extents(request.kind) ? nullptr : call->output.data();
      auto handle = world_.post(rank, request, call->input.data(), output);
      INFO((handle ? "" : handle.error().message));
      REQUIRE(handle);
      call->handle = *handle;
      mine.push_back(std::move(call));
    }
  }

  void check_call(int rank, Submitted& call, const std::vector<int>& survivors) {
    const auto& ranges = call.handle->contributions();
    REQUIRE_FALSE(ranges.empty());
    if (ranges.size() > 1) ++repaired_;
    for (const ElementRange& range : ranges) {
      REQUIRE(std::includes(range.contributors->begin(), range.contributors->end(),
                            survivors.begin(), survivors.end()));
    }
    REQUIRE(call.input == values_of(rank, static_cast<std::int64_t>(call.input.size())));
    if (call.request.kind == Kind::allgather) return check_rows(call);
    if (is_private(call.request.kind)) return;
    std::size_t i = 0;
    for (const ElementRange& range : ranges) {
      for (; i < std::min<std::uint64_t>(range.end, call.output.size()); ++i)
        check_element(call, i, *range.contributors);
    }
    REQUIRE(i == call.output.size());
  }

  void check_element(const Submitted& call, std::size_t i,
                     const std::vector<std::int32_t>& contributors) const {
    float expected = 0;
    if (call.request.kind == Kind::broadcast) {
      // Of the rank that was the root when it was submitted: any, but the same everywhere.
      return;
    }
    for (const std::int32_t rank : contributors)
      expected += value_of(rank, static_cast<std::int64_t>(i));
    if (call.request.op == ReduceOp::average) expected /= static_cast<float>(contributors.size());
    // A step of int8 is 1/127 of the largest, 28 of one rank; twice, and what was kept.
    const float loss = call.request.codec.empty() ? 0.0F : 2.0F;
    if (call.output[i] != Approx(expected).margin(loss)) {
      FAIL("element " << i << " is " << call.output[i] << ", not " << expected);
    }
  }

  static void check_rows(Submitted& call) {
    const auto& contributors = *call.handle->contributions().front().contributors;
    std::vector<float> expected;
    for (const std::int32_t rank : contributors) {
      const auto part = values_of(rank, 60);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    if (const auto output = call.handle->take_output()) {
      const auto* values = reinterpret_cast<const float*>(output.get());
      call.output.assign(values, values + expected.size());
    }
    REQUIRE(call.output == expected);
  }

  void check_private(int rank, std::size_t round, std::size_t c) {
    Submitted& call = *calls_[static_cast<std::size_t>(rank)][round][c];
    const auto& contributors = *call.handle->contributions().front().contributors;
    const auto size = static_cast<std::int64_t>(contributors.size());
    const auto me = std::find(contributors.begin(), contributors.end(), rank);
    const std::int64_t place = me - contributors.begin();
    std::vector<float> expected;
    if (call.request.kind == Kind::alltoall) {
      for (const std::int32_t giver : contributors) {
        // It may have had rows for more ranks than there were in the end.
        const std::vector<int>& takers = calls_[static_cast<std::size_t>(giver)][round][c]->members;
        const auto block = std::find(takers.begin(), takers.end(), rank) - takers.begin();
        for (std::int64_t i = 0; i < 10; ++i)
          expected.push_back(value_of(giver, block * 10 + i));
      }
    } else {
      const std::int64_t more = kScattered % size, each = kScattered / size;
      const std::int64_t first = place * each + std::min(place, more);
      const std::int64_t rows = each + (place < more ? 1 : 0);
      for (std::int64_t i = first * 40; i < (first + rows) * 40; ++i) {
        float sum = 0;
        for (const std::int32_t giver : contributors)
          sum += value_of(giver, i);
        expected.push_back(sum);
      }
    }
    const auto output = call.handle->take_output();
    REQUIRE(output);
    const auto* values = reinterpret_cast<const float*>(output.get());
    REQUIRE(std::vector<float>(values, values + expected.size()) == expected);
  }

  ElasticWorld& world_;
  const int rounds_;
  const std::string codec_;
  std::vector<std::vector<std::vector<std::unique_ptr<Submitted>>>> calls_;
};

}  // namespace

TEST_CASE("engine repair: whoever dies whenever, the others finish all rounds") {
  int repaired = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    ElasticWorld world(kSize, 2);
    Loops loops(world, 4);
    loops.run(random, static_cast<int>(random() % 60));
    const int victim = static_cast<int>(random() % kSize);
    world.kill(victim);
    loops.run(random, 4000);
    if (!loops.finished()) loops.dump();
    REQUIRE(loops.finished());
    loops.check();
    repaired += loops.repaired_;
  }
  CHECK(repaired > 0);
}

TEST_CASE("engine repair: a second member dies while the first death is repaired") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    ElasticWorld world(kSize, 2);
    Loops loops(world, 4);
    loops.run(random, static_cast<int>(random() % 40));
    const int first = static_cast<int>(random() % kSize);
    world.kill(first);
    loops.run(random, static_cast<int>(random() % 20));
    world.kill((first + 1 + static_cast<int>(random() % 3)) % kSize);
    loops.run(random, 4000);
    REQUIRE(loops.finished());
    loops.check();
  }
}

/// Loops of all-reduces with a codec that keeps what it does not send. Those that will die give
/// zeros, so nothing of theirs is lost; and topk sends whole numbers as they are, so in the end,
/// after rounds without anything new, all that the survivors have given is in the results, exactly.
class ConservedSums {
 public:
  static constexpr std::int64_t kCounts[] = {40, 2600};
  static constexpr int kRounds = 3, kDrains = 12;

  ConservedSums(ElasticWorld& world, std::vector<int> doomed)
      : world_(world), doomed_(std::move(doomed)), ranks_(kSize) {}

  void run(std::mt19937& random, int most) {
    for (int turn = 0; turn < most && !finished(); ++turn) {
      for (int rank = 0; rank < kSize; ++rank)
        submit(rank);
      world_.run(random, 25);
    }
  }

  [[nodiscard]] bool finished() const {
    for (int rank = 0; rank < kSize; ++rank) {
      if (world_.alive(rank) && ranks_[static_cast<std::size_t>(rank)].round <= kRounds + kDrains) {
        return false;
      }
    }
    return true;
  }

  void check() const {
    for (int rank = 0; rank < kSize; ++rank) {
      if (!world_.alive(rank)) continue;
      INFO("rank " << rank);
      for (std::size_t c = 0; c < std::size(kCounts); ++c) {
        const auto& sums = ranks_[static_cast<std::size_t>(rank)].sums[c];
        for (std::size_t i = 0; i < sums.size(); ++i) {
          double expected = 0;
          for (int giver = 0; giver < kSize; ++giver)
            expected += kRounds * given(giver, static_cast<std::int64_t>(i));
          if (sums[i] != expected) {
            FAIL("element " << i << ": " << sums[i] << ", not " << expected);
          }
        }
      }
    }
  }

 private:
  struct Loop {
    int round = 0;
    std::vector<float> input[2], output[2];
    std::vector<double> sums[2];
    Handle handles[2];
  };

  [[nodiscard]] float given(int rank, std::int64_t i) const {
    const bool dies = std::find(doomed_.begin(), doomed_.end(), rank) != doomed_.end();
    return dies ? 0.0F : value_of(rank, i * 7);
  }

  void submit(int rank) {
    Loop& loop = ranks_[static_cast<std::size_t>(rank)];
    if (!world_.alive(rank) || loop.round > kRounds + kDrains) return;
    for (const Handle& handle : loop.handles) {
      if (handle && !handle->done()) return;
    }
    for (std::size_t c = 0; c < std::size(kCounts); ++c) {
      if (loop.round > 0) {
        if (!loop.handles[c]->outcome()) FAIL(loop.handles[c]->outcome().error().message);
        for (std::size_t i = 0; i < loop.output[c].size(); ++i)
          loop.sums[c][i] += static_cast<double>(loop.output[c][i]);
      }
      loop.sums[c].resize(static_cast<std::size_t>(kCounts[c]));
      loop.input[c].assign(static_cast<std::size_t>(kCounts[c]), 0.0F);
      for (std::int64_t i = 0; loop.round < kRounds && i < kCounts[c]; ++i)
        loop.input[c][static_cast<std::size_t>(i)] = given(rank, i);
      loop.output[c].assign(loop.input[c].size(), -1.0F);
      if (loop.round == kRounds + kDrains) continue;
      Request request = allreduce_request("kept." + std::to_string(c), kCounts[c]);
      request.codec = "topk(ratio=0.15)+ef";
      auto handle = world_.post(rank, request, loop.input[c].data(), loop.output[c].data());
      INFO((handle ? "" : handle.error().message));
      REQUIRE(handle);
      loop.handles[c] = *handle;
    }
    ++loop.round;
  }

  ElasticWorld& world_;
  const std::vector<int> doomed_;
  std::vector<Loop> ranks_;
};

TEST_CASE("engine repair: what error feedback keeps for survivors is neither lost nor doubled") {
  for (unsigned seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    ElasticWorld world(kSize, 2);
    const int first = static_cast<int>(random() % kSize);
    std::vector<int> doomed = {first};
    if (seed % 2 == 1) doomed.push_back((first + 1 + static_cast<int>(random() % 3)) % kSize);
    ConservedSums sums(world, doomed);
    sums.run(random, static_cast<int>(random() % 60));
    for (const int victim : doomed) {
      world.kill(victim);
      sums.run(random, static_cast<int>(random() % 20));
    }
    sums.run(random, 4000);
    REQUIRE(sums.finished());
    sums.check();
  }
}

TEST_CASE(
    "engine repair: with codecs that lose something the survivors get the same, nearly right") {
  const std::vector<std::string> codecs = {"int8+ef", "int8", "bf16", "fp16", "fp16+ef"};
  std::size_t repaired = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    ElasticWorld world(kSize, 1);
    Loops loops(world, 4, codecs[seed % codecs.size()]);
    loops.run(random, static_cast<int>(random() % 60));
    for (int deaths = 1 + static_cast<int>(random() % 3); deaths > 0; --deaths) {
      world.kill((static_cast<int>(seed) + deaths) % kSize);
      loops.run(random, static_cast<int>(random() % 20));
    }
    loops.run(random, 4000);
    REQUIRE(loops.finished());
    loops.check();
    repaired += static_cast<std::size_t>(loops.repaired_);
  }
  CHECK(repaired > 0);
}

TEST_CASE("engine repair: with too few left, all calls fail and name the dead") {
  std::mt19937 random(1);
  ElasticWorld world(kSize, kSize);
  Loops loops(world, 2);
  loops.run(random, 3);
  world.kill(2);
  world.run(random, 2000);
  for (const int rank : {0, 1, 3}) {
    REQUIRE(world[rank].stopped());
    CHECK(world[rank].stopped()->message.find("rank 2 (pid 102 on node)") != std::string::npos);
  }
}

TEST_CASE("engine repair: ranks and sizes follow the World") {
  std::mt19937 random(2);
  ElasticWorld world(kSize, 2);
  Loops loops(world, 1);
  loops.run(random, 2000);
  world.kill(1);
  world.run(random, 2000);
  CHECK(world[0].world()->size() == 3);
  CHECK(world[3].world()->self == Rank(2));
  CHECK(world[3].world()->epoch == Epoch(2));
}

}  // namespace hora::test
