// bench_floor: what an all-reduce over shared memory costs before any runtime is around it.
//
// A number such as "40 us for 1 KB" means nothing alone: on a machine with two cores a wake-up
// across cores costs 26 us, and four ranks cannot all run. So this program measures, with as
// little code as possible, the steps that any design has to pay, and the engine is judged by its
// distance from them:
//
//   barrier    all ranks meet at one counter (200 pauses, then futex): the denominator of the
//              other rows
//   exchange   1 KB float32 all-reduce on the caller's thread: publish, wait for all, merge the
//              views of all
//   negotiate  the same after rank 0 has gathered a bit from every rank and answered
//   engine     the same as negotiate, but run by a second thread of each process, which the
//              caller wakes
//
// Everything a rank writes for others is a counter that only it writes and that only grows, beside
// a slot of data; a doorbell says "look again". Two slots are enough: nobody publishes round r+2
// before everybody has published r+1, and who published r+1 has finished reading r.
//
//   rank 0   [bits][answer][data][doorbell][slot 0][slot 1]
//   rank 1   [bits][answer][data][doorbell][slot 0][slot 1]     ... one line of memory per word
//
// Time is wall time per round on rank 0; CPU is user + system time of all ranks per round. Runs of
// the four modes are interleaved, since the machine drifts.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/samples.h"

namespace {

using Word = std::atomic<std::uint32_t>;

constexpr int kMaxRanks = 64;
constexpr int kPauses = 200;  // longer spinning takes the core from the rank that is waited for
constexpr std::size_t kFloats = 256;  // 1 KB
constexpr auto kPatience = std::chrono::seconds(30);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

/// Sleeps while `word` is `value`, at most 100 ms: callers loop and know their own deadline.
void futex_sleep(Word& word, std::uint32_t value) {
  const timespec limit{0, 100'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void futex_wake_all(Word& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "bench_floor: %s\n", what);
  _exit(1);
}

/// A sleeper's side of "look again". `target` is the count of rings it sleeps for: only that ring
/// pays for the system call, so that an exchange of n ranks wakes each rank once and not n-1 times.
struct alignas(64) Doorbell {
  Word rings{0};
  Word asleep{0};
  Word target{0};

  void ring() {
    const std::uint32_t now = rings.fetch_add(1) + 1;
    if (asleep.load() != 0 && static_cast<std::int32_t>(now - target.load()) >= 0) {
      futex_wake_all(rings);
    }
  }

  /// Returns when `missing()` is 0; `missing` counts the rings still to come.
  template <typename Missing>
  void wait(Missing missing) {
    for (int i = 0; i < kPauses; ++i) {
      if (missing() == 0) {
        return;
      }
      pause_cpu();
    }
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      // The count is read before the question is asked: a ring in between makes us look twice,
      // never too late.
      const std::uint32_t seen = rings.load();
      asleep.store(1);
      const std::uint32_t more = missing();
      if (more == 0) {
        asleep.store(0);
        return;
      }
      target.store(seen + more);
      futex_sleep(rings, seen);
      asleep.store(0);
      if (std::chrono::steady_clock::now() > deadline) {
        give_up("a rank waited 30 s for its peers");
      }
    }
  }
};

struct alignas(64) Counter {
  Word value{0};
};

/// What one rank shows to the others.
struct Seat {
  Counter bit;     // round for which this rank is ready
  Counter answer;  // rank 0: round that everybody may run
  Counter data;    // round whose slot is filled
  Doorbell doorbell;
  std::array<std::array<float, kFloats>, 2> slots;
};

struct Shared {
  Counter arrived;     // barrier: ranks of this generation
  Counter generation;  // barrier: futex word
  std::array<Seat, kMaxRanks> seats;
  std::array<double, kMaxRanks> cpu_us;
};

double cpu_us_of_process() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& t) {
    return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

/// One rank's view of the table. Owner: the thread that runs the rounds.
class Player {
 public:
  Player(Shared& shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {
    for (std::size_t i = 0; i < kFloats; ++i) {
      input_[i] = static_cast<float>(rank + 1);
    }
  }

  void barrier() {
    Word& generation = shared_.generation.value;
    const std::uint32_t mine = generation.load();
    if (shared_.arrived.value.fetch_add(1) + 1 == static_cast<std::uint32_t>(size_)) {
      shared_.arrived.value.store(0);
      generation.fetch_add(1);
      futex_wake_all(generation);
      return;
    }
    for (int i = 0; i < kPauses; ++i) {
      if (generation.load() != mine) {
        return;
      }
      pause_cpu();
    }
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (generation.load() == mine) {
      futex_sleep(generation, mine);
      if (std::chrono::steady_clock::now() > deadline) {
        give_up("a rank waited 30 s at the barrier");
      }
    }
  }

  void negotiate(std::uint32_t round) {
    if (rank_ == 0) {
      seat(0).doorbell.wait([&] { return behind(round, &Seat::bit, 1); });
      seat(0).answer.value.store(round);
      ring_others();
      return;
    }
    seat(rank_).bit.value.store(round);
    seat(0).doorbell.ring();
    seat(rank_).doorbell.wait([&] { return seat(0).answer.value.load() < round ? 1u : 0u; });
  }

  void exchange(std::uint32_t round) {
    const float factor = static_cast<float>(round % 16 + 1);
    input_[0] = static_cast<float>(rank_ + 1) * factor;  // so that a slot of an older round shows
    seat(rank_).slots[round % 2] = input_;
    seat(rank_).data.value.store(round);
    ring_others();
    seat(rank_).doorbell.wait([&] { return behind(round, &Seat::data, 0); });
    output_ = seat(0).slots[round % 2];
    for (int r = 1; r < size_; ++r) {
      const std::array<float, kFloats>& view = seat(r).slots[round % 2];
      for (std::size_t i = 0; i < kFloats; ++i) {
        output_[i] += view[i];
      }
    }
    const float sum = static_cast<float>(size_ * (size_ + 1) / 2);
    if (output_[0] != sum * factor || output_[kFloats - 1] != sum) {
      give_up("a sum is wrong");
    }
  }

 private:
  Seat& seat(int rank) { return shared_.seats[static_cast<std::size_t>(rank)]; }

  std::uint32_t behind(std::uint32_t round, Counter Seat::*which, int first) {
    std::uint32_t count = 0;
    for (int r = first; r < size_; ++r) {
      count += (seat(r).*which).value.load() < round ? 1 : 0;
    }
    return count;
  }

  void ring_others() {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) {
        seat(r).doorbell.ring();
      }
    }
  }

  Shared& shared_;
  int rank_;
  int size_;
  std::array<float, kFloats> input_{};
  std::array<float, kFloats> output_{};
};

