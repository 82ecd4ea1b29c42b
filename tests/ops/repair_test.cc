// A rank dies at any task of any template, and the others finish what was in flight.
//
// Rank r gives elements of 4^r times a small number, so a sum tells who is in it. Checked after
// each repair: the survivors have the same bytes; every segment is the sum of exactly the members
// that its run names, each once; all survivors are among them; inputs are what they were.
#include <cstring>

#include "tests/support/repair_set.h"

namespace hora::test {
namespace {

constexpr int kSize = 4;
constexpr std::size_t kCount = 700;  // Several segments of each collective.
constexpr std::uint64_t kSegmentBytes = 1024;

float value_of(int rank, std::size_t i) {
  return static_cast<float>((1 << (2 * rank)) * (1 + static_cast<int>(i % 5)));
}

/// The memory of one collective on one rank.
struct Memory {
  std::vector<float> input, output;
};

/// A row of collectives on all ranks, and their memory.
class Calls {
 public:
  Calls(RepairSet& set, const std::vector<RepairCall>& calls, bool in_place)
      : set_(set), calls_(calls), in_place_(in_place) {
    memory_.resize(kSize);
    for (int rank = 0; rank < kSize; ++rank) {
      for (std::size_t c = 0; c < calls_.size(); ++c)
        memory_[index(rank)].push_back(make_memory(rank));
    }
    for (int rank = 0; rank < kSize; ++rank) {
      for (std::size_t c = 0; c < calls_.size(); ++c) {
        auto run = std::make_unique<CollectiveRun>();
        run->ticket = c;
        run->dtype = DType::float32;
        fill(rank, *run);
        set_.enqueue(rank, calls_[c], std::move(run), kSegmentBytes);
      }
    }
  }

  /// Makes a run ready for the World that there is now.
  void renew(int rank, std::uint64_t ticket, CollectiveRun& run) {
    set_.give_template(rank, calls_[ticket], run);
    if (run.schedule->shape == Shape::gather) fill(rank, run);
  }

  void collect() {
    for (const int rank : set_.members()) {
      RepairRank& parts = set_[rank];
      if (!parts.executor) continue;
      for (auto& run : parts.executor->take_finished())
        finished_[index(rank)][run->ticket] = std::move(run);
    }
  }

  void check() {
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      INFO("collective " << c << " " << calls_[c].row->name);
      const int first = set_.members().front();
      for (const int rank : set_.members()) {
        INFO("rank " << rank);
        REQUIRE(finished_[index(rank)].count(c) == 1);
        const CollectiveRun& run = *finished_[index(rank)].at(c);
        const CollectiveRun& other = *finished_[index(first)].at(c);
        const Memory& memory = memory_[index(rank)][c];
        REQUIRE(memory.output == memory_[index(first)][c].output);
        check_contributors(run, other);
        if (run.schedule->shape == Shape::gather) {
          check_gathered(run, memory);
        } else {
          check_reduced(run, memory, calls_[c]);
        }
        if (!in_place_) REQUIRE(memory.input == make_memory(rank).input);
      }
    }
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  static Memory make_memory(int rank) {
    Memory memory;
    for (std::size_t i = 0; i < kCount; ++i)
      memory.input.push_back(value_of(rank, i));
    memory.output.assign(kCount, -1.0f);
    return memory;
  }

  void fill(int rank, CollectiveRun& run) {
    Memory& memory = memory_[index(rank)][run.ticket];
    const RepairCall& call = calls_[run.ticket];
    const std::uint64_t bytes = kCount * sizeof(float);
    run.total_bytes = bytes;
    run.pieces.clear();
    const auto* input = reinterpret_cast<const std::byte*>(memory.input.data());
    if (call.row->collective == Collective::allgather) {
      run.extents.clear();
      for (std::size_t r = 0; r < set_.members().size(); ++r)
        run.extents.push_back({bytes, 0, r * bytes});
      memory.output.assign(kCount * set_.members().size(), -1.0f);
      run.input = input;
      run.output = reinterpret_cast<std::byte*>(memory.output.data());
      return;
    }
    if (call.row->collective == Collective::barrier) {
      run.total_bytes = 0;
      return;
    }
    if (in_place_) memory.output = memory.input;
    auto* output = reinterpret_cast<std::byte*>(memory.output.data());
    const bool gives = call.row->collective != Collective::broadcast || rank == call.root;
    run.pieces.push_back({gives ? (in_place_ ? output : input) : nullptr, output, 0, bytes});
  }

  void check_contributors(const CollectiveRun& run, const CollectiveRun& other) {
    REQUIRE(run.contributed.size() == other.contributed.size());
    REQUIRE(run.contributed.back().end_segment == run.segments());
    for (std::size_t i = 0; i < run.contributed.size(); ++i) {
      const auto& mine = *run.contributed[i].contributors;
      REQUIRE(run.contributed[i].end_segment == other.contributed[i].end_segment);
      REQUIRE(mine == *other.contributed[i].contributors);
      REQUIRE(
          std::includes(mine.begin(), mine.end(), set_.members().begin(), set_.members().end()));
    }
  }

  static const std::vector<std::int32_t>& contributors_of(const CollectiveRun& run,
                                                          std::uint64_t segment) {
    for (const Contribution& range : run.contributed) {
      if (segment < range.end_segment) return *range.contributors;
    }
    FAIL("a segment without contributors");
    return *run.contributed.front().contributors;
  }

