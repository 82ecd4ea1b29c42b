// Supervisor: one thread, one poll() loop, from the first fork to the last reaped process.
//
//   guard's pipe    -- signal numbers ------> Termination --> SIGTERM, SIGKILL to process groups
//   SIGCHLD         -- who ended, how ------> Termination, JobServer, the failure's report
//   workers' pipes  -- bytes ---------------> Output -------> our stdout and stderr, files
//   JobServer       -- who is silent, back -> a line on stderr
//
// Decisions are Termination's; this file only reads descriptors, asks `step`, and does what it
// says. Nothing in the loop blocks: outputs that are full stop the reading of workers' pipes, never
// the reading of signals. poll() with an array made anew each time is enough for 1024 workers and,
// unlike epoll, takes files and terminals.
#pragma once

#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/output.h"
#include "launcher/plan.h"
#include "launcher/spawn.h"
#include "launcher/termination.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"

namespace hora {

/// A job, ready to run.
struct Job {
  std::vector<Slot> slots;
  std::string program;
  std::vector<std::string> arguments;  ///< With argv[0].
  Environment environment;             ///< From make_job_environment().
  OutputOptions output;
  Inherited inherited;
  TerminationTimes times;
  Duration heartbeat_limit = 2s;
  LogLevel log_level = LogLevel::warning;
  bool verbose = false;
  bool quiet = false;
};

/// Runs the job to its end: when it returns, no process of the job is left. Returns the exit code.
/// `signals` brings one byte per signal, and end of file when the guard is gone.
int supervise(const Job& job, Fd signals);

}  // namespace hora
