// Everything that is read is bounded per turn (one buffer per pipe), so that a worker that writes
// without end delays a signal by one turn of the loop only. A worker's pipes are read before its
// end is reported: its last words come first.
#include "launcher/supervisor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/children.h"
#include "launcher/job_server.h"
#include "launcher/poll_set.h"
#include "launcher/report.h"
#include "launcher/workers.h"

namespace hora {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
// The last words of a worker that has ended: what its pipe holds, and a bound for a
// child that writes on.
constexpr std::size_t kLastWordsBytes = 1 << 20;
// After a signal nobody wants to wait for a reader of our stdout that does not read.
constexpr Duration kFlushAfterSignal = 2s;

// What the server's thread tells the loop through a pipe: a letter, a text, a newline.
constexpr char kNotice = 'n';
constexpr char kLastWords = 'w';

class Supervisor {
 public:
  Supervisor(const Job& job, Fd signals, std::unique_ptr<Output> output)
      : job_(job),
        signals_(std::move(signals)),
        output_(std::move(output)),
        termination_(job.times),
        buffer_(kReadBytes) {}

  Result<void> prepare();
  Result<void> start_workers();
  int run();

 private:
  Result<void> start_server();
  void watch_pipes(PollSet& set);
  void watch_sinks(PollSet& set);
  void wait(std::optional<TimePoint> deadline);
  void on_signals();
  void on_children();
  void on_notices();
  void on_exit(Worker& worker, const ExitStatus& status);
  bool read_pipe(Worker& worker, Stream stream);
  void flush(Stream stream);
  void carry_out(Termination::Order order);
  void finish();
  void flush_while(const std::function<bool()>& wanted, std::optional<TimePoint> deadline);
  void say_verdict();

  const Job& job_;
  Fd signals_;
  std::unique_ptr<Output> output_;
  Termination termination_;
  std::vector<char> buffer_;
  JobFacts facts_;
  Fd children_;
  Fd notices_, notices_write_;
  LineSplitter notice_splitter_{PIPE_BUF};
  std::unique_ptr<JobServer> server_;
  Workers workers_;
  bool hurry_ = false;  ///< Told to end at once: do not wait for readers.
  bool loss_said_ = false;
};

Result<void> Supervisor::prepare() {
  become_subreaper();
  rlimit files = job_.inherited.open_files;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  children_ = Fd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!children_.valid()) return fail_errno("signalfd");
  Result<std::string> id = make_random_hex(16);
  Result<std::string> secret = make_random_hex(32);
  if (!id) return fail(std::move(id.error()));
  if (!secret) return fail(std::move(secret.error()));
  facts_.id = std::move(*id);
  facts_.secret = std::move(*secret);
  return start_server();
}

Result<void> Supervisor::start_server() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("pipe");
  notices_ = Fd(fds[0]);
  notices_write_ = Fd(fds[1]);
  JobServerOptions options;
  options.job = facts_.id;
  options.secret = facts_.secret;
  options.size = static_cast<int>(job_.slots.size());
  options.heartbeat_limit = job_.heartbeat_limit;
  options.log_level = job_.log_level;
  // One line per message, written whole or not at all; a full pipe loses one of very many.
  const auto post = [fd = fds[1]](char kind, std::string_view text) {
    std::string line = kind + std::string(text.substr(0, PIPE_BUF - 2));
    std::replace(line.begin(), line.end(), '\n', ' ');
    line += '\n';
    [[maybe_unused]] const ssize_t written = ::write(fd, line.data(), line.size());
  };
  options.on_notice = [post](const std::string& text) { post(kNotice, text); };
  options.on_last_words = [post](Rank rank) { post(kLastWords, std::to_string(rank.value)); };
  Result<std::unique_ptr<JobServer>> server = start_rendezvous(std::move(options));
  if (!server) return fail(std::move(server.error()));
  server_ = std::move(*server);
  facts_.rendezvous = server_->address();
  return {};
}

Result<void> Supervisor::start_workers() {
  HORA_TRY(workers_.open_stdin());
  for (const Slot& slot : job_.slots) {
    HORA_TRY(
        workers_.start({job_.program, job_.arguments,
                        make_worker_environment(job_.environment, facts_, slot), job_.inherited},
                       slot));
    if (!job_.verbose) continue;
    output_->say(fmt::format("horarun: rank {} is pid {} (local rank {} of {}): {}",
                             slot.rank.value, workers_[slot.rank].pid, slot.local_rank,
                             slot.local_size, fmt::join(job_.arguments, " ")));
  }
  return {};
}