  static void check_reduced(const CollectiveRun& run, const Memory& memory,
                            const RepairCall& call) {
    for (std::size_t i = 0; i < kCount && run.total_bytes > 0; ++i) {
      float expected = 0;
      if (call.row->collective == Collective::broadcast) {
        expected = value_of(call.root, i);
      } else {
        for (const int rank : contributors_of(run, i * sizeof(float) / run.segment_bytes))
          expected += value_of(rank, i);
      }
      if (memory.output[i] != expected) {
        FAIL("element " << i << " is " << memory.output[i] << ", not " << expected);
      }
    }
  }

  static void check_gathered(const CollectiveRun& run, const Memory& memory) {
    REQUIRE(run.contributed.size() == 1);
    const auto& ranks = *run.contributed.front().contributors;
    REQUIRE(memory.output.size() == ranks.size() * kCount);
    for (std::size_t part = 0; part < ranks.size(); ++part) {
      for (std::size_t i = 0; i < kCount; ++i) {
        if (memory.output[part * kCount + i] != value_of(ranks[part], i)) {
          FAIL("row " << i << " of part " << part << " is wrong");
        }
      }
    }
  }

  RepairSet& set_;
  std::vector<RepairCall> calls_;
  const bool in_place_;
  std::vector<std::vector<Memory>> memory_;
  std::map<std::size_t, std::map<std::size_t, std::shared_ptr<CollectiveRun>>> finished_;
};

void repair_and_finish(RepairSet& set, Calls& memory, std::mt19937& random) {
  set.repair(random, [&](int rank, std::uint64_t ticket, CollectiveRun& run) {
    memory.renew(rank, ticket, run);
  });
  set.run(random);
  memory.collect();
}

/// Runs the calls, with one rank dying at a task. False: it has fewer tasks.
bool run_with_death(const RepairSetOptions& options, const std::vector<RepairCall>& calls,
                    int victim, std::uint64_t task, bool before, std::size_t& copies) {
  INFO(options.transport << ", rank " << victim << " dies " << (before ? "before" : "after")
                         << " its task " << task);
  std::mt19937 random(static_cast<unsigned>(task * 2 + before + 1000 * index_of(Rank(victim))));
  RepairSet set(options);
  set.die_at(victim, task, before);
  Calls memory(set, calls, task % 2 == 0);
  set.run(random);
  if (set[victim].alive) return false;
  memory.collect();
  repair_and_finish(set, memory, random);
  REQUIRE(set.idle());
  memory.check();
  copies += set.copies();
  return true;
}

void walk(const RepairSetOptions& options, const std::vector<RepairCall>& calls, int victim,
          std::size_t& copies) {
  std::uint64_t task = 0;
  while (run_with_death(options, calls, victim, task, victim % 2 == 0, copies))
    ++task;
  REQUIRE(task > 1);
}

/// Private results are nobody else's: those collectives are done by all or by none.
bool is_private(const AlgorithmRow& row) {
  return row.collective == Collective::reducescatter || row.collective == Collective::alltoall;
}

std::vector<RepairCall> calls_of_all_kinds() {
  std::vector<RepairCall> calls;
  for (const AlgorithmRow& row : algorithms()) {
    if (is_private(row)) continue;
    const int root = row.collective == Collective::broadcast ? 3 : 0;
    calls.push_back({&row, root, static_cast<std::uint16_t>(calls.size() % 2), 0});
  }
  return calls;
}

}  // namespace

TEST_CASE("repair: a rank dies at any task of any template, and the others finish") {
  for (const char* transport : {"loopback", "shm", "two hosts"}) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective == Collective::broadcast || is_private(row)) continue;
      INFO(transport << " " << row.name);
      std::size_t copies = 0;
      for (int victim = 0; victim < kSize; ++victim) {
        const RepairCall call{&row, 0, 0, 0};
        walk({.transport = transport}, {call, call}, victim, copies);
      }
    }
  }
}

TEST_CASE("repair: a broadcast goes on from a root that lives") {
  for (const char* transport : {"loopback", "shm", "two hosts"}) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective != Collective::broadcast) continue;
      INFO(transport << " " << row.name);
      std::size_t copies = 0;
      for (int victim = 0; victim < kSize; ++victim) {
        const RepairCall call{&row, (victim + 1) % kSize, 0, 0};
        walk({.transport = transport}, {call, call}, victim, copies);
      }
    }
  }
}

TEST_CASE("repair: collectives of all kinds on two lanes, and results are copied") {
  const std::vector<RepairCall> calls = calls_of_all_kinds();
  for (const char* transport : {"loopback", "shm", "two hosts"}) {
    std::size_t copies = 0;
    for (int victim = 0; victim < 3; ++victim)
      walk({.transport = transport}, calls, victim, copies);
    CHECK(copies > 0);
  }
}

TEST_CASE("repair: another rank dies while the first death is repaired") {
  const std::vector<RepairCall> calls = calls_of_all_kinds();
  int second_deaths = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    RepairSet set({.transport = seed % 2 == 0 ? "loopback" : "shm"});
    Calls memory(set, calls, seed % 3 == 0);
    const int first = static_cast<int>(random() % 3);
    const int second = (first + 1 + static_cast<int>(random() % 2)) % 3;
    set.die_soon(first, static_cast<int>(random() % 60));
    set.run(random);
    if (set[first].alive) continue;
    memory.collect();
    set.die_soon(second, static_cast<int>(random() % 80));
    repair_and_finish(set, memory, random);
    if (!set[second].alive) {
      ++second_deaths;
      const auto& members = set.members();
      if (std::find(members.begin(), members.end(), second) != members.end()) {
        repair_and_finish(set, memory, random);
      }
    }
    REQUIRE(set.idle());
    memory.check();
  }
  CHECK(second_deaths > 100);
}

}  // namespace hora::test
