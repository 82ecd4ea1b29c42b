// ExitStatus: the words and codes for how a process ended, from real wait statuses.
//
// The wait statuses are made by processes that end that way, not by hand: their
// encoding is the kernel's.
#include "launcher/exit_status.h"

#include <csignal>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace hora {
namespace {

template <class Body>
ExitStatus status_of(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    body();
    ::_exit(99);
  }
  int wait_status = 0;
  REQUIRE(::waitpid(pid, &wait_status, 0) == pid);
  return exit_status_from_wait(wait_status);
}

TEST_CASE("an exit status is shown as it is") {
  const ExitStatus status = status_of([] { ::_exit(3); });
  CHECK(describe(status) == "exited with status 3");
  CHECK(exit_code(status) == 3);
  CHECK_FALSE(status.success());
  CHECK(status_of([] { ::_exit(0); }).success());
}

TEST_CASE("a signal is shown by number and name, and its code is 128 more") {
  const ExitStatus status = status_of([] { ::kill(::getpid(), SIGKILL); });
  CHECK(describe(status) == "killed by signal 9 (Killed)");
  CHECK(exit_code(status) == 137);
  CHECK_FALSE(status.success());
}

}  // namespace
}  // namespace hora
