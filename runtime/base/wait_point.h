// WaitPoint: the one place where a progress context sleeps.
//
// A progress context (the engine of a rank, stepped by its own thread or by a waiting caller) waits
// for three sorts of things at once: peers on this host that publish into shared memory, sockets,
// and threads of its own process that submit work. It sleeps on one thing, and says how in a word:
//
//   state = running    nobody need wake it: it will look
//           in_futex   asleep on the doorbell word (no sockets): wake by futex
//           in_poll    asleep in poll(): wake by writing to the eventfd
//
// A writer first publishes its data, then (full fence) reads the state; only a sleeper costs it a
// system call. The sleeper sets its state, (full fence) looks once more for data, then sleeps.
// Whichever fence comes first, one of the two sees the other.
//
// The doorbell counts rings. A sleeper that needs k more peers before it can do anything says so
// with `target`, and only the ring that reaches it makes the system call: a 4-rank exchange costs
// one wake per rank instead of three. An urgent ring (an answer of the root, a wake from the own
// process) jumps over any target. Other rings beyond the target make no call: the sleeper has been
// woken, and with more ranks than cores it takes a while until it runs (in a 1 MB all-reduce of 4
// ranks on 2 cores, 5 of 6 wakes were for somebody awake).
//
// The words live in a page of the owner's arena that peers map writable and only add to; in a job
// of one they live in private memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <poll.h>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/fork.h"
#include "runtime/base/result.h"

namespace hora {

/// The shared words of a wait point. Zero-initialized memory is a valid, running one.
struct alignas(64) DoorbellWords {
  static constexpr std::uint32_t kRunning = 0, kInFutex = 1, kInPoll = 2;

  std::atomic<std::uint32_t> rings;  ///< Counts up; the futex word.
  std::atomic<std::uint32_t> state;
  /// `rings` (wrapping) at which the sleeper wants to be woken.
  std::atomic<std::uint32_t> target;
  /// The sleeper's window is shut: a progress count is news to it.
  std::atomic<std::uint32_t> wants_counts;
};
static_assert(sizeof(DoorbellWords) == 64);

/// An urgent ring adds this much: more than any target is ahead.
inline constexpr std::uint32_t kUrgentRing = 1u << 16;

/// Rings somebody's doorbell after data was published for it. `eventfd` is that context's
/// eventfd in this process (own or received), or -1. Any thread or process. One system call,
/// only if it sleeps.
void ring(DoorbellWords& words, int eventfd, bool urgent);

/// What a sleeper waits for.
struct SleepNeed {
  std::uint32_t rings = 1;  ///< Peers that must ring before anything can be done; 1: any news.
  bool counts = false;      ///< Progress counts are news.
};

/// The sleeping side. Owner of `sleep` and `watch`: the progress token; `wake`: any thread.
class WaitPoint {
 public:
  /// `words` outlives the WaitPoint.
  static Result<std::unique_ptr<WaitPoint>> make(DoorbellWords& words);

  WaitPoint(const WaitPoint&) = delete;
  WaitPoint& operator=(const WaitPoint&) = delete;

  /// From now on sleeping also ends when `fd` becomes readable (an epoll
  /// descriptor of a transport).
  void watch(int fd);
  void unwatch(int fd);

  /// Sleeps until rung (`rings_needed` times, or once urgently), a watched descriptor is ready, or
  /// the deadline. `nothing_to_do` is asked once after the state is set; false cancels the sleep.
  void sleep(Deadline deadline, const SleepNeed& need, const std::function<bool()>& nothing_to_do);

  /// Ends a sleep from a thread of this process.
  void wake() { ring(words_, eventfd_.get(), true); }

  [[nodiscard]] DoorbellWords& words() { return words_; }
  /// For peers on this host: they write to it when the state says in_poll.
  [[nodiscard]] int eventfd() const { return eventfd_.get(); }

 private:
  WaitPoint(DoorbellWords& words, Fd eventfd)
      : words_(words), eventfd_(std::move(eventfd)), guard_(eventfd_.get()) {}

  DoorbellWords& words_;
  Fd eventfd_;
  ForkGuard guard_;
  std::vector<pollfd> watched_;
};

}  // namespace hora