/// The second thread of mode `engine`: runs negotiate + exchange for whatever round
/// the caller submits.
class EngineThread {
 public:
  explicit EngineThread(Player& player) : player_(player), thread_([this] { serve(); }) {}
  ~EngineThread() {
    submit(kStop);
    thread_.join();
  }
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  void run(std::uint32_t round) {
    submit(round);
    to_caller_.wait([&] { return finished_.load() == round ? 0u : 1u; });
  }

 private:
  static constexpr std::uint32_t kStop = UINT32_MAX;

  void submit(std::uint32_t round) {
    submitted_.store(round);
    to_engine_.ring();
  }

  void serve() {
    for (std::uint32_t last = 0;;) {
      to_engine_.wait([&] { return submitted_.load() == last ? 1u : 0u; });
      last = submitted_.load();
      if (last == kStop) {
        return;
      }
      player_.negotiate(last);
      player_.exchange(last);
      finished_.store(last);
      to_caller_.ring();
    }
  }

  Player& player_;
  Word submitted_{0};
  Word finished_{0};
  Doorbell to_engine_;
  Doorbell to_caller_;
  std::thread thread_;  // last: starts when everything above exists
};

enum class Mode { barrier, exchange, negotiate, engine };
constexpr std::array kModes{Mode::barrier, Mode::exchange, Mode::negotiate, Mode::engine};
constexpr std::array<const char*, 4> kModeNames{"barrier", "exchange", "negotiate", "engine"};

/// Times `rounds` calls of `step(round)`, after a tenth of that as warm-up. Rank 0's
/// samples go to `out`.
void time_rounds(Player& player, Shared& shared, int rank, std::span<float> out,
                 const std::function<void(std::uint32_t)>& step) {
  std::uint32_t round = 0;
  for (std::size_t i = 0; i < out.size() / 10 + 1; ++i) {
    step(++round);
  }
  player.barrier();
  const double cpu_before = cpu_us_of_process();
  auto before = std::chrono::steady_clock::now();
  for (float& sample : out) {
    step(++round);
    const auto now = std::chrono::steady_clock::now();
    if (rank == 0) {
      sample = std::chrono::duration<float, std::micro>(now - before).count();
    }
    before = now;
  }
  shared.cpu_us[static_cast<std::size_t>(rank)] = cpu_us_of_process() - cpu_before;
}

