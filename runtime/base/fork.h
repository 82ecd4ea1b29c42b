// Fork: what a forked child must let go of.
//
// A data loader forks a process that trains; the child never execs, so close-on-exec does not help,
// and it inherits every socket and shared memory descriptor of ours. As long as it holds them, a
// peer of a parent that was killed sees no end of file. So every descriptor of ours is tracked, and
// an at-fork handler lets go of all of them in the child: close, never shutdown, because a shutdown
// would reach the parent's connection.
//
// "Let go" means: the number is made to point to /dev/null instead of being closed. The child still
// has the objects that think they own the number; if it were free, the child's next open() could
// get it, and a destructor would later close a file of the user's.
//
// This is the one piece of process-wide state in Hora: a bitmap of descriptors, in zero-initialized
// memory, changed by atomic or and and. No lock, so none can be held at the moment of a fork; no
// allocation, and dup2 is async-signal-safe: all a child of a process with threads may do. Cost:
// one atomic operation to track, a scan of the used part of the bitmap per fork.
#pragma once

#include <cstdint>
#include <utility>

#include "runtime/base/fd.h"

namespace hora {

/// From now on a forked child lets go of `fd`. Any thread. Negative: nothing happens.
void track_fd(int fd);
/// Takes that back; call it before the descriptor is closed, because the number may
/// be reused at once.
void untrack_fd(int fd);

/// How many forks lie between the first process and this one. An object that owns threads remembers
/// the number; if it has changed, the object was inherited and its threads do not exist here. Exact
/// only once something was tracked.
std::uint64_t fork_generation();

/// Tracks a descriptor as long as it lives. Declare it after the Fd it guards: it must go first.
class ForkGuard {
 public:
  ForkGuard() = default;
  explicit ForkGuard(int fd) : fd_(fd) { track_fd(fd); }
  ForkGuard(ForkGuard&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ForkGuard& operator=(ForkGuard&& other) noexcept {
    if (this != &other) {
      untrack_fd(fd_);
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard() { untrack_fd(fd_); }

 private:
  int fd_ = -1;
};

/// A descriptor and its guard, for code that keeps many.
struct TrackedFd {
  TrackedFd() = default;
  explicit TrackedFd(Fd owned) : fd(std::move(owned)), guard(fd.get()) {}
  TrackedFd(TrackedFd&&) noexcept = default;
  TrackedFd& operator=(TrackedFd&& other) noexcept {
    if (this == &other) return *this;
    reset();  // Untracked before it is closed.
    fd = std::move(other.fd);
    guard = std::move(other.guard);
    return *this;
  }
  TrackedFd(const TrackedFd&) = delete;
  TrackedFd& operator=(const TrackedFd&) = delete;
  ~TrackedFd() = default;

  [[nodiscard]] int get() const { return fd.get(); }
  [[nodiscard]] bool valid() const { return fd.valid(); }
  /// Closes it.
  void reset() {
    guard = ForkGuard();
    fd.reset();
  }

  Fd fd;
  ForkGuard guard;
};

}  // namespace hora
