// Workers: the processes of the job, started, signalled and reaped.
//
// A signal goes to the process group of each worker that lives. A group whose leader is reaped is
// not signalled: its number may be a stranger's by now. Its members, like everything else that
// workers leave behind, become our children and are reached as such.
#pragma once

#include <array>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "launcher/environment.h"
#include "launcher/exit_status.h"
#include "launcher/plan.h"
#include "launcher/spawn.h"
#include "launcher/stdin_pump.h"
#include "launcher/termination.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace hora {

struct Worker {
  Slot slot;
  pid_t pid = -1;
  std::array<Fd, 2> pipes;  ///< Its stdout and stderr; closed at their end.
  bool alive = false;
};

/// A worker's end.
struct Ended {
  Rank rank{};
  ExitStatus status;
};

/// The end of a process that is no worker.
struct EndedHelper {
  pid_t pid = -1;
  ExitStatus status;
};

/// Takes one buffer full from a worker's pipe, which is not blocking. Empty: nothing is there now,
/// or the stream has ended, and then the pipe is closed.
std::string_view read_pipe(Fd& pipe, std::vector<char>& buffer);

/// Owner: the supervisor, or the agent of a host.
class Workers {
 public:
  /// Prepares rank 0's standard input: ours, which is given up, so that whoever writes to it
  /// notices when rank 0 is gone. The other ranks get /dev/null.
  Result<void> open_stdin();
  /// The same where rank 0's input comes from elsewhere: what is written to the returned end, or
  /// nothing if `with_pipe` is false.
  Result<Fd> open_remote_stdin(bool with_pipe);
  /// Starts a rank; the first one gets the standard input.
  Result<void> start(const SpawnRequest& request, const Slot& slot);
  /// A child of ours that is no worker: it is reaped, and told apart from what workers leave.
  void add_helper(pid_t pid) { helpers_.insert(pid); }

  /// Reaps what has ended, adopted processes too, and returns the workers among it. A
  /// worker that was killed by a signal comes first: it is the cause, and those that exited
  /// with a status noticed.
  std::vector<Ended> reap();
  /// The helpers that reap() has met since the last call.
  std::vector<EndedHelper> take_ended_helpers() { return std::exchange(ended_helpers_, {}); }

  /// To the process groups of the living workers.
  void signal_groups(int signo);
  /// To the living workers themselves.
  void signal_each(int signo);
  /// To the groups of the living workers and to everything that dead ones left.
  void signal_everything(int signo);

  /// Children that are no helpers and no living workers: what dead workers left.
  [[nodiscard]] std::vector<pid_t> strangers() const;

  [[nodiscard]] const Census& census() const { return census_; }
  [[nodiscard]] std::vector<Worker>& all() { return workers_; }
  /// The worker of a rank, or null: it is not one of ours.
  [[nodiscard]] Worker* find(Rank rank);
  [[nodiscard]] StdinPump& stdin_pump() { return stdin_pump_; }

 private:
  std::vector<Worker> workers_;
  std::unordered_map<pid_t, std::size_t> by_pid_;  ///< The living.
  std::set<pid_t> helpers_;
  std::vector<EndedHelper> ended_helpers_;
  Census census_;
  Fd first_stdin_, null_;
  StdinPump stdin_pump_;
};

}  // namespace hora
