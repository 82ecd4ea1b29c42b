// What a forked child holds of its parent's connections: nothing.
//
// Each test forks a child that keeps running while the parent closes its end: the peer's end of
// file shows whether the child still held the connection.
#include "runtime/base/fork.h"

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hora::test {

namespace {

/// A child that runs `body`, waits to be released, and exits with what the body said.
class Child {
 public:
  template <class Body>
  explicit Child(const Body& body) {
    std::array<int, 2> release{}, ready{};
    REQUIRE(::pipe2(release.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(ready.data(), O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(release[1]);
      const int code = body();
      char byte = 1;
      (void)!::write(ready[1], &byte, 1);
      (void)!::read(release[0], &byte, 1);
      ::_exit(code);
    }
    ::close(release[0]);
    ::close(ready[1]);
    release_.reset(release[1]);
    char byte = 0;
    (void)!::read(ready[0], &byte, 1);
    ::close(ready[0]);
  }
  ~Child() { (void)finish(); }
  int finish() {
    if (pid_ <= 0) return -1;
    release_.reset();
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  Fd release_;
};

std::array<Fd, 2> socket_pair() {
  std::array<int, 2> fds{-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

/// The peer sees the end of the connection.
bool has_ended(const Fd& peer) {
  char byte = 0;
  pollfd entry{peer.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1 && ::recv(peer.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

}  // namespace

TEST_CASE("fork: a child does not keep a tracked connection alive") {
  auto [ours, peers] = socket_pair();
  TrackedFd tracked(std::move(ours));
  Child child([] { return 0; });
  tracked.reset();
  CHECK(has_ended(peers));
  CHECK(child.finish() == 0);
}

TEST_CASE("fork: without tracking the child does keep it alive") {
  auto [ours, peers] = socket_pair();
  Child child([] { return 0; });
  ours.reset();
  CHECK_FALSE(has_ended(peers));
  child.finish();
  CHECK(has_ended(peers));
}

TEST_CASE("fork: the child's letting go does not end the parent's connection") {
  auto [ours, peers] = socket_pair();
  const TrackedFd tracked(std::move(ours));
  Child child([] { return 0; });
  child.finish();
  CHECK_FALSE(has_ended(peers));
  char byte = 7;
  CHECK(::write(tracked.get(), &byte, 1) == 1);
  CHECK(::read(peers.get(), &byte, 1) == 1);
}

TEST_CASE(
    "fork: in the child the number stays taken, so that a late close hits nothing of the user's") {
  auto [ours, peers] = socket_pair();
  const TrackedFd tracked(std::move(ours));
  const int number = tracked.get();
  Child child([number] {
    // An inherited owner may still close it; a file opened before must not have this number.
    return ::open("/dev/zero", O_RDONLY) != number && ::fcntl(number, F_GETFD) >= 0 ? 0 : 1;
  });
  CHECK(child.finish() == 0);
}

TEST_CASE("fork: what is no longer tracked is left to the child") {
  auto [ours, peers] = socket_pair();
  { const ForkGuard guard(ours.get()); }
  Child child([] { return 0; });
  ours.reset();
  CHECK_FALSE(has_ended(peers));
}

TEST_CASE("fork: a child knows that it is one") {
  track_fd(-1);
  const TrackedFd any(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  const std::uint64_t here = fork_generation();
  Child child([here] { return fork_generation() == here + 1 ? 0 : 1; });
  CHECK(child.finish() == 0);
  CHECK(fork_generation() == here);
}

TEST_CASE("fork: forking while other threads track and untrack neither hangs nor crashes") {
  std::atomic<bool> stop{false};
  std::thread busy([&stop] {
    while (!stop)
      TrackedFd(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  });
  int failures = 0;
  for (int round = 0; round < 50; ++round) {
    Child child([] { return 0; });
    failures += child.finish() != 0;
  }
  stop = true;
  busy.join();
  CHECK(failures == 0);
}

}  // namespace hora::test
