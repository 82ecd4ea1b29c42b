// Supervisor: one thread, one poll() loop, from the first fork to the last reaped process.
//
//   guard's pipe    -- signal numbers ------> Termination --> SIGTERM, SIGKILL to process groups
//   SIGCHLD         -- who ended, how ------> Termination, JobServer, the failure's report
//   workers' pipes  -- bytes ---------------> Output -------> our stdout and stderr, files
//   JobServer       -- who is silent, back -> a line on stderr
//   Fleet           -- the same of the workers on other hosts
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
#include "launcher/ssh_command.h"
#include "launcher/termination.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"

namespace hora {

/// How other hosts are reached, and how they reach us.
struct RemoteAccess {
  SshOptions ssh;
  std::string ssh_program;              ///< The file of ssh's first word.
  std::vector<std::string> interfaces;  ///< Of --network-interfaces; empty: all.
  Duration start_timeout = 60s;
  Duration silence_limit = 30s;
};

/// A job, ready to run.
struct Job {
  std::vector<Slot> slots;                      ///< All of them, in rank order.
  std::vector<Slot> local_slots;                ///< Those of this host.
  std::vector<std::vector<Slot>> remote_slots;  ///< Those of the others, by host.
  RemoteAccess remote;                          ///< Not looked at without other hosts.
  std::string program;                          ///< The file here; not needed without local slots.
  std::vector<std::string> arguments;           ///< With argv[0].
  Environment environment;                      ///< Of the workers here, but for each one's place.
  Environment travelling_environment;           ///< The same for those on other hosts.
  Environment own_environment;                  ///< Horarun's.
  OutputOptions output;
  Inherited inherited;
  TerminationTimes times;
  Duration heartbeat_limit = 2s;
  LogLevel log_level = LogLevel::warning;
  int min_size = 0;  ///< The job goes on when workers die, with as many; 0: a death ends it.
  bool verbose = false;
  bool quiet = false;
};

/// Runs the job to its end: when it returns, no process of the job is left. Returns the exit code.
/// `signals` brings one byte per signal, and end of file when the guard is gone.
int supervise(const Job& job, Fd signals);

}  // namespace hora
