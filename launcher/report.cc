// Only the text is here; when each line is said is the supervisor's affair. The tail is indented
// rather than prefixed: it repeats lines that already stand above behind their own prefix.
#include "launcher/report.h"

#include <csignal>

#include <fmt/format.h>

namespace hora {

std::string exit_line(Rank rank, const ExitStatus& status) {
  return fmt::format("Process {} exit with status code {}.", rank.value, exit_code(status));
}

std::string terminating_line(Rank rank) {
  return fmt::format("Terminating remaining workers after failure of Process {}.", rank.value);
}

std::vector<std::string> failure_report(Rank rank, std::int64_t pid, const std::string& host,
                                        const ExitStatus& status,
                                        const std::deque<std::string>& tail) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("horarun: rank {} (pid {}{}{}) {}{}.", rank.value, pid,
                              host.empty() ? "" : " on ", host,
                              status.by_signal || status.lost ? "was " : "", describe(status)));
  if (status.by_signal && status.number == SIGKILL) {
    lines.push_back(
        "horarun: if nobody sent that signal, it may have been the kernel, for lack of memory (see "
        "dmesg).");
  }
  if (tail.empty()) {
    lines.push_back("horarun: it wrote nothing on stderr.");
    return lines;
  }
  lines.push_back("horarun: its last lines on stderr:");
  for (const std::string& line : tail)
    lines.push_back("  " + line);
  return lines;
}

std::string strangers_line(std::uint64_t strangers) {
  return fmt::format(
      "horarun: {} {} without the job's secret {} dropped; look for who scans this host's ports, "
      "or "
      "for workers of another job.",
      strangers, strangers == 1 ? "connection" : "connections", strangers == 1 ? "was" : "were");
}

}  // namespace hora
