// waitpid() for any child sees workers and adopted processes alike; the map tells them apart. A
// worker leaves the map when it is reaped: from then on its number may be anybody's.
#include "launcher/workers.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/children.h"

namespace hora {

std::string_view read_pipe(Fd& pipe, std::vector<char>& buffer) {
  if (!pipe.valid()) return {};
  ssize_t got = 0;
  do {
    got = ::read(pipe.get(), buffer.data(), buffer.size());
  } while (got < 0 && errno == EINTR);
  if (got > 0) return {buffer.data(), static_cast<std::size_t>(got)};
  if (got == 0 || errno != EAGAIN) pipe.reset();
  return {};
}

Result<void> Workers::open_stdin() {
  null_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_.valid()) return fail_errno("/dev/null");
  if (::isatty(STDIN_FILENO) == 1) return stdin_pump_.open(first_stdin_);
  first_stdin_ = Fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!first_stdin_.valid()) return fail_errno("stdin");
  ::dup2(null_.get(), STDIN_FILENO);
  return {};
}

Result<Fd> Workers::open_remote_stdin(bool with_pipe) {
  null_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_.valid()) return fail_errno("/dev/null");
  int fds[2];
  if (!with_pipe) {
    first_stdin_ = Fd(::fcntl(null_.get(), F_DUPFD_CLOEXEC, 3));
    return Fd();
  }
  if (::pipe2(fds, O_CLOEXEC) != 0) return fail_errno("pipe");
  first_stdin_ = Fd(fds[0]);
  Fd ours(fds[1]);
  if (::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl");
  return ours;
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
    if (found == by_pid_.end()) {  // a helper, or adopted
      if (helpers_.erase(pid) > 0)
        ended_helpers_.push_back({pid, exit_status_from_wait(wait_status)});
      continue;
    }
    Worker& worker = workers_[found->second];
    worker.alive = false;
    --census_.workers;
    ended.push_back({worker.slot.rank, exit_status_from_wait(wait_status)});
    by_pid_.erase(found);
  }
  // A look at all processes costs something, and matters only when no worker is left.
  census_.others = pid == 0 && (helpers_.empty() || (census_.workers == 0 && !strangers().empty()));
  std::stable_partition(ended.begin(), ended.end(),
                        [](const Ended& one) { return one.status.by_signal; });
  return ended;
}

std::vector<pid_t> Workers::strangers() const {
  std::vector<pid_t> children = list_children();
  std::erase_if(children,
                [this](pid_t pid) { return by_pid_.count(pid) > 0 || helpers_.count(pid) > 0; });
  return children;
}

Worker* Workers::find(Rank rank) {
  const auto found = std::find_if(workers_.begin(), workers_.end(),
                                  [&](const Worker& one) { return one.slot.rank == rank; });
  return found == workers_.end() ? nullptr : &*found;
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
  for (const pid_t pid : strangers())
    ::kill(pid, signo);
}

}  // namespace hora
