// The environment of a worker: horarun's own, plus its place in the job.
//
// Pure but for a look at the disk for Horovod's aliases: lists of "NAME=value" in, a list out. The
// job's secret travels here and only here: a command line is readable by every user of a host, an
// environment by its owner.
//
// Workers on another host get the same variables, but for those that describe a host or a login
// there: its home, its devices, its terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/plan.h"
#include "runtime/base/config.h"
#include "runtime/base/result.h"

namespace hora {

/// "NAME=value" entries, in the form of execve().
using Environment = std::vector<std::string>;

/// The value of a variable, if it is set.
std::optional<std::string> find_variable(const Environment& environment, std::string_view name);

/// What all workers of a job share.
struct JobFacts {
  std::string id;          ///< HORA_JOB
  std::string secret;      ///< HORA_SECRET: 256 random bits, in hexadecimal.
  std::string rendezvous;  ///< HORA_RENDEZVOUS: "ip:port"; empty: none is served.
  std::string address;     ///< HORA_HOST_ADDRESS: where other hosts reach this one; or empty.
};

/// The command line's part in the environment.
struct EnvironmentOptions {
  std::vector<std::pair<std::string, std::string>> assignments;  ///< --env NAME=value
  std::optional<std::uint32_t> start_timeout_ms;                 ///< --start-timeout
  std::vector<Assignment> tuning;                                ///< From plan_tuning().
  std::vector<std::string> network_interfaces;                   ///< --network-interfaces
  bool horovod_compat = false;                                   ///< --horovod-compat
};

/// The environment that all workers share: `own`, then PYTHONUNBUFFERED, then tuning, then the
/// assignments. An assignment to a variable that horarun itself sets is an error.
Result<Environment> make_job_environment(const Environment& own, const EnvironmentOptions& options);

/// Sets OMP_NUM_THREADS, unless it is set, so that `workers` workers share `cores` cores; returns
/// the number if it did.
std::optional<int> share_out_threads(Environment& environment, int cores, int workers);

/// Lets Python find the package `horovod` that lies beside the horarun in `program`, if the
/// environment asks for it (HORA_HOROVOD_COMPAT=1). An error if none lies there.
Result<void> add_horovod_aliases(Environment& environment, const std::string& program);

/// The job's environment without what means something on horarun's own host only.
Environment make_travelling_environment(const Environment& job_environment);

/// What a host's own environment adds to one that has travelled there: whatever is not set.
Environment merge_environments(const Environment& travelled, const Environment& host);

/// The job's environment plus the worker's place.
Environment make_worker_environment(const Environment& job_environment, const JobFacts& job,
                                    const Slot& slot);

/// Threads per worker so that all workers of a host together use its cores once.
int omp_threads_for(int cores, int workers);

/// Cores this process may use: its affinity mask, and its control group's CPU
/// quota if that is less.
int usable_cores();

/// `bytes` random bytes in hexadecimal.
Result<std::string> make_random_hex(std::size_t bytes);

}  // namespace hora