int Supervisor::run() {
  while (true) {
    carry_out(termination_.step(workers_.census(), steady_now()));
    if (termination_.phase() == Termination::Phase::over) break;
    wait(termination_.deadline());
  }
  finish();
  return termination_.exit_code();
}

void Supervisor::watch_pipes(PollSet& set) {
  for (Worker& worker : workers_.all()) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      const Fd& pipe = worker.pipes[static_cast<std::size_t>(stream)];
      if (!pipe.valid() || output_->sink(stream).full()) continue;
      set.add(pipe.get(), POLLIN, [this, &worker, stream] {
        if (!output_->sink(stream).full()) read_pipe(worker, stream);
      });
    }
  }
}

void Supervisor::watch_sinks(PollSet& set) {
  for (const Stream stream : {Stream::out, Stream::err}) {
    const Sink& sink = output_->sink(stream);
    if (!sink.empty()) set.add(sink.fd(), POLLOUT, [] {});
  }
}

void Supervisor::wait(std::optional<TimePoint> deadline) {
  PollSet set;
  if (signals_.valid()) set.add(signals_.get(), POLLIN, [this] { on_signals(); });
  // Last words before ends: they say whose end it was.
  set.add(notices_.get(), POLLIN, [this] { on_notices(); });
  set.add(children_.get(), POLLIN, [this] { on_children(); });
  if (const pollfd wanted = workers_.stdin_pump().wanted(); wanted.fd >= 0) {
    set.add(wanted.fd, wanted.events, [this] { workers_.stdin_pump().step(); });
  }
  watch_sinks(set);
  watch_pipes(set);
  set.wait(deadline);
  flush(Stream::out);
  flush(Stream::err);
}

void Supervisor::on_signals() {
  std::array<unsigned char, 64> bytes{};
  const ssize_t got = ::read(signals_.get(), bytes.data(), bytes.size());
  if (got < 0) return;
  if (got == 0) {
    signals_.reset();
    hurry_ = true;
    termination_.on_abandoned(steady_now());
    return;
  }
  for (ssize_t i = 0; i < got; ++i) {
    const int signo = bytes[static_cast<std::size_t>(i)];
    switch (signo) {
      case SIGTSTP:
        workers_.signal_groups(SIGSTOP);
        break;
      case SIGCONT:
        workers_.signal_groups(SIGCONT);
        break;
      case SIGUSR1:
      case SIGUSR2:
        workers_.signal_each(signo);
        break;
      default:
        hurry_ = termination_.signal().has_value();
        termination_.on_signal(signo, steady_now());
    }
  }
}

void Supervisor::on_children() {
  signalfd_siginfo info{};
  while (::read(children_.get(), &info, sizeof info) == sizeof info) {
  }
  for (const Ended& ended : workers_.reap())
    on_exit(workers_[ended.rank], ended.status);
}

void Supervisor::on_exit(Worker& worker, const ExitStatus& status) {
  const Rank rank = worker.slot.rank;
  server_->announce_exit(rank, describe(status));
  for (const Stream stream : {Stream::out, Stream::err}) {
    for (std::size_t bytes = 0; bytes < kLastWordsBytes && read_pipe(worker, stream);) {
      bytes += kReadBytes;
    }
  }
  if (job_.verbose) {
    output_->say(
        fmt::format("horarun: rank {} (pid {}) {}", rank.value, worker.pid, describe(status)));
  }
  if (status.success() || termination_.asked()) return;
  output_->say(exit_line(rank, status));
  termination_.on_failure({rank, status}, steady_now());
}

void Supervisor::on_notices() {
  std::array<char, PIPE_BUF> bytes{};
  const ssize_t got = ::read(notices_.get(), bytes.data(), bytes.size());
  if (got <= 0) return;
  notice_splitter_.feed({bytes.data(), static_cast<std::size_t>(got)}, [this](const Piece& piece) {
    if (piece.text.empty()) return;
    const std::string_view text = piece.text.substr(1);
    if (piece.text.front() == kNotice) {
      output_->say(fmt::format("horarun: {}", text));
    } else if (int rank = 0;
               std::from_chars(text.data(), text.data() + text.size(), rank).ec == std::errc{}) {
      termination_.on_last_words(Rank(rank));
    }
  });
}

