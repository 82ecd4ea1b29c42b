// The executor alone: all-reduce over shared memory between processes, no negotiation, no Python.
//
//   bench_raw [ranks] [--algorithm direct] [--segment BYTES] [--window W]
//
// Prints the median, p10, p90 and mean time of a call and the CPU of all ranks per call, for 1 KB
// to 100 MB. This is the row to hold against bench_floor: what the executor adds to an exchange
// written by hand.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops/algorithms/algorithms.h"
#include "ops/executor.h"
#include "ops/transport/shm.h"
#include "runtime/base/check.h"

namespace {

using namespace hora;

constexpr int kMaxRanks = 64;

struct Entry {
  pid_t pid;
  int fd;
  WorkerId worker;
  ShmOffer offer;
};

struct Shared {
  std::atomic<int> arrived[4];
  Entry entries[kMaxRanks];
  std::atomic<std::uint64_t> cpu_us[16];
};

struct Options {
  int ranks = 4;
  std::string algorithm;
  std::uint64_t segment = 0;
  std::uint32_t window = 4;
};

void meet(std::atomic<int>& counter, int ranks) {
  ++counter;
  while (counter < ranks)
    usleep(100);
}

std::uint64_t cpu_us() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 +
         static_cast<std::uint64_t>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

class RawRank {
 public:
  RawRank(Shared& shared, int rank, const Options& options)
      : options_(options), rank_(rank), arena_(*Arena::make(256 << 20, make_worker_id(), true)) {
    layout_ = {2, options.window, 1 << 20, static_cast<std::uint16_t>(2 * options.ranks + 2)};
    area_ = *arena_->reserve(layout_.area_bytes(), "slots");
    transport_ =
        std::move(*ShmTransport::make(*arena_, layout_, Epoch(1), Rank(rank), options.ranks));
    wait_point_ = std::move(*WaitPoint::make(arena_->doorbell()));
    ArenaHeader header;
    std::memcpy(&header, arena_->at(0), sizeof header);
    shared.entries[rank] = {getpid(), arena_->fd(), header.worker, transport_->offer()};
    meet(shared.arrived[0], options.ranks);
    std::vector<Link*> pointers;
    for (int p = 0; p < options.ranks; ++p) {
      links_.emplace_back();
      if (p != rank) {
        const Entry& peer = shared.entries[p];
        const std::string path =
            "/proc/" + std::to_string(peer.pid) + "/fd/" + std::to_string(peer.fd);
        auto mapped = PeerArena::map(Fd(open(path.c_str(), O_RDWR | O_CLOEXEC)), peer.worker);
        HORA_CHECK(mapped.has_value(), "a peer's arena can be mapped");
        links_.back() = transport_->connect(Rank(p), std::move(*mapped), peer.offer, Fd());
      }
      pointers.push_back(links_.back().get());
    }
    executor_ = std::make_unique<Executor>(
        *arena_, pointers, ExecutorOptions{layout_, area_, true, Rank(rank), Epoch(1), {}});
    meet(shared.arrived[1], options.ranks);
  }

  void allreduce(float* data, std::size_t count) {
    const std::uint64_t bytes = count * sizeof(float);
    const std::string name = !options_.algorithm.empty() ? options_.algorithm
                             : bytes <= 8192             ? "exchange"
                                                         : "direct";
    auto& schedule = schedules_[name == "exchange"];
    if (!schedule) {
      schedule =
          std::make_unique<Schedule>(find_algorithm(name, Collective::allreduce)
                                         ->make(Topology::one_host(options_.ranks), rank_, 0));
    }
    auto run = std::make_unique<CollectiveRun>();
    run->schedule = schedule.get();
    run->dtype = DType::float32;
    auto* memory = reinterpret_cast<std::byte*>(data);
    run->pieces.push_back({memory, memory, 0, bytes});
    run->total_bytes = bytes;
    const std::uint64_t wanted =
        options_.segment != 0 ? options_.segment
                              : std::max<std::uint64_t>(128 << 10, options_.ranks * (32 << 10));
    run->segment_bytes = fit_segment(*schedule, true, layout_.slot_bytes, wanted);
    executor_->enqueue(0, std::move(run));
    int fruitless = 0;
    while (executor_->take_finished().empty()) {
      if (step()) {
        fruitless = 0;
      } else if (++fruitless < 20) {
        for (int i = 0; i < 10; ++i)
          __builtin_ia32_pause();
      } else {
        wait_point_->sleep(Deadline::after(1s), executor_->need(), [this] { return !step(); });
        fruitless = 19;
      }
    }
    transport_->flush();
  }

 private:
  bool step() {
    bool happened = transport_->progress();
    happened = executor_->step(256 << 10) || happened;
    transport_->flush();
    return happened;
  }

  Options options_;
  int rank_;
  std::unique_ptr<Arena> arena_;
  LaneLayout layout_;
  std::size_t area_ = 0;
  std::unique_ptr<ShmTransport> transport_;
  std::unique_ptr<WaitPoint> wait_point_;
  std::vector<std::unique_ptr<Link>> links_;
  std::unique_ptr<Schedule> schedules_[2];
  std::unique_ptr<Executor> executor_;
};

void run_rank(Shared& shared, int rank, const Options& options) {
  RawRank raw(shared, rank, options);
  const std::vector<std::pair<std::size_t, int>> sizes = {{1 << 10, 3000},  {8 << 10, 2000},
                                                          {64 << 10, 1000}, {1 << 20, 200},
                                                          {16 << 20, 20},   {102'400'000, 6}};
  int row = 0;
  for (const auto& [bytes, iterations] : sizes) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    for (int i = 0; i < std::max(2, iterations / 10); ++i)
      raw.allreduce(data.data(), data.size());
    std::vector<double> times;
    const std::uint64_t cpu_before = cpu_us();
    for (int i = 0; i < iterations; ++i) {
      const TimePoint start = steady_now();
      raw.allreduce(data.data(), data.size());
      times.push_back(to_seconds(steady_now() - start) * 1e6);
    }
    shared.cpu_us[row] += cpu_us() - cpu_before;
    raw.allreduce(data.data(), 1);  // A barrier: all CPU figures are in.
    raw.allreduce(data.data(), 1);
    if (rank == 0) {
      const double mean = std::accumulate(times.begin(), times.end(), 0.0) / iterations;
      std::sort(times.begin(), times.end());
      const auto at = [&](double q) {
        return times[static_cast<std::size_t>(q * (iterations - 1))];
      };
      std::printf("%10zu B  median %10.1f us  p10 %10.1f  p90 %10.1f  mean %10.1f  cpu %10.1f us\n",
                  bytes, at(0.5), at(0.1), at(0.9), mean,
                  static_cast<double>(shared.cpu_us[row]) / iterations);
      std::fflush(stdout);
    }
    ++row;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--algorithm" && has_value) {
      options.algorithm = argv[++i];
    } else if (argument == "--segment" && has_value) {
      options.segment = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--window" && has_value) {
      options.window = static_cast<std::uint32_t>(std::atoi(argv[++i]));
    } else {
      options.ranks = std::clamp(std::atoi(argument.c_str()), 1, kMaxRanks);
    }
  }
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* shared = new (memory) Shared{};
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      run_rank(*shared, rank, options);
      _exit(0);
    }
  }
  int failed = 0;
  for (int rank = 0; rank < options.ranks; ++rank) {
    int status = 0;
    if (wait(&status) > 0 && status != 0) ++failed;
  }
  return failed == 0 ? 0 : 1;
}
