// The words for signals are the C library's ("Killed", "Segmentation fault"), in English whatever
// the locale is: logs are searched by text. They are part of messages that go to all ranks.
#include "launcher/exit_status.h"

#include <fmt/format.h>
#include <string.h>  // sigdescr_np
#include <sys/wait.h>

namespace hora {

ExitStatus exit_status_from_wait(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return {true, WTERMSIG(wait_status), WCOREDUMP(wait_status) != 0, false};
  }
  return {false, WEXITSTATUS(wait_status), false, false};
}

int exit_code(const ExitStatus& status) {
  if (status.lost) return 255;
  return status.by_signal ? 128 + status.number : status.number;
}

std::string describe(const ExitStatus& status) {
  if (status.lost) return "lost with its host";
  if (!status.by_signal) return fmt::format("exited with status {}", status.number);
  return fmt::format("killed by signal {}{}", describe_signal(status.number),
                     status.core_dumped ? ", core dumped" : "");
}

std::string describe_signal(int signo) {
  const char* text = sigdescr_np(signo);
  return fmt::format("{} ({})", signo, text != nullptr ? text : "no name");
}

}  // namespace hora
