// The walk with a codec: a rank dies at any task of an encoded template, and results and residuals
// are of one World or the other.
//
// Jobs are compared: some in which nobody dies, of all ranks and of those that survive, and the one
// with the deaths. In that every segment, rank by rank, has the bits of one of the others, the
// result and what is kept of it alike; and the same one on all ranks, by the contributors that it
// names. So a residual is committed exactly once with the result that it belongs to.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/repair_set.h"

namespace hora::test {

/// Two all-reduces of a tensor each on ranks that are known by their names, and what they keep.
class EncodedJob {
 public:
  static constexpr std::size_t kCount = 4500;
  static constexpr std::size_t kCalls = 2;  // The second starts while the first ends.

  /// `names`: of the ranks, by rank. `segment_bytes` 0: chosen here.
  EncodedJob(const char* transport, std::vector<int> names, const AlgorithmRow& row,
             const std::string& codec, std::uint64_t segment_bytes)
      : set({.transport = transport,
             .size = static_cast<int>(names.size()),
             .layout = {.lanes = 2, .window = 4, .slot_bytes = 64 << 10, .tags = 16}}),
        names_(std::move(names)),
        codec_(*make_codec(codec)),
        call_{&row, 0, 0, segment_bytes},
        stores_(names_.size()),
        memory_(names_.size() * kCalls) {}

  void enqueue_all() {
    for (std::size_t rank = 0; rank < names_.size(); ++rank) {
      for (std::size_t c = 0; c < kCalls; ++c)
        enqueue(rank, c);
    }
  }
  /// Steps all until nothing moves, and takes what has finished.
  void run(std::mt19937& random) {
    set.run(random);
    collect();
  }
  void collect() {
    for (const int rank : set.members()) {
      for (auto& run : set.take_finished(rank))
        finished_[index(rank)][run->ticket] = std::move(run);
    }
  }
  /// The survivors become the next World and go on.
  void repair(std::mt19937& random) {
    set.repair(random, [this](int rank, std::uint64_t, CollectiveRun& run) {
      set.give_template(rank, call_, run);
    });
    run(random);
  }
  [[nodiscard]] std::uint64_t segment_bytes() const { return call_.segment_bytes; }

  [[nodiscard]] const std::vector<float>& output(int name, std::size_t call) const {
    return memory_[index(rank_of(name)) * kCalls + call].output;
  }
  [[nodiscard]] const std::vector<float>& residual(int name, std::size_t call) const {
    return stores_[index(rank_of(name))].find(std::to_string(call))->values;
  }
  /// Who contributes to the segments, by ranges.
  [[nodiscard]] const std::vector<Contribution>& contributed(int name, std::size_t call) const {
    const auto runs = finished_.find(index(rank_of(name)));
    demand(runs != finished_.end() && runs->second.contains(call), "a call is not finished");
    return runs->second.at(call)->contributed;
  }

  RepairSet set;

 private:
  struct Memory {
    std::vector<float> input, output;
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] int rank_of(int name) const {
    return static_cast<int>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }
  static float value_of(int rank, std::size_t call, std::size_t i) {
    const auto mixed = static_cast<std::uint32_t>(i * 2654435761u + rank * 40503u + call * 69621u);
    return static_cast<float>(static_cast<int>(mixed >> 8 & 0xffff) - 0x8000) / 4096.0F;
  }

  void enqueue(std::size_t rank, std::size_t call) {
    constexpr std::uint64_t kWanted = 4 << 10;
    Memory& memory = memory_[rank * kCalls + call];
    for (std::size_t i = 0; i < kCount; ++i)
      memory.input.push_back(value_of(names_[rank], call, i));
    memory.output.assign(kCount, -1.0F);
    auto run = std::make_unique<CollectiveRun>();
    run->ticket = call;
    run->dtype = DType::float32;
    run->codec = codec_;
    run->residuals = &stores_[rank];
    run->total_bytes = kCount * sizeof(float);
    run->pieces.push_back({reinterpret_cast<const std::byte*>(memory.input.data()),
                           reinterpret_cast<std::byte*>(memory.output.data()), 0, run->total_bytes,
                           &stores_[rank].open(std::to_string(call), kCount)});
    set.enqueue(static_cast<int>(rank), call_, std::move(run), kWanted);
  }

  std::vector<int> names_;
  std::shared_ptr<const Codec> codec_;
  RepairCall call_;
  std::deque<ResidualStore> stores_;
  std::vector<Memory> memory_;
  std::map<std::size_t, std::map<std::uint64_t, std::shared_ptr<CollectiveRun>>> finished_;
};

/// Deaths in jobs of four ranks that are alike otherwise.
class EncodedWalk {
 public:
  static constexpr int kSize = 4;

