// A rank dies at any task of an encoded template: results and residuals are all of one World or the
// other.
//
// Three jobs are compared: one in which nobody dies, one of the survivors alone, and the one with
// the death. In that every segment, rank by rank, has the bits of one of the first two, the result
// and what is kept of it alike; and the same one on all ranks, by the contributors that it names.
#include <cstring>
#include <deque>

#include "tests/support/repair_set.h"

namespace hora::test {
namespace {

constexpr int kSize = 4;
constexpr std::size_t kCount = 9000;
constexpr std::size_t kCalls = 2;  // The second starts while the first ends.
constexpr std::uint64_t kWanted = 8 << 10;

RepairSetOptions options_of(const char* transport, int size) {
  return {.transport = transport,
          .size = size,
          .layout = {.lanes = 2, .window = 4, .slot_bytes = 64 << 10, .tags = 16}};
}

float value_of(int rank, std::size_t call, std::size_t i) {
  const auto mixed = static_cast<std::uint32_t>(i * 2654435761u + rank * 40503u + call * 69621u);
  return static_cast<float>(static_cast<int>(mixed >> 8 & 0xffff) - 0x8000) / 4096.0F;
}

/// Two all-reduces of a tensor each on ranks that are known by their names, and what they keep.
class Job {
 public:
  /// `names`: of the ranks, by rank.
  Job(const char* transport, std::vector<int> names, const AlgorithmRow& row,
      const std::string& codec, std::uint64_t segment_bytes)
      : set(options_of(transport, static_cast<int>(names.size()))),
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
  /// Makes a run ready for the World that there is now.
  void renew(int rank, CollectiveRun& run) { set.give_template(rank, call_, run); }
  void collect() {
    for (const int rank : set.members()) {
      if (!set[rank].executor) continue;
      for (auto& run : set[rank].executor->take_finished())
        finished_[index(rank)][run->ticket] = std::move(run);
    }
  }
  [[nodiscard]] std::uint64_t segment_bytes() const { return call_.segment_bytes; }

  [[nodiscard]] int rank_of(int name) const {
    return static_cast<int>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }
  [[nodiscard]] float output(int name, std::size_t call, std::size_t i) const {
    return memory(index(rank_of(name)), call).output[i];
  }
  [[nodiscard]] float residual(int name, std::size_t call, std::size_t i) const {
    const Residual* kept = stores_[index(rank_of(name))].find(std::to_string(call));
    return kept == nullptr ? 0 : kept->values[i];
  }
  /// How many contribute to an element.
  [[nodiscard]] std::size_t contributors(int name, std::size_t call, std::size_t i) const {
    const CollectiveRun& run = *finished_.at(index(rank_of(name))).at(call);
    for (const Contribution& range : run.contributed) {
      if (i * sizeof(float) / run.segment_bytes < range.end_segment) {
        return range.contributors->size();
      }
    }
    FAIL("an element without contributors");
    return 0;
  }

  RepairSet set;

 private:
  struct Memory {
    std::vector<float> input, output;
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] const Memory& memory(std::size_t rank, std::size_t call) const {
    return memory_[rank * kCalls + call];
  }

  void enqueue(std::size_t rank, std::size_t call) {
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

std::unique_ptr<Job> job_of(const char* transport, const std::vector<int>& names,
                            const AlgorithmRow& row, const std::string& codec,
                            std::uint64_t segment_bytes) {
  return std::make_unique<Job>(transport, names, row, codec, segment_bytes);
}

/// A job in which nobody dies.
std::unique_ptr<Job> undisturbed(const char* transport, const std::vector<int>& names,
                                 const AlgorithmRow& row, const std::string& codec,
                                 std::uint64_t segment_bytes) {
  auto job = job_of(transport, names, row, codec, segment_bytes);
  job->enqueue_all();
  std::mt19937 random(1);
  job->set.run(random);
  REQUIRE(job->set.idle());
  return job;
}

/// Of which job the segments of the third one are.
struct Tally {
  std::size_t of_all = 0, of_survivors = 0, copies = 0;
};

void compare(const Job& all, const Job& survivors, const Job& broken, int victim, Tally& tally) {
  for (int name = 0; name < kSize; ++name) {
    if (name == victim) continue;
    for (std::size_t call = 0; call < kCalls; ++call) {
      for (std::size_t i = 0; i < kCount; ++i) {
        const bool with_all = broken.contributors(name, call, i) == kSize;
        const Job& as = with_all ? all : survivors;
        ++(with_all ? tally.of_all : tally.of_survivors);
        if (broken.output(name, call, i) != as.output(name, call, i)) FAIL("output " << i);
        if (broken.residual(name, call, i) != as.residual(name, call, i)) FAIL("residual " << i);
      }
    }
  }
}

/// False: the victim has fewer tasks.
bool run_with_death(const char* transport, const AlgorithmRow& row, const std::string& codec,
                    const Job& all, const Job& survivors, int victim, std::uint64_t task,
                    Tally& tally) {
  INFO(transport << " " << row.name << " " << codec << ": rank " << victim << " dies at its task "
                 << task);
  std::mt19937 random(static_cast<unsigned>(task * 4 + static_cast<std::uint64_t>(victim)));
  auto broken = job_of(transport, {0, 1, 2, 3}, row, codec, all.segment_bytes());
  broken->set.die_at(victim, task, task % 2 == 0);
  broken->enqueue_all();
  broken->set.run(random);
  if (broken->set[victim].alive) return false;
  broken->collect();
  broken->set.repair(
      random, [&](int rank, std::uint64_t, CollectiveRun& run) { broken->renew(rank, run); });
  broken->set.run(random);
  broken->collect();
  REQUIRE(broken->set.idle());
  compare(all, survivors, *broken, victim, tally);
  tally.copies += broken->set.copies();
  return true;
}

}  // namespace

TEST_CASE("repair: with a codec each segment and its residual are of all ranks or the survivors") {
  for (const char* transport : {"loopback", "shm"}) {
    for (const std::string codec : {"int8+ef", "topk(ratio=0.1)+ef"}) {
      const bool gathers = (*make_codec(codec))->traits().kind == CodecKind::gather;
      for (const AlgorithmRow& row : algorithms()) {
        if (row.make_encoded == nullptr || (gathers && !row.gathers)) continue;
        Tally tally;
        const auto all = undisturbed(transport, {0, 1, 2, 3}, row, codec, 0);
        for (const int victim : {0, 2}) {
          std::vector<int> others = {0, 1, 2, 3};
          others.erase(others.begin() + victim);
          const auto survivors = undisturbed(transport, others, row, codec, all->segment_bytes());
          std::uint64_t task = 0;
          while (run_with_death(transport, row, codec, *all, *survivors, victim, task, tally))
            task += 3;
          REQUIRE(task > 30);
        }
        INFO(transport << " " << row.name << " " << codec);
        CHECK(tally.of_all > 0);
        CHECK(tally.of_survivors > 0);
        CHECK(tally.copies > 0);
      }
    }
  }
}

}  // namespace hora::test
