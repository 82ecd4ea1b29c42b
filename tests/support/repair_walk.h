// The walk: a rank dies at any task of any template, and the others finish what was in flight.
//
// Rank r gives elements of 4^r times a small number, so a sum tells who is in it. Demanded after
// each repair: the survivors have the same bytes; every segment is the sum of exactly the members
// that its run names, each once; all survivors are among them; inputs are what they were; what was
// shown to a caller is shown once, and never changes.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/repair_set.h"

namespace hora::test {

/// A row of collectives on all ranks, and their memory.
class WalkCalls {
 public:
  static constexpr int kSize = 4;

  WalkCalls(RepairSet& set, const std::vector<RepairCall>& calls, bool in_place)
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

  /// The survivors become the next World.
  void repair(std::mt19937& random) {
    set_.repair(random, [this](int rank, std::uint64_t ticket, CollectiveRun& run) {
      set_.give_template(rank, calls_[ticket], run);
      if (run.schedule->shape == Shape::gather) fill(rank, run);
    });
  }

  /// Takes what has finished; its callers see it from now on.
  void collect() {
    for (const int rank : set_.members()) {
      for (auto& run : set_.take_finished(rank)) {
        Memory& memory = memory_[index(rank)][run->ticket];
        demand(memory.shown.empty(), "a result was shown twice");
        memory.shown = memory.output;
        finished_[index(rank)][run->ticket] = std::move(run);
      }
    }
  }

  void check() {
    demand(set_.idle(), "members wait for ever");
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      const int first = set_.members().front();
      for (const int rank : set_.members()) {
        const std::string where = std::string("collective ") + std::to_string(c) + " (" +
                                  std::string(calls_[c].row->name) + ") on rank " +
                                  std::to_string(rank) + ": ";
        demand(finished_[index(rank)].count(c) == 1, where + "not finished");
        const CollectiveRun& run = *finished_[index(rank)].at(c);
        const Memory& memory = memory_[index(rank)][c];
        demand(memory.output == memory.shown, where + "changed behind the caller's back");
        demand(memory.output == memory_[index(first)][c].output, where + "other bytes");
        check_contributors(run, *finished_[index(first)].at(c), where);
        if (run.schedule->shape == Shape::gather) {
          check_gathered(run, memory, where);
        } else {
          check_reduced(run, memory, calls_[c], where);
        }
        if (!in_place_) demand(memory.input == make_memory(rank).input, where + "changed input");
      }
    }
  }

 private:
  static constexpr std::size_t kCount = 700;  // Several segments of each collective.
  static constexpr std::uint64_t kSegmentBytes = 1024;

  struct Memory {
    std::vector<float> input, output;
    std::vector<float> shown;  // The output when its caller was told.
  };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  static float value_of(int rank, std::size_t i) {
    return static_cast<float>((1 << (2 * rank)) * (1 + static_cast<int>(i % 5)));
  }

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

  void check_contributors(const CollectiveRun& run, const CollectiveRun& other,
                          const std::string& where) {
    demand(run.contributed.size() == other.contributed.size(), where + "other contributors");
    demand(run.contributed.back().end_segment == run.segments(), where + "nameless segments");
    for (std::size_t i = 0; i < run.contributed.size(); ++i) {
      const auto& mine = *run.contributed[i].contributors;
      demand(run.contributed[i].end_segment == other.contributed[i].end_segment &&
                 mine == *other.contributed[i].contributors,
             where + "other contributors");
      demand(std::includes(mine.begin(), mine.end(), set_.members().begin(), set_.members().end()),
             where + "a survivor does not contribute");
    }
  }

  static const std::vector<std::int32_t>& contributors_of(const CollectiveRun& run,
                                                          std::uint64_t segment) {
    for (const Contribution& range : run.contributed) {
      if (segment < range.end_segment) return *range.contributors;
    }
    throw Violation("a segment without contributors");
  }