  EncodedWalk(const char* transport, const AlgorithmRow& row, std::string codec)
      : transport_(transport), row_(row), codec_(std::move(codec)) {
    segment_bytes_ = undisturbed({0, 1, 2, 3}).segment_bytes();
  }

  /// False: the victim has fewer tasks. `second`: so many steps later another one dies; -1: nobody.
  bool dies(int victim, std::uint64_t task, int second = -1) {
    try {
      return run_with_death(victim, task, second);
    } catch (const Violation& violation) {
      throw Violation(std::string(transport_) + " " + std::string(row_.name) + " " + codec_ +
                      ": rank " + std::to_string(victim) + " dies at its task " +
                      std::to_string(task) +
                      (second < 0 ? "" : ", another " + std::to_string(second) + " steps later") +
                      ": " + violation.what());
    }
  }

  std::size_t of_all = 0, of_survivors = 0;  ///< Elements.
  std::size_t copies = 0, second_deaths = 0;

 private:
  /// The job of these ranks in which nobody dies.
  const EncodedJob& undisturbed(const std::vector<std::int32_t>& names) {
    auto& job = undisturbed_[names];
    if (!job) {
      job = std::make_unique<EncodedJob>(transport_, std::vector<int>(names.begin(), names.end()),
                                         row_, codec_, segment_bytes_);
      job->enqueue_all();
      std::mt19937 random(1);
      job->run(random);
      demand(job->set.idle(), "a job without a death does not end");
    }
    return *job;
  }

  bool run_with_death(int victim, std::uint64_t task, int second) {
    std::mt19937 random(static_cast<unsigned>(task * 4 + static_cast<std::uint64_t>(victim)));
    EncodedJob broken(transport_, {0, 1, 2, 3}, row_, codec_, segment_bytes_);
    broken.set.die_at(victim, task, task % 2 == 0);
    broken.enqueue_all();
    broken.set.run_until_dead(victim, random);
    if (broken.set[victim].alive) return false;
    if (task % 2 == 0) broken.set.run(random);  // Else the others are in the middle of things.
    broken.collect();
    const int other = (victim + 1) % kSize;
    if (second >= 0) broken.set.die_soon(other, second);
    broken.repair(random);
    if (!broken.set[other].alive) {
      ++second_deaths;
      if (broken.set.place_of(other) < static_cast<int>(broken.set.members().size())) {
        broken.repair(random);
      }
    }
    demand(broken.set.idle(), "members wait for ever");
    for (const int name : broken.set.members())
      compare(broken, name);
    copies += broken.set.copies();
    return true;
  }

  void compare(const EncodedJob& broken, int name) {
    const int first = broken.set.members().front();
    const std::size_t segment = segment_bytes_ / sizeof(float);
    for (std::size_t call = 0; call < EncodedJob::kCalls; ++call) {
      const auto& ranges = broken.contributed(name, call);
      demand(std::equal(ranges.begin(), ranges.end(), broken.contributed(first, call).begin(),
                        broken.contributed(first, call).end(),
                        [](const Contribution& a, const Contribution& b) {
                          return a.end_segment == b.end_segment &&
                                 *a.contributors == *b.contributors;
                        }),
             "other contributors");
      std::size_t i = 0;
      for (const Contribution& range : ranges) {
        const EncodedJob& as = undisturbed(*range.contributors);
        const std::size_t begin = i;
        i = std::min(EncodedJob::kCount, range.end_segment * segment);
        (range.contributors->size() == kSize ? of_all : of_survivors) += i - begin;
        const auto alike = [&](const std::vector<float>& a, const std::vector<float>& b) {
          return std::equal(a.data() + begin, a.data() + i, b.data() + begin);
        };
        const std::string where = " of elements " + std::to_string(begin) + " to " +
                                  std::to_string(i) + " of rank " + std::to_string(name);
        demand(alike(broken.output(name, call), as.output(name, call)), "the results" + where);
        demand(alike(broken.residual(name, call), as.residual(name, call)),
               "the residuals" + where);
      }
      demand(i == EncodedJob::kCount, "elements without contributors");
    }
  }

  const char* transport_;
  const AlgorithmRow& row_;
  const std::string codec_;
  std::uint64_t segment_bytes_ = 0;
  std::map<std::vector<std::int32_t>, std::unique_ptr<EncodedJob>> undisturbed_;
};

}  // namespace hora::test
