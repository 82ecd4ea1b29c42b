// ExitStatus: how a process ended, as a value and in words.
//
// The same words go to the user and, through the rendezvous server, into the errors of the other
// ranks: "rank 2 (pid 17): killed by signal 9 (Killed)". The code is what a shell would show.
#pragma once

#include <string>

namespace hora {

/// How a worker ended.
struct ExitStatus {
  bool by_signal = false;
  int number = 0;  ///< The signal, or the exit status.
  bool core_dumped = false;
  bool lost = false;  ///< Its host cannot be reached any more; how it ended is not known.

  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
  [[nodiscard]] bool success() const { return !by_signal && !lost && number == 0; }
};

/// From what waitpid() stored.
ExitStatus exit_status_from_wait(int wait_status);

/// The code a shell would show: the status, or 128 + signal; 255, as ssh's, for a lost host.
int exit_code(const ExitStatus& status);

/// "killed by signal 9 (Killed)", "exited with status 3".
std::string describe(const ExitStatus& status);

/// "9 (Killed)".
std::string describe_signal(int signo);

}  // namespace hora
