// A sleeper that waits for peers in shared memory, for sockets and for threads of its own at once
// misses none of them.
//
// A lost wake-up would sleep on to the deadline, which no sleep here may reach.
#include "runtime/base/wait_point.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <unistd.h>

namespace hora::test {
namespace {

constexpr int kRounds = 5000;
constexpr int kSigns = 3;

/// A pipe: what a socket is to a wait point.
struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0) {
      read_end = Fd(ends[0]);
      write_end = Fd(ends[1]);
    }
  }
  void write() const {
    const char byte = 0;
    [[maybe_unused]] const ssize_t written = ::write(write_end.get(), &byte, 1);
  }
  /// Bytes that were there.
  [[nodiscard]] int drain() const {
    char bytes[64];
    const ssize_t got = ::read(read_end.get(), bytes, sizeof bytes);
    return got > 0 ? static_cast<int>(got) : 0;
  }
  Fd read_end, write_end;
};

/// A wait point, and what may wake it.
struct Sleeper {
  explicit Sleeper(bool with_socket) {
    auto made = WaitPoint::make(words);
    REQUIRE(made);
    wait_point = std::move(*made);
    if (with_socket) wait_point->watch(pipe.read_end.get());
  }
  DoorbellWords words{};
  std::unique_ptr<WaitPoint> wait_point;
  Pipe pipe;
};

/// In every round a peer gives three signs, `rings_of(round)` of them in shared memory and the rest
/// through the socket, and the sleeper waits for all three. Returns how many sleeps were late.
int late_sleeps(bool with_socket, const std::function<int(int round)>& rings_of) {
  Sleeper sleeper(with_socket);
  WaitPoint& wait_point = *sleeper.wait_point;

  std::atomic<int> asked{0}, rung{0};
  std::thread peer([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (asked.load(std::memory_order_acquire) < round)
        std::this_thread::yield();
      const int rings = rings_of(round);
      const bool socket_first = round % 2 == 0;
      for (int sign = 0; sign < kSigns; ++sign) {
        const bool by_memory = socket_first ? sign >= kSigns - rings : sign < rings;
        if (!by_memory) {
          sleeper.pipe.write();
          continue;
        }
        rung.fetch_add(1, std::memory_order_release);
        ring(sleeper.words, wait_point.eventfd(), false);
      }
    }
  });

  int late = 0, seen = 0, from_socket = 0;
  const auto look = [&] {
    if (with_socket) from_socket += sleeper.pipe.drain();
    const int now = rung.load(std::memory_order_acquire) + from_socket;
    return std::exchange(seen, now) != now;
  };
  for (int round = 1; round <= kRounds; ++round) {
    asked.store(round, std::memory_order_release);
    while (seen < round * kSigns) {
      const auto missing = static_cast<std::uint32_t>(round * kSigns - seen);
      const Deadline deadline = Deadline::after(30s);
      wait_point.sleep(deadline, {missing, false}, [&] { return !look(); });
      look();
      if (deadline.passed(steady_now())) ++late;
    }
  }
  peer.join();
  return late;
}

/// In every round each of three peers rings once, and the sleeper waits for all of them, or for one
/// after the other: one of the rings, whichever it is, is to wake it. Returns how many sleeps were
/// late.
int late_sleeps_of_peers(bool with_socket, bool one_by_one) {
  Sleeper sleeper(with_socket);
  WaitPoint& wait_point = *sleeper.wait_point;

  std::atomic<int> asked{0}, rung{0};
  std::vector<std::thread> peers;
  for (int sign = 0; sign < kSigns; ++sign) {
    peers.emplace_back([&] {
      for (int round = 1; round <= kRounds; ++round) {
        while (asked.load(std::memory_order_acquire) < round)
          std::this_thread::yield();
        rung.fetch_add(1, std::memory_order_release);
        ring(sleeper.words, wait_point.eventfd(), false);
      }
    });
  }
  int late = 0;
  for (int round = 1; round <= kRounds; ++round) {
    asked.store(round, std::memory_order_release);
    int seen = rung.load(std::memory_order_acquire);
    while (seen < round * kSigns) {
      const auto missing = static_cast<std::uint32_t>(one_by_one ? 1 : round * kSigns - seen);
      const Deadline deadline = Deadline::after(30s);
      // Any sign that came meanwhile changes how many are missing, so it cancels the sleep.
      wait_point.sleep(deadline, {missing, false},
                       [&] { return rung.load(std::memory_order_acquire) == seen; });
      seen = rung.load(std::memory_order_acquire);
      if (deadline.passed(steady_now())) ++late;
    }
  }
  for (std::thread& peer : peers)
    peer.join();
  return late;
}

}  // namespace

TEST_CASE("wait point: three rings from shared memory end one sleep, none is lost") {
  CHECK(late_sleeps(false, [](int) { return 3; }) == 0);
}

TEST_CASE("wait point: rings and sockets in any mixture end every sleep") {
  CHECK(late_sleeps(true, [](int round) { return round % 4; }) == 0);
}

TEST_CASE("wait point: whoever rings last of several peers ends the sleep") {
  for (const bool with_socket : {false, true}) {
    for (const bool one_by_one : {false, true})
      CHECK(late_sleeps_of_peers(with_socket, one_by_one) == 0);
  }
}

}  // namespace hora::test