void play(Mode mode, Shared& shared, int rank, int size, std::span<float> out) {
  Player player(shared, rank, size);
  switch (mode) {
    case Mode::barrier:
      time_rounds(player, shared, rank, out, [&](std::uint32_t) { player.barrier(); });
      return;
    case Mode::exchange:
      time_rounds(player, shared, rank, out, [&](std::uint32_t r) { player.exchange(r); });
      return;
    case Mode::negotiate:
      time_rounds(player, shared, rank, out, [&](std::uint32_t r) {
        player.negotiate(r);
        player.exchange(r);
      });
      return;
    case Mode::engine: {
      EngineThread engine(player);
      time_rounds(player, shared, rank, out, [&](std::uint32_t r) { engine.run(r); });
      player.barrier();  // nobody leaves while a peer may still ring
      return;
    }
  }
}

/// Forks `size` ranks that play one mode.
hora::bench::Quantiles run_mode(Mode mode, int size, std::size_t rounds, double& cpu_us) {
  const std::size_t bytes = sizeof(Shared) + rounds * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    give_up("no shared memory");
  }
  Shared& shared = *new (memory) Shared{};
  const std::span<float> samples(reinterpret_cast<float*>(&shared + 1), rounds);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      play(mode, shared, rank, size, samples);
      _exit(0);
    }
    if (pid < 0) {
      give_up("fork failed");
    }
    ranks.push_back(pid);
  }
  for (const pid_t pid : ranks) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) {
      give_up("a rank failed");  // the others die with us
    }
  }
  cpu_us = 0;
  for (int rank = 0; rank < size; ++rank) {
    cpu_us += shared.cpu_us[static_cast<std::size_t>(rank)] / static_cast<double>(rounds);
  }
  const std::vector<double> copy(samples.begin(), samples.end());
  munmap(memory, bytes);
  return hora::bench::quantiles(copy);
}

/// Medians over the repeats of one (ranks, mode).
struct Row {
  int ranks;
  const char* mode;
  double median_us, p90_us, cpu_us;
};

std::vector<Row> measure(const std::vector<int>& sizes, std::size_t rounds, int repeats) {
  std::vector<Row> rows;
  for (const int size : sizes) {
    std::array<std::vector<double>, kModes.size()> medians, p90s, cpus;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (std::size_t m = 0; m < kModes.size(); ++m) {
        double cpu_us = 0;
        const hora::bench::Quantiles q = run_mode(kModes[m], size, rounds, cpu_us);
        medians[m].push_back(q.median);
        p90s[m].push_back(q.p90);
        cpus[m].push_back(cpu_us);
      }
    }
    for (std::size_t m = 0; m < kModes.size(); ++m) {
      rows.push_back({size, kModeNames[m], hora::bench::quantiles(medians[m]).median,
                      hora::bench::quantiles(p90s[m]).median,
                      hora::bench::quantiles(cpus[m]).median});
    }
  }
  return rows;
}

void print(const std::vector<Row>& rows, bool json) {
  if (!json) {
    std::printf("%5s  %-10s %10s %10s %12s\n", "ranks", "mode", "median us", "p90 us",
                "CPU us/round");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (json) {
      std::printf(
          "%s{\"ranks\": %d, \"mode\": \"%s\", \"median_us\": %.2f, \"p90_us\": %.2f, "
          "\"cpu_us\": %.2f}%s\n",
          i == 0 ? "[" : " ", row.ranks, row.mode, row.median_us, row.p90_us, row.cpu_us,
          i + 1 == rows.size() ? "]" : ",");
    } else {
      std::printf("%5d  %-10s %10.2f %10.2f %12.2f\n", row.ranks, row.mode, row.median_us,
                  row.p90_us, row.cpu_us);
    }
  }
}

constexpr const char* kUsage =
    "usage: bench_floor [--json] [--ranks N,N,...] [--rounds N] [--repeats N]\n"
    "defaults: --ranks 2,4,8 --rounds 3000 --repeats 5\n";

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> sizes{2, 4, 8};
  long rounds = 3000;
  long repeats = 5;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--json") {
      json = true;
    } else if (option == "--rounds") {
      rounds = std::atol(value);
      ++i;
    } else if (option == "--repeats") {
      repeats = std::atol(value);
      ++i;
    } else if (option == "--ranks") {
      sizes = hora::bench::int_list(value);
      ++i;
    } else {
      std::fputs(kUsage, stderr);
      return option == "--help" ? 0 : 2;
    }
  }
  const auto legal = [](int n) { return n >= 1 && n <= kMaxRanks; };
  if (sizes.empty() || !std::all_of(sizes.begin(), sizes.end(), legal) || rounds < 1 ||
      repeats < 1) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  print(measure(sizes, static_cast<std::size_t>(rounds), static_cast<int>(repeats)), json);
  return 0;
}
