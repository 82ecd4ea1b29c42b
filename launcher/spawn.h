// Spawn: one worker process, set up so that it cannot outlive the job.
//
// Between fork() and execve() the child may only make system calls: other threads of ours may hold
// any lock. All strings and the path are therefore ready before the fork, and a failure comes back
// as an errno through a close-on-exec pipe: its end without a byte means that the program runs.
//
// The child gets a process group of its own, so that a signal reaches its helpers too; SIGKILL when
// we die; signals as we found them, not as we use them; and nothing but its three standard
// descriptors from us.
#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/types.h>

#include "launcher/environment.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace hora {

/// How this process was when it was started; its workers shall begin the same way.
struct Inherited {
  sigset_t signal_mask{};
  bool ignored[NSIG] = {};  ///< By signal number: nohup's SIGHUP, a background job's SIGINT.
  rlimit open_files{};
};

/// Reads it. To be called first thing in main().
Inherited read_inherited();
/// Lets this process open as many files as it may; its workers keep what was inherited.
void raise_open_files(const Inherited& inherited);

/// Why there is no program to run, as a shell would say it.
struct CommandError {
  int exit_code = 127;  ///< 127: not found; 126: found, but not executable.
  std::string message;
};

/// The file that `command` names: itself if it has a slash, else the first match
/// in `path` (a PATH).
tl::expected<std::string, CommandError> find_program(const std::string& command,
                                                     const std::optional<std::string>& path);

struct SpawnRequest {
  const std::string& program;                 ///< From find_program().
  const std::vector<std::string>& arguments;  ///< With argv[0].
  const Environment& environment;
  const Inherited& inherited;
};

/// A running worker and our ends of its output.
struct Spawned {
  pid_t pid = -1;
  Fd out;  ///< Not blocking.
  Fd err;  ///< Not blocking.
};

/// Starts a worker whose standard input is `stdin_fd` (which stays the caller's). By the main
/// thread only: the kernel sends the death signal when the *thread* that forked is gone.
Result<Spawned> spawn(const SpawnRequest& request, int stdin_fd);

}  // namespace hora