// Takes one buffer full from a worker's pipe. False: nothing there now, or it has ended.
bool Supervisor::read_pipe(Worker& worker, Stream stream) {
  Fd& pipe = worker.pipes[static_cast<std::size_t>(stream)];
  if (!pipe.valid()) return false;
  ssize_t got = 0;
  do {
    got = ::read(pipe.get(), buffer_.data(), buffer_.size());
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    output_->on_bytes(worker.slot.rank, stream, {buffer_.data(), static_cast<std::size_t>(got)});
    return true;
  }
  if (got == 0 || errno != EAGAIN) {
    pipe.reset();
    output_->on_end(worker.slot.rank, stream);
  }
  return false;
}

// A closed pipe ends the job, as it ends any program that writes to one. Other errors (a full disk)
// cost the output, not the job.
void Supervisor::flush(Stream stream) {
  if (output_->sink(stream).error() != 0 || output_->sink(stream).flush() || loss_said_) return;
  loss_said_ = true;
  const int error = output_->sink(stream).error();
  if (error == EPIPE) {
    termination_.on_signal(SIGPIPE, steady_now());
    return;
  }
  output_->say(fmt::format("horarun: cannot write to {}: {}; the workers' lines there are lost",
                           stream == Stream::out ? "stdout" : "stderr", std::strerror(error)));
}

void Supervisor::carry_out(Termination::Order order) {
  if (order == Termination::Order::none) return;
  if (order == Termination::Order::kill) {
    workers_.signal_everything(SIGKILL);
    return;
  }
  if (workers_.census().workers == 0) {
    workers_.signal_everything(SIGTERM);
    return;
  }
  if (termination_.failure()) {
    output_->say(terminating_line(termination_.failure()->rank));
  } else if (!job_.quiet) {
    output_->say(fmt::format("horarun: got signal {}; ending the workers",
                             describe_signal(termination_.signal().value_or(SIGTERM))));
  }
  workers_.signal_groups(SIGTERM);
  workers_.signal_groups(SIGCONT);  // a stopped process acts on SIGTERM only then
}

void Supervisor::finish() {
  std::optional<TimePoint> deadline;
  if (termination_.signal()) deadline = steady_now() + kFlushAfterSignal;
  // Everybody who could write is gone: what the pipes hold is all there will be.
  for (Worker& worker : workers_.all()) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      while (read_pipe(worker, stream)) {
        flush_while([&] { return output_->sink(stream).full(); }, deadline);
      }
      output_->on_end(worker.slot.rank, stream);
    }
  }
  say_verdict();
  for (const Stream stream : {Stream::out, Stream::err}) {
    flush_while([&] { return !output_->sink(stream).empty(); }, deadline);
  }
}

// Waits for the readers of our outputs: as long as it takes, unless a signal says
// that nobody cares.
void Supervisor::flush_while(const std::function<bool()>& wanted,
                             std::optional<TimePoint> deadline) {
  flush(Stream::out);
  flush(Stream::err);
  while (wanted() && !hurry_ && !(deadline && steady_now() >= *deadline)) {
    PollSet set;
    if (signals_.valid()) set.add(signals_.get(), POLLIN, [this] { hurry_ = true; });
    watch_sinks(set);
    set.wait(deadline);
    flush(Stream::out);
    flush(Stream::err);
  }
}

void Supervisor::say_verdict() {
  if (termination_.gave_up()) {
    for (const pid_t pid : list_children()) {
      output_->say(fmt::format("horarun: process {} cannot be killed; it is still there", pid));
    }
  }
  if (!termination_.failure()) return;
  const Failure& failure = *termination_.failure();
  const Worker& worker = workers_[failure.rank];
  const auto& tail = output_->tail(failure.rank).lines();
  for (const std::string& line : failure_report(failure.rank, worker.pid, failure.status, tail)) {
    output_->say(line);
  }
}

}  // namespace

int supervise(const Job& job, Fd signals) {
  const auto complain = [](const Error& error, int code) {
    const std::string text = fmt::format("horarun: {}\n", error.message);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    kill_all_children(Deadline::after(10s));
    return code;
  };
  Result<std::unique_ptr<Output>> output = Output::make(job.output);
  if (!output) return complain(output.error(), 1);
  Supervisor supervisor(job, std::move(signals), std::move(*output));
  if (auto prepared = supervisor.prepare(); !prepared) return complain(prepared.error(), 1);
  if (auto started = supervisor.start_workers(); !started) return complain(started.error(), 126);
  return supervisor.run();
}

}  // namespace hora
