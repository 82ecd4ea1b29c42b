// waitpid() for any child sees workers and adopted processes alike; the map tells them apart. A
// worker leaves the map when it is reaped: from then on its number may be anybody's.
#include "launcher/workers.h"

#include <algorithm>
#include <csignal>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/children.h"

namespace hora {

Result<void> Workers::open_stdin() {
  null_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_.valid()) return fail_errno("/dev/null");
  if (::isatty(STDIN_FILENO) == 1) return stdin_pump_.open(first_stdin_);
  first_stdin_ = Fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!first_stdin_.valid()) return fail_errno("stdin");
  ::dup2(null_.get(), STDIN_FILENO);
  return {};
}

Result<void> Workers::start(const SpawnRequest& request, const Slot& slot) {
  const Fd& in = workers_.empty() ? first_stdin_ : null_;
  Result<Spawned> spawned = spawn(request, in.get());
  if (workers_.empty()) first_stdin_.reset();
  if (!spawned) {
    return fail(spawned.error().kind,
                fmt::format("rank {}: {}", slot.rank.value, spawned.error().message));
  }
  by_pid_[spawned->pid] = workers_.size();
  workers_.push_back(
      {slot, spawned->pid, {std::move(spawned->out), std::move(spawned->err)}, true});
  ++census_.workers;
  return {};
}

std::vector<Ended> Workers::reap() {
  std::vector<Ended> ended;
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    const auto found = by_pid_.find(pid);
    if (found == by_pid_.end()) continue;  // adopted
    Worker& worker = workers_[found->second];
    worker.alive = false;
    --census_.workers;
    ended.push_back({worker.slot.rank, exit_status_from_wait(wait_status)});
    by_pid_.erase(found);
  }
  census_.others = pid == 0;
  std::stable_partition(ended.begin(), ended.end(),
                        [](const Ended& one) { return one.status.by_signal; });
  return ended;
}

void Workers::signal_groups(int signo) {
  for (const Worker& worker : workers_) {
    if (worker.alive) ::killpg(worker.pid, signo);
  }
}

void Workers::signal_each(int signo) {
  for (const Worker& worker : workers_) {
    if (worker.alive) ::kill(worker.pid, signo);
  }
}

void Workers::signal_everything(int signo) {
  signal_groups(signo);
  for (const pid_t pid : list_children()) {
    if (by_pid_.count(pid) == 0) ::kill(pid, signo);
  }
}

}  // namespace hora