  static void check_reduced(const CollectiveRun& run, const Memory& memory, const RepairCall& call,
                            const std::string& where) {
    for (std::size_t i = 0; i < kCount && run.total_bytes > 0; ++i) {
      float expected = 0;
      if (call.row->collective == Collective::broadcast) {
        expected = value_of(call.root, i);
      } else {
        for (const int rank : contributors_of(run, i * sizeof(float) / run.segment_bytes))
          expected += value_of(rank, i);
      }
      if (memory.output[i] != expected) {
        throw Violation(where + "element " + std::to_string(i) + " is " +
                        std::to_string(memory.output[i]) + ", not " + std::to_string(expected));
      }
    }
  }

  static void check_gathered(const CollectiveRun& run, const Memory& memory,
                             const std::string& where) {
    demand(run.contributed.size() == 1, where + "of two Worlds");
    const auto& ranks = *run.contributed.front().contributors;
    demand(memory.output.size() == ranks.size() * kCount, where + "of another length");
    for (std::size_t part = 0; part < ranks.size(); ++part) {
      for (std::size_t i = 0; i < kCount; ++i) {
        if (memory.output[part * kCount + i] != value_of(ranks[part], i)) {
          throw Violation(where + "row " + std::to_string(i) + " of part " + std::to_string(part));
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

/// Private results are nobody else's: those collectives are done by all or by none.
inline bool is_private(const AlgorithmRow& row) {
  return row.collective == Collective::reducescatter || row.collective == Collective::alltoall;
}

inline std::vector<RepairCall> calls_of_all_kinds() {
  std::vector<RepairCall> calls;
  for (const AlgorithmRow& row : algorithms()) {
    if (is_private(row)) continue;
    const int root = row.collective == Collective::broadcast ? 3 : 0;
    calls.push_back({&row, root, static_cast<std::uint16_t>(calls.size() % 2), 0});
  }
  return calls;
}

/// One death, and what it was good for.
struct WalkedDeath {
  bool died = false;    ///< The victim has that many tasks.
  bool second = false;  ///< So has, by steps, the second one.
  std::size_t copies = 0;
};

/// Runs the calls, with one rank dying at a task; `second` steps into the repair of that another
/// one dies, if it is not negative.
inline WalkedDeath run_with_death(const RepairSetOptions& options,
                                  const std::vector<RepairCall>& calls, int victim,
                                  std::uint64_t task, bool before, int second = -1) {
  try {
    std::mt19937 random(static_cast<unsigned>(task * 2 + before + 1000 * index_of(Rank(victim))));
    RepairSet set(options);
    set.die_at(victim, task, before);
    WalkCalls memory(set, calls, task % 2 == 0);
    set.run_until_dead(victim, random);
    if (task % 3 == 0) set.run(random);  // Else the others are in the middle of things.
    WalkedDeath walked;
    if (set[victim].alive) return walked;
    walked.died = true;
    memory.collect();
    const int other = (victim + 1) % 3;  // Rank 3 lives: it is the root of broadcasts.
    if (second >= 0) set.die_soon(other, second);
    memory.repair(random);
    set.run(random);
    memory.collect();
    walked.second = !set[other].alive;
    if (walked.second && set.place_of(other) < static_cast<int>(set.members().size())) {
      memory.repair(random);
      set.run(random);
      memory.collect();
    }
    memory.check();
    walked.copies = set.copies();
    return walked;
  } catch (const Violation& violation) {
    throw Violation(options.transport + ", rank " + std::to_string(victim) + " dies " +
                    (before ? "before" : "after") + " its task " + std::to_string(task) +
                    (second < 0 ? "" : ", another " + std::to_string(second) + " steps later") +
                    ": " + violation.what());
  }
}

/// Every task of a rank; returns how many results were copied.
inline std::size_t walk(const RepairSetOptions& options, const std::vector<RepairCall>& calls,
                        int victim) {
  std::size_t copies = 0;
  std::uint64_t task = 0;
  for (;; ++task) {
    const WalkedDeath walked = run_with_death(options, calls, victim, task, victim % 2 == 0);
    if (!walked.died) break;
    copies += walked.copies;
  }
  demand(task > 1, "the victim runs no tasks");
  return copies;
}

}  // namespace hora::test
