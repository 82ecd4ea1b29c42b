// See fork.h. A bit per descriptor number; the child's handler walks the words up to the highest
// one ever used. dup2 replaces the descriptor in one step: the number is never free, not even for a
// moment, and the inherited socket is closed without a shutdown.
#include "runtime/base/fork.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "runtime/base/check.h"

namespace hora {

namespace {

constexpr std::size_t kWordBits = 64;
constexpr std::size_t kMostDescriptors = std::size_t{1} << 20;  // The kernel's usual nr_open.

// Zero-initialized: lives in .bss and costs memory only where it is used.
std::array<std::atomic<std::uint64_t>, kMostDescriptors / kWordBits> tracked;
std::atomic<std::size_t> used_words;
std::atomic<int> null_fd;
std::atomic<std::uint64_t> generation;
std::once_flag installed;

/// Runs in the child, between fork's return and everything else.
void let_go() {
  generation.fetch_add(1, std::memory_order_relaxed);
  const int null = null_fd.load(std::memory_order_relaxed);
  const std::size_t words = used_words.load(std::memory_order_relaxed);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t bits = tracked[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      const auto bit = static_cast<std::size_t>(__builtin_ctzll(bits));
      const int fd = static_cast<int>(word * kWordBits + bit);
      // Without /dev/null (somebody closed it) a free number is still better than a held socket.
      if (null < 0 || ::dup2(null, fd) < 0) ::close(fd);
    }
  }
}

}  // namespace

void track_fd(int fd) {
  if (fd < 0) return;
  std::call_once(installed, [] {
    null_fd.store(::open("/dev/null", O_RDONLY | O_CLOEXEC), std::memory_order_relaxed);
    HORA_CHECK(::pthread_atfork(nullptr, nullptr, let_go) == 0, "a fork handler can be installed");
  });
  const auto number = static_cast<std::size_t>(fd);
  HORA_CHECK(number < kMostDescriptors, "descriptor numbers are below a million");
  const std::size_t word = number / kWordBits;
  tracked[word].fetch_or(std::uint64_t{1} << (number % kWordBits), std::memory_order_relaxed);
  std::size_t words = used_words.load(std::memory_order_relaxed);
  while (words <= word &&
         !used_words.compare_exchange_weak(words, word + 1, std::memory_order_relaxed)) {
  }
}

void untrack_fd(int fd) {
  if (fd < 0) return;
  const auto number = static_cast<std::size_t>(fd);
  HORA_CHECK(number < kMostDescriptors, "descriptor numbers are below a million");
  tracked[number / kWordBits].fetch_and(~(std::uint64_t{1} << (number % kWordBits)),
                                        std::memory_order_relaxed);
}

std::uint64_t fork_generation() {
  return generation.load(std::memory_order_relaxed);
}

}  // namespace hora
