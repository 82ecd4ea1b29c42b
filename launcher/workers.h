// Workers: the processes of the job, started, signalled and reaped.
//
// A signal goes to the process group of each worker that lives. A group whose leader is reaped is
// not signalled: its number may be a stranger's by now. Its members, like everything else that
// workers leave behind, become our children and are reached as such.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
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

/// Owner: the supervisor.
class Workers {
 public:
  /// Prepares rank 0's standard input: ours, which is given up, so that whoever writes to it
  /// notices when rank 0 is gone. The other ranks get /dev/null.
  Result<void> open_stdin();
  /// Starts the next rank.
  Result<void> start(const SpawnRequest& request, const Slot& slot);

  /// Reaps what has ended, adopted processes too, and returns the workers among it. A
  /// worker that was killed by a signal comes first: it is the cause, and those that exited
  /// with a status noticed.
  std::vector<Ended> reap();

  /// To the process groups of the living workers.
  void signal_groups(int signo);
  /// To the living workers themselves.
  void signal_each(int signo);
  /// To the groups of the living workers and to everything that dead ones left.
  void signal_everything(int signo);

  [[nodiscard]] const Census& census() const { return census_; }
  [[nodiscard]] std::vector<Worker>& all() { return workers_; }
  [[nodiscard]] Worker& operator[](Rank rank) { return workers_[index_of(rank)]; }
  [[nodiscard]] StdinPump& stdin_pump() { return stdin_pump_; }

 private:
  std::vector<Worker> workers_;
  std::unordered_map<pid_t, std::size_t> by_pid_;  ///< The living.
  Census census_;
  Fd first_stdin_, null_;
  StdinPump stdin_pump_;
};

}  // namespace hora
