#include "runtime/base/wait_point.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hora {

namespace {

timespec to_timespec(Duration duration) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

// The words are shared between processes: not FUTEX_PRIVATE.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration limit) {
  const timespec timeout = to_timespec(limit);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// rings has come to target, in wrapping arithmetic.
bool reached(std::uint32_t rings, std::uint32_t target) {
  return static_cast<std::int32_t>(rings - target) >= 0;
}

}  // namespace

void ring(DoorbellWords& words, int eventfd, bool urgent) {
  // Dekker: our data was stored before this fence; the sleeper's state before its own. One of us
  // sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t state = words.state.load(std::memory_order_relaxed);
  if (state == DoorbellWords::kRunning) return;
  const std::uint32_t amount = urgent ? kUrgentRing : 1;
  const std::uint32_t before = words.rings.fetch_add(amount, std::memory_order_acq_rel);
  // Again: if this was read as the target of an earlier sleep, the sleeper of now has our ring.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t target = words.target.load(std::memory_order_acquire);
  if (!reached(before + amount, target)) return;
  // Whoever reaches the target wakes; who comes later finds a sleeper that does not run yet. But
  // who reached it may have died before it could wake, so what is urgent relies on nobody.
  if (!urgent && reached(before, target)) return;
  if (state == DoorbellWords::kInFutex) {
    futex_wake(words.rings);
  } else if (eventfd >= 0) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(eventfd, &one, sizeof one);
  }
}

Result<std::unique_ptr<WaitPoint>> WaitPoint::make(DoorbellWords& words) {
  Fd eventfd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!eventfd.valid()) return fail_errno("eventfd");
  return std::unique_ptr<WaitPoint>(new WaitPoint(words, std::move(eventfd)));
}

void WaitPoint::watch(int fd) {
  watched_.push_back({fd, POLLIN, 0});
}

void WaitPoint::unwatch(int fd) {
  std::erase_if(watched_, [fd](const pollfd& entry) { return entry.fd == fd; });
}

void WaitPoint::sleep(Deadline deadline, const SleepNeed& need,
                      const std::function<bool()>& nothing_to_do) {
  const std::uint32_t seen = words_.rings.load(std::memory_order_acquire);
  const std::uint32_t target = seen + std::max(1u, need.rings);
  const bool poll_sockets = !watched_.empty();
  words_.target.store(target, std::memory_order_relaxed);
  words_.wants_counts.store(need.counts ? 1 : 0, std::memory_order_relaxed);
  words_.state.store(poll_sockets ? DoorbellWords::kInPoll : DoorbellWords::kInFutex,
                     std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);

  // A ring that still saw the target before ours makes no call, and those after it rely on it: so
  // the rings count once more before the sleep, and before each futex call.
  if (nothing_to_do() && !reached(words_.rings.load(std::memory_order_acquire), target)) {
    if (poll_sockets) {
      std::vector<pollfd>& set = watched_;
      set.push_back({eventfd_.get(), POLLIN, 0});
      const timespec timeout = to_timespec(deadline.left(steady_now()));
      ::ppoll(set.data(), set.size(), &timeout, nullptr);
      const bool rung = (set.back().revents & POLLIN) != 0;
      set.pop_back();
      if (rung) {
        std::uint64_t drained = 0;
        [[maybe_unused]] const ssize_t got = ::read(eventfd_.get(), &drained, sizeof drained);
      }
    } else {
      // The futex word moves with every ring, the target only counts some: sleep on
      // until it is reached.
      for (;;) {
        const std::uint32_t now_rings = words_.rings.load(std::memory_order_acquire);
        if (reached(now_rings, target)) break;
        const Duration left = deadline.left(steady_now());
        if (left == Duration::zero()) break;
        futex_wait(words_.rings, now_rings, left);
        if (errno == EINTR) break;
      }
    }
  }
  words_.state.store(DoorbellWords::kRunning, std::memory_order_release);
}

}  // namespace hora
