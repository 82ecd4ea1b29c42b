// JobServer: what the launcher needs of the rendezvous server.
//
// The workers meet at it. The supervisor tells it how workers end - it is the parent, its word is
// the truth - and it tells the supervisor who has fallen silent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"

namespace hora {

/// Its methods are called by the supervisor's thread.
class JobServer {
 public:
  virtual ~JobServer() = default;
  /// The TCP port at which it listens.
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// The worker's process is gone: "killed by signal 9 (Killed)", "exited with status 3".
  virtual void announce_exit(Rank rank, const std::string& how) = 0;
  /// Connections that were dropped because whoever made them did not know the job's secret.
  [[nodiscard]] virtual std::uint64_t strangers() const = 0;
};

/// What a server is started with.
struct JobServerOptions {
  std::string job;
  std::string secret;
  int size = 1;
  int min_size = 0;               ///< The job goes on with as many; 0: a death ends it.
  bool all_interfaces = false;    ///< For workers on other hosts; else loopback only.
  Duration heartbeat_limit = 2s;  ///< A worker silent for longer is reported.
  LogLevel log_level = LogLevel::warning;
  // Called on a thread of the server; do not block.

  /// A sentence for the user: who has fallen silent, who is back, who goes on without whom.
  std::function<void(const std::string& text)> on_notice;
  /// The others go on without a worker that may live.
  std::function<void(Rank rank)> on_left_out;
  /// A worker says why it is about to fail.
  std::function<void(Rank rank)> on_last_words;
};

/// Starts the rendezvous server of a job.
Result<std::unique_ptr<JobServer>> start_rendezvous(JobServerOptions options);

}  // namespace hora
