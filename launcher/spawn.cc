// fork() and execve() rather than posix_spawn(): the death signal, the check that the parent still
// lives and the restored limit of open files have no place in posix_spawn(). horarun is small, so
// the copy of its page tables does not matter.
#include "launcher/spawn.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hora {
namespace {

struct Pipe {
  Fd read, write;
};

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return fail_errno("pipe");
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings)
    result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Everything the child needs, ready before the fork.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  int in, out, err, report;
  pid_t parent;
  const Inherited* inherited;
};

// In the child: system calls only.
[[noreturn]] void become_worker(const ChildPlan& plan) {
  const auto give_up = [&] {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(plan.report, &error, sizeof error);
    ::_exit(127);
  };
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  if (::getppid() != plan.parent) ::_exit(127);  // it died before the line above
  ::setpgid(0, 0);
  if (::dup2(plan.in, 0) < 0 || ::dup2(plan.out, 1) < 0 || ::dup2(plan.err, 2) < 0) give_up();
  ::setrlimit(RLIMIT_NOFILE, &plan.inherited->open_files);
  struct sigaction action {};
  for (int signo = 1; signo < NSIG; ++signo) {
    action.sa_handler = plan.inherited->ignored[signo] ? SIG_IGN : SIG_DFL;
    ::sigaction(signo, &action, nullptr);  // fails for SIGKILL, SIGSTOP and libc's own
  }
  ::sigprocmask(SIG_SETMASK, &plan.inherited->signal_mask, nullptr);
  ::execve(plan.program, plan.argv, plan.envp);
  give_up();
  ::_exit(127);
}

// The errno that the child reported, or 0 when its program runs.
int read_report(int fd) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(fd, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

}  // namespace

Inherited read_inherited() {
  Inherited result;
  ::sigprocmask(SIG_BLOCK, nullptr, &result.signal_mask);
  for (int signo = 1; signo < NSIG; ++signo) {
    struct sigaction action {};
    result.ignored[signo] =
        ::sigaction(signo, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  }
  ::getrlimit(RLIMIT_NOFILE, &result.open_files);
  return result;
}

void raise_open_files(const Inherited& inherited) {
  rlimit files = inherited.open_files;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

tl::expected<std::string, CommandError> find_program(const std::string& command,
                                                     const std::optional<std::string>& path) {
  const auto not_executable = [&](const std::string& file) {
    return tl::unexpected(CommandError{
        126, is_directory(file)
                 ? fmt::format("'{}' is a directory, not a program", file)
                 : fmt::format("'{}' is not executable; chmod +x, or name its interpreter: "
                               "horarun -np N python {}",
                               file, file)});
  };
  if (command.find('/') != std::string::npos) {
    if (::access(command.c_str(), F_OK) != 0) {
      return tl::unexpected(
          CommandError{127, fmt::format("'{}': {}", command, std::strerror(errno))});
    }
    if (::access(command.c_str(), X_OK) != 0 || is_directory(command)) {
      return not_executable(command);
    }
    return command;
  }
  const std::string directories = path.value_or("/usr/local/bin:/usr/bin:/bin");
  std::string found_but_not_executable;
  for (std::size_t begin = 0; begin <= directories.size() && !command.empty();) {
    const std::size_t end = std::min(directories.find(':', begin), directories.size());
    const std::string directory = directories.substr(begin, end - begin);
    const std::string file = (directory.empty() ? "." : directory) + "/" + command;
    begin = end + 1;
    if (::access(file.c_str(), F_OK) != 0 || is_directory(file)) continue;
    if (::access(file.c_str(), X_OK) == 0) return file;
    found_but_not_executable = file;
  }
  if (!found_but_not_executable.empty()) return not_executable(found_but_not_executable);
  return tl::unexpected(
      CommandError{127, fmt::format("command '{}' was not found in PATH{}", command,
                                    ::access(command.c_str(), F_OK) == 0
                                        ? fmt::format("; for the file here write ./{}", command)
                                        : "")});
}

Result<Spawned> spawn(const SpawnRequest& request, int stdin_fd) {
  Result<Pipe> out = make_pipe();
  Result<Pipe> err = make_pipe();
  Result<Pipe> report = make_pipe();
  if (!out) return fail(std::move(out.error()));
  if (!err) return fail(std::move(err.error()));
  if (!report) return fail(std::move(report.error()));
  const std::vector<char*> argv = pointers(request.arguments);
  const std::vector<char*> envp = pointers(request.environment);
  const ChildPlan plan = {
      request.program.c_str(), argv.data(),      envp.data(),         stdin_fd,
      out->write.get(),        err->write.get(), report->write.get(), ::getpid(),
      &request.inherited};
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fork");
  if (pid == 0) become_worker(plan);
  ::setpgid(pid, pid);  // both sides, so that neither has to wait for the other
  report->write.reset();
  if (const int error = read_report(report->read.get()); error != 0) {
    // The child is gone or going; the supervisor reaps it.
    const bool no_interpreter_line = error == ENOEXEC;
    return fail(
        ErrorKind::system,
        fmt::format("cannot run '{}': {}{}", request.program, std::strerror(error),
                    no_interpreter_line ? " (a script needs a first line such as #!/bin/sh)" : ""));
  }
  if (::fcntl(out->read.get(), F_SETFL, O_NONBLOCK) != 0 ||
      ::fcntl(err->read.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail_errno("fcntl");
  }
  return Spawned{pid, std::move(out->read), std::move(err->read)};
}

}  // namespace hora
