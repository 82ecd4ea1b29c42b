// The guard blocks the signals it listens to and reads them from a signalfd; nothing runs in a
// signal handler. It stops itself by SIGSTOP after a SIGTSTP, so that a shell sees its job stopped;
// the supervisor goes on, and stops and continues the workers.
#include "launcher/guard.h"

#include <array>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/children.h"
#include "launcher/exit_status.h"

namespace hora {
namespace {

constexpr std::array kForwarded = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                   SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2};

// The supervisor learns of signals through the pipe alone.
void ignore_forwarded() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  for (const int signo : kForwarded)
    ::sigaction(signo, &action, nullptr);
}

void forward(int pipe, int signo) {
  const auto byte = static_cast<unsigned char>(signo);
  // Full or broken: the supervisor is about to end anyway.
  [[maybe_unused]] const ssize_t written = ::write(pipe, &byte, 1);
}

// The supervisor is gone without an exit code: its workers are ours now.
int clean_up_after(const ExitStatus& status) {
  const auto left = kill_all_children(Deadline::after(10s));
  std::string text = fmt::format(
      "horarun: the supervising process was {}; the workers were ended.\n", describe(status));
  for (const pid_t pid : left)
    text += fmt::format("horarun: process {} cannot be killed.\n", pid);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  return exit_code(status);
}

int guard(pid_t supervisor, int signals, int pipe) {
  while (true) {
    signalfd_siginfo info{};
    if (::read(signals, &info, sizeof info) != sizeof info) continue;  // EINTR
    const int signo = static_cast<int>(info.ssi_signo);
    if (signo != SIGCHLD) {
      forward(pipe, signo);
      if (signo == SIGTSTP) ::raise(SIGSTOP);
      continue;
    }
    int wait_status = 0;
    if (::waitpid(supervisor, &wait_status, WNOHANG) != supervisor) continue;
    const ExitStatus status = exit_status_from_wait(wait_status);
    return status.by_signal ? clean_up_after(status) : exit_code(status);
  }
}

}  // namespace

Result<int> run_guarded(const Inherited& inherited,
                        const std::function<int(Fd signals)>& supervise) {
  // An ignored SIGCHLD, which we may have inherited, would reap children behind our back.
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  sigset_t listened;
  sigemptyset(&listened);
  sigaddset(&listened, SIGCHLD);
  for (const int signo : kForwarded) {
    if (!inherited.ignored[signo]) sigaddset(&listened, signo);
  }
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("pipe");
  Fd read_end(fds[0]), write_end(fds[1]);
  ::sigprocmask(SIG_BLOCK, &listened, nullptr);
  const Fd signals(::signalfd(-1, &listened, SFD_CLOEXEC));
  if (!signals.valid()) return fail_errno("signalfd");
  become_subreaper();
  const pid_t supervisor = ::fork();
  if (supervisor < 0) return fail_errno("fork");
  if (supervisor == 0) {
    write_end.reset();
    ignore_forwarded();
    std::exit(supervise(std::move(read_end)));
  }
  read_end.reset();
  // Rank 0 alone shall hold our stdin.
  if (const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC)); null.valid()) {
    ::dup2(null.get(), STDIN_FILENO);
  }
  return guard(supervisor, signals.get(), write_end.get());
}

}  // namespace hora
