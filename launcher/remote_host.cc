// Handlers of messages return an Error for what an agent of ours would not say; it ends the host
// like any other failure. `give_up` is the one place where a host fails.
#include "launcher/remote_host.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "launcher/ssh_command.h"
#include "launcher/workers.h"
#include "runtime/base/check.h"

namespace hora {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kMostNoise = 1 << 20;
constexpr std::uint64_t kConsumedStep = 64 << 10;
constexpr Duration kLongestPingInterval = 5s;
constexpr std::size_t kTailLines = 20, kTailWidth = 2000;
// How a shell says that there is no such command.
constexpr int kNotFound = 127;

tl::unexpected<Error> nonsense(const char* what) {
  return fail(ErrorKind::protocol, what);
}

}  // namespace

RemoteHost::RemoteHost(RemoteHostOptions options, RemoteEvents events)
    : options_(std::move(options)),
      events_(std::move(events)),
      buffer_(kReadBytes),
      error_lines_(kTailWidth),
      error_tail_(kTailLines, kTailWidth) {}

Result<void> RemoteHost::dial(const Environment& own, const Inherited& inherited) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return fail_errno("pipe");
  const Fd for_ssh(fds[0]);
  to_agent_ = Fd(fds[1]);
  if (::fcntl(to_agent_.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl");
  Result<Spawned> spawned =
      spawn({options_.program, options_.command, own, inherited}, for_ssh.get());
  if (!spawned) return fail(std::move(spawned.error()));
  ssh_ = spawned->pid;
  from_agent_ = std::move(spawned->out);
  errors_ = std::move(spawned->err);
  heard_at_ = ping_at_ = steady_now();
  if (options_.verbose) {
    events_.say(fmt::format("horarun: host '{}': {}", name(), show_command(options_.command)));
  }
  return {};
}

void RemoteHost::watch(PollSet& set) {
  if (from_agent_.valid()) set.add(from_agent_.get(), POLLIN, [this] { read_frames(); });
  if (errors_.valid()) set.add(errors_.get(), POLLIN, [this] { read_errors(); });
  if (to_agent_.valid() && !pending_.empty()) {
    set.add(to_agent_.get(), POLLOUT, [this] { flush(); });
  }
}

TimePoint RemoteHost::deadline() const {
  if (phase_ == Phase::dialing || phase_ == Phase::closed || phase_ == Phase::failed) {
    return TimePoint::max();
  }
  return std::min(ping_at_, heard_at_ + options_.silence_limit);
}

void RemoteHost::step(TimePoint now) {
  deliver(false);
  if (now < deadline()) return;
  if (now >= heard_at_ + options_.silence_limit) {
    give_up(fmt::format("has been silent for {:.0f} s", to_seconds(now - heard_at_)));
    return;
  }
  send(Ping{});
  ping_at_ = now + std::min<Duration>(options_.silence_limit / 4, kLongestPingInterval);
}

void RemoteHost::send(const ToAgent& message) {
  if (!to_agent_.valid()) return;
  pending_ += encode(message);
  flush();
}

// An error says that ssh is ending, which is told by its end.
void RemoteHost::flush() {
  while (!pending_.empty()) {
    const ssize_t wrote = ::write(to_agent_.get(), pending_.data(), pending_.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      if (errno != EAGAIN) pending_.clear();
      return;
    }
    pending_.erase(0, static_cast<std::size_t>(wrote));
  }
}

void RemoteHost::read_frames() {
  const std::string_view bytes = read_pipe(from_agent_, buffer_);
  if (!bytes.empty()) take(bytes);
}

void RemoteHost::read_errors() {
  const std::string_view bytes = read_pipe(errors_, buffer_);
  if (!bytes.empty()) take_errors(bytes);
}

void RemoteHost::take_errors(std::string_view bytes) {
  error_lines_.feed(bytes, [this](const Piece& piece) {
    error_tail_.add(piece);
    if (options_.verbose && !piece.text.empty()) {
      events_.say(fmt::format("horarun: host '{}': {}", name(), piece.text));
    }
  });
}

// False: the host has failed.
bool RemoteHost::take(std::string_view bytes) {
  if (phase_ == Phase::failed || phase_ == Phase::closed) return false;
  heard_at_ = steady_now();
  if (phase_ == Phase::dialing) {
    noise_ += bytes;
    const std::size_t greeting = noise_.find(kAgentGreeting);
    if (greeting == std::string::npos) {
      if (noise_.size() > kMostNoise) give_up("prints without end instead of starting horarun");
      return phase_ != Phase::failed;
    }
    phase_ = Phase::greeted;
    frames_.feed(std::string_view(noise_).substr(greeting + kAgentGreeting.size()));
    noise_.clear();
  } else {
    frames_.feed(bytes);
  }
  while (phase_ != Phase::failed) {
    Result<std::optional<FromAgent>> message = frames_.next();
    Result<void> done = message ? Result<void>() : tl::unexpected<Error>(message.error());
    if (message && !*message) return true;
    if (message) done = std::visit([this](auto& one) { return on(one); }, **message);
    if (!done && phase_ != Phase::failed) {
      give_up(
          fmt::format("does not talk like a horarun of this version ({})", done.error().message));
    }
  }
  return false;
}

Result<void> RemoteHost::on(const Hello& hello) {
  if (phase_ != Phase::greeted) return nonsense("a second Hello");
  if (hello.protocol != kAgentProtocol || hello.version != HORA_VERSION) {
    give_up(fmt::format("has version {} of Hora in {}, and here it is {}; install the same one",
                        hello.version, hello.program, HORA_VERSION));
    return {};
  }
  if (options_.verbose) {
    events_.say(fmt::format("horarun: host '{}': it calls itself {}, and its horarun is {}", name(),
                            hello.host_name, hello.program));
  }
  send(options_.make_prepare(hello));
  return {};
}

Result<void> RemoteHost::on(const Ready& ready) {
  if (phase_ != Phase::greeted) return nonsense("an unexpected Ready");
  for (const std::string& note : ready.notes)
    events_.say(fmt::format("horarun: host '{}': {}", name(), note));
  ready_ = ready;
  phase_ = Phase::ready;
  return {};
}

Result<void> RemoteHost::on(const Refused& refused) {
  if (phase_ != Phase::greeted) return nonsense("an unexpected refusal");
  exit_code_ = refused.exit_code;
  give_up(refused.text);
  return {};
}

bool RemoteHost::owns(Rank rank) const {
  return std::any_of(options_.slots.begin(), options_.slots.end(),
                     [&](const Slot& slot) { return slot.rank == rank; });
}

Result<void> RemoteHost::on(const Started& started) {
  if (!owns(started.rank)) return nonsense("a rank that is not its own");
  events_.on_started(started.rank, started.pid);
  return {};
}

Result<void> RemoteHost::on(OutputBytes& output) {
  if (!owns(output.rank)) return nonsense("output of a rank that is not its own");
  held_[static_cast<std::size_t>(output.stream)].push_back(
      {output.rank, std::move(output.bytes), false});
  deliver(false);
  return {};
}

Result<void> RemoteHost::on(const OutputEnd& end) {
  if (!owns(end.rank)) return nonsense("output of a rank that is not its own");
  held_[static_cast<std::size_t>(end.stream)].push_back({end.rank, "", true});
  deliver(false);
  return {};
}

void RemoteHost::pass(Stream stream, const Held& held) {
  consumed_bytes_ += held.bytes.size();
  if (held.end) {
    events_.on_output_end(held.rank, stream);
  } else {
    events_.on_output(held.rank, stream, held.bytes);
  }
}

void RemoteHost::deliver(bool all) {
  for (const Stream stream : {Stream::out, Stream::err}) {
    auto& queue = held_[static_cast<std::size_t>(stream)];
    while (!queue.empty() && (all || !events_.is_full(stream))) {
      pass(stream, queue.front());
      queue.pop_front();
    }
  }
  const bool rest = held_[0].empty() && held_[1].empty() && consumed_bytes_ > 0;
  if (consumed_bytes_ < kConsumedStep && !rest) return;
  send(Consumed{std::exchange(consumed_bytes_, 0)});
}

// A worker's last words come before its end is told.
Result<void> RemoteHost::on(const Exited& exited) {
  if (living_.erase(exited.rank) == 0) return nonsense("the end of a rank that does not live");
  for (const Stream stream : {Stream::out, Stream::err}) {
    auto& queue = held_[static_cast<std::size_t>(stream)];
    for (const Held& held : queue) {
      if (held.rank == exited.rank) pass(stream, held);
    }
    std::erase_if(queue, [&](const Held& held) { return held.rank == exited.rank; });
  }
  events_.on_exit(exited.rank, exited.status);
  return {};
}

Result<void> RemoteHost::on(const HostCensus& census) {
  if (phase_ != Phase::running && phase_ != Phase::finishing) return nonsense("an early census");
  if (census.workers < 0) return nonsense("a census below zero");
  census_ = {census.workers, census.others};
  return {};
}

Result<void> RemoteHost::on(const StdinTaken&) {
  wants_stdin_ = true;
  return {};
}

Result<void> RemoteHost::on(const Pong&) {
  return {};
}

Result<void> RemoteHost::on(const Note& note) {
  events_.say(fmt::format("horarun: host '{}': {}", name(), note.text));
  return {};
}

void RemoteHost::on_ssh_end(const ExitStatus& status) {
  ssh_ended_ = true;
  // What the pipes hold was said before the end. A process that ssh left may keep them open.
  while (from_agent_.valid()) {
    const std::string_view bytes = read_pipe(from_agent_, buffer_);
    if (bytes.empty()) break;
    take(bytes);
  }
  while (errors_.valid()) {
    const std::string_view bytes = read_pipe(errors_, buffer_);
    if (bytes.empty()) break;
    take_errors(bytes);
  }
  from_agent_.reset();
  errors_.reset();
  if (phase_ == Phase::failed) return;
  if (phase_ == Phase::finishing) {
    phase_ = Phase::closed;
    census_ = {};
    return;
  }
  const char* hint = phase_ == Phase::dialing && !status.by_signal && status.number == kNotFound
                         ? "; is Hora installed there? --remote-horarun tells where"
                         : "";
  give_up(fmt::format("{}: {} {}{}{}", phase_ == Phase::dialing ? "cannot be used" : "is lost",
                      options_.command.front(), status.by_signal ? "was " : "", describe(status),
                      hint));
}

void RemoteHost::start() {
  HORA_CHECK(phase_ == Phase::ready, "only a ready host starts workers");
  phase_ = Phase::running;
  for (const Slot& slot : options_.slots)
    living_.insert(slot.rank);
  census_ = {static_cast<int>(options_.slots.size()), false};
  send(StartWorkers{});
}

void RemoteHost::signal(SignalWorkers::Target target, int signo) {
  if (phase_ == Phase::running) send(SignalWorkers{target, signo});
}

void RemoteHost::finish() {
  if (phase_ == Phase::closed || phase_ == Phase::failed || phase_ == Phase::finishing) return;
  if (phase_ == Phase::dialing) {
    give_up("");
    return;
  }
  phase_ = Phase::finishing;
  send(Finish{});
}

void RemoteHost::send_stdin(std::string bytes) {
  wants_stdin_ = false;
  send(StdinBytes{std::move(bytes)});
}

// The connection's end makes the agent kill what lives there.
void RemoteHost::give_up(const std::string& why) {
  if (phase_ == Phase::failed || phase_ == Phase::closed) return;
  if (errors_.valid()) read_errors();
  if (!why.empty()) say_why(why);
  phase_ = Phase::failed;
  if (ssh_alive()) ::kill(ssh_, SIGKILL);
  to_agent_.reset();
  pending_.clear();
  wants_stdin_ = false;
  deliver(true);
  census_ = {};
  for (const Rank rank : std::exchange(living_, {}))
    events_.on_exit(rank, {false, 0, false, true});
}

void RemoteHost::say_why(const std::string& why) {
  events_.say(fmt::format("horarun: host '{}' {}", name(), why));
  events_.say(fmt::format("horarun: its command was: {}", show_command(options_.command)));
  const std::size_t first = noise_.find_first_not_of(" \r\n");
  if (first != std::string::npos) {
    events_.say(fmt::format("horarun: it printed: {}", noise_.substr(first, kTailWidth)));
  }
  if (error_tail_.lines().empty()) return;
  events_.say("horarun: its last lines on stderr:");
  for (const std::string& line : error_tail_.lines())
    events_.say("  " + line);
}

}  // namespace hora
