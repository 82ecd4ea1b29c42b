// Children are found by their parent in /proc/PID/stat, which every kernel has; the list in
// /proc/PID/task/TID/children depends on how the kernel was built. A look costs a millisecond or
// two per thousand processes, and is taken only at the end of a job.
#include "launcher/children.h"

#include <array>
#include <charconv>
#include <csignal>
#include <memory>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hora {
namespace {

// The parent of a process, or -1. /proc/PID/stat is "PID (name) state PPID ..", and a name may
// contain anything, parentheses too.
pid_t parent_of(pid_t pid) {
  const Fd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> buffer{};
  const ssize_t got = file.valid() ? ::read(file.get(), buffer.data(), buffer.size()) : -1;
  if (got <= 0) return -1;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(got));
  const std::size_t name_end = text.rfind(") ");
  if (name_end == std::string_view::npos || name_end + 4 > text.size()) return -1;
  pid_t parent = -1;
  std::from_chars(text.data() + name_end + 4, text.data() + text.size(), parent);
  return parent;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

void become_subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Result<Fd> adopt_and_watch_children() {
  become_subreaper();
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  Fd ended(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!ended.valid()) return fail_errno("signalfd");
  return ended;
}

std::vector<pid_t> list_children() {
  std::vector<pid_t> children;
  const std::unique_ptr<DIR, CloseDirectory> proc(::opendir("/proc"));
  if (proc == nullptr) return children;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(proc.get())) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size()) continue;
    if (parent_of(pid) == self) children.push_back(pid);
  }
  return children;
}

std::vector<pid_t> kill_all_children(Deadline deadline) {
  while (true) {
    for (const pid_t pid : list_children())
      ::kill(pid, SIGKILL);
    pid_t reaped = 0;
    do {
      reaped = ::waitpid(-1, nullptr, WNOHANG);
    } while (reaped > 0);
    if (reaped < 0) return {};
    if (deadline.passed(steady_now())) return list_children();
    ::poll(nullptr, 0, 5);
  }
}

}  // namespace hora
