// The loop. Everything that is read is bounded per turn (one buffer per pipe), so that a worker
// that writes without end delays a signal by one turn only. A worker's pipes are read before its
// end is reported: its last words come first.
#include "launcher/supervisor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/children.h"
#include "launcher/report.h"
#include "launcher/supervision.h"

namespace hora {
namespace {

// The last words of a worker that has ended: what its pipe holds, and a bound for a
// child that writes on.
constexpr std::size_t kLastWordsBytes = 1 << 20;

}  // namespace

int Supervisor::run() {
  while (true) {
    fleet_.step(steady_now());
    carry_out(termination_.step(census(), steady_now()));
    if (termination_.phase() == Termination::Phase::over) break;
    const auto hosts = fleet_.deadline();
    const auto end = termination_.deadline();
    wait(hosts && end ? std::min(hosts, end) : (hosts ? hosts : end));
  }
  finish();
  return termination_.exit_code();
}

Census Supervisor::census() const {
  Census sum = fleet_.census();
  sum.workers += workers_.census().workers;
  sum.others = sum.others || workers_.census().others || !left_out_.empty();
  // Nobody waits for them, not even if they are stopped: they are what the others leave behind.
  sum.workers -= static_cast<int>(left_out_.size());
  return sum;
}

void Supervisor::watch_pipes(PollSet& set) {
  for (Worker& worker : workers_.all()) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      const Fd& pipe = worker.pipes[static_cast<std::size_t>(stream)];
      if (!pipe.valid() || output_->sink(stream).full()) continue;
      set.add(pipe.get(), POLLIN, [this, &worker, stream] {
        if (!output_->sink(stream).full()) read_worker(worker, stream);
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

void Supervisor::watch_stdin(PollSet& set) {
  if (const pollfd wanted = workers_.stdin_pump().wanted(); wanted.fd >= 0) {
    set.add(wanted.fd, wanted.events, [this] { workers_.stdin_pump().step(); });
  }
  if (fleet_.wants_stdin() && may_read_stdin()) {
    set.add(STDIN_FILENO, POLLIN, [this] { read_stdin(); });
  }
}

// For a rank 0 on another host, which asks for each piece.
void Supervisor::read_stdin() {
  const ssize_t got = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  fleet_.send_stdin(std::string(buffer_.data(), got > 0 ? static_cast<std::size_t>(got) : 0));
}

void Supervisor::wait(std::optional<TimePoint> deadline) {
  PollSet set;
  if (signals_.valid()) set.add(signals_.get(), POLLIN, [this] { on_signals(); });
  // Last words before ends: they say whose end it was.
  set.add(notices_.get(), POLLIN, [this] { on_notices(); });
  set.add(children_.get(), POLLIN, [this] { on_children(); });
  watch_stdin(set);
  watch_sinks(set);
  watch_pipes(set);
  fleet_.watch(set);
  set.wait(deadline);
  flush_all();
}

void Supervisor::flush_all() {
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
        signal_groups(SIGSTOP);
        break;
      case SIGCONT:
        signal_groups(SIGCONT);
        break;
      case SIGUSR1:
      case SIGUSR2:
        workers_.signal_each(signo);
        fleet_.signal(SignalWorkers::Target::each, signo);
        break;
      default:
        hurry_ = termination_.signal().has_value();
        termination_.on_signal(signo, steady_now());
    }
  }
}

void Supervisor::signal_groups(int signo) {
  workers_.signal_groups(signo);
  fleet_.signal(SignalWorkers::Target::groups, signo);
}

void Supervisor::on_children() {
  signalfd_siginfo info{};
  while (::read(children_.get(), &info, sizeof info) == sizeof info) {
  }
  for (const Ended& ended : workers_.reap()) {
    Worker& worker = *workers_.find(ended.rank);
    for (const Stream stream : {Stream::out, Stream::err}) {
      for (std::size_t bytes = 0; bytes < kLastWordsBytes && read_worker(worker, stream);) {
        bytes += buffer_.size();
      }
    }
    on_exit(ended.rank, ended.status);
  }
  for (const EndedHelper& ended : workers_.take_ended_helpers())
    fleet_.on_helper_end(ended);
}

void Supervisor::on_exit(Rank rank, const ExitStatus& status) {
  server_->announce_exit(rank, describe(status));
  ended_.insert(rank);
  left_out_.erase(rank);
  if (job_.verbose) {
    output_->say(fmt::format("horarun: rank {} (pid {}) {}", rank.value, seats_[index_of(rank)].pid,
                             describe(status)));
  }
  if (status.success() || termination_.asked()) return;
  output_->say(exit_line(rank, status));
  if (!survive(rank, status)) termination_.on_failure({rank, status}, steady_now());
}

// True: enough ranks are left, and the job goes on without this one.
bool Supervisor::survive(Rank rank, const ExitStatus& status) {
  if (job_.min_size == 0 || spoke_.contains(rank) ||
      termination_.phase() != Termination::Phase::running) {
    return false;
  }
  const int left = static_cast<int>(seats_.size()) - ++lost_;
  const bool enough = left >= job_.min_size;
  output_->say(fmt::format(
      "horarun: rank {} (pid {}) {}{}; {} of {} ranks are left, {}--min-np {}.", rank.value,
      seats_[index_of(rank)].pid, status.by_signal || status.lost ? "was " : "", describe(status),
      left, seats_.size(), enough ? "" : "fewer than ", job_.min_size));
  return enough;
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
      if (piece.text.front() == kLastWords) {
        spoke_.insert(Rank(rank));
        termination_.on_last_words(Rank(rank));
      } else if (!ended_.contains(Rank(rank))) {
        left_out_.insert(Rank(rank));
      }
    }
  });
}

// Takes one buffer full from a worker's pipe. False: nothing there now, or it has ended.
bool Supervisor::read_worker(Worker& worker, Stream stream) {
  Fd& pipe = worker.pipes[static_cast<std::size_t>(stream)];
  if (!pipe.valid()) return false;
  const std::string_view bytes = read_pipe(pipe, buffer_);
  if (!bytes.empty()) output_->on_bytes(worker.slot.rank, stream, bytes);
  if (!pipe.valid()) output_->on_end(worker.slot.rank, stream);
  return !bytes.empty();
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
  if (!job.remote_slots.empty()) {
    if (const int code = supervisor.connect_hosts(); code != 0) return code;
  }
  if (auto started = supervisor.start_workers(); !started) return complain(started.error(), 126);
  return supervisor.run();
}

}  // namespace hora
