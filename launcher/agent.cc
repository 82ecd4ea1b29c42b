// One thread, one poll() loop. Frames that cannot be written now wait in `pending_`, which the
// output window bounds; the one slow thing, trying the rendezvous, has a deadline and happens
// before a worker lives.
#include "launcher/agent.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher/agent_messages.h"
#include "launcher/children.h"
#include "launcher/poll_set.h"
#include "launcher/reach.h"
#include "launcher/this_host.h"
#include "launcher/workers.h"

namespace hora {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kLastWordsBytes = 1 << 20;
// A horarun that does not begin is none.
constexpr Duration kPatienceForPrepare = 60s;
constexpr Duration kKillInterval = 20ms;
constexpr Duration kKillPatience = 10s;

class Agent {
 public:
  Agent(const Inherited& inherited, const Environment& own, Fd signals)
      : inherited_(inherited), own_(own), signals_(std::move(signals)), buffer_(kReadBytes) {}

  Result<void> open();
  int run();

 private:
  void say(const FromAgent& message) { pending_ += encode(message); }
  void note(std::string text) { say(Note{std::move(text)}); }
  void wait();
  void watch_workers(PollSet& set);
  void read_horarun();
  void flush();
  void on_signals();
  void on_children();

  void on(Prepare prepare);
  void on(const StartWorkers& start);
  void on(const SignalWorkers& order);
  void on(StdinBytes input);
  void on(const Consumed& consumed) {
    in_flight_bytes_ -= std::min(in_flight_bytes_, consumed.bytes);
  }
  void on(const Ping&) { say(Pong{}); }
  void on(const Finish&) { finished_ = true; }

  Result<Ready> prepare();
  bool pass_on(Worker& worker, Stream stream);
  void drain(Worker& worker, std::size_t most_bytes);
  void write_stdin();
  void tell_census();
  void kill_again(TimePoint now);

  const Inherited& inherited_;
  const Environment& own_;
  Fd signals_, children_;
  Fd from_horarun_, to_horarun_;
  std::vector<char> buffer_;
  FrameReader<ToAgent> frames_;
  std::string pending_;
  std::uint64_t in_flight_bytes_ = 0;  ///< Output that horarun has not acknowledged.
  TimePoint heard_at_ = steady_now();
  Duration silence_limit_ = kPatienceForPrepare;

  Prepare job_;
  JobFacts facts_;
  Environment environment_;
  std::string program_;
  Workers workers_;
  Fd stdin_pipe_;
  std::string stdin_pending_;
  std::optional<HostCensus> told_;
  std::int32_t refusal_code_ = 1;     ///< What horarun ends with if this host cannot run the job.
  std::optional<TimePoint> kill_at_;  ///< Everything is to be killed, again and again.
  bool prepared_ = false, started_ = false;
  bool finished_ = false;   ///< Told that nothing more is wanted.
  bool abandoned_ = false;  ///< Nobody is there to tell us.
};

// Our own standard output is for frames; whoever prints shall not get in between.
Result<void> Agent::open() {
  raise_open_files(inherited_);
  from_horarun_ = Fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  to_horarun_ = Fd(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!from_horarun_.valid() || !to_horarun_.valid()) return fail_errno("standard descriptors");
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return fail_errno("/dev/null");
  ::dup2(null.get(), STDIN_FILENO);
  ::dup2(null.get(), STDOUT_FILENO);
  for (const Fd* fd : {&from_horarun_, &to_horarun_}) {
    if (::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK) != 0) {
      return fail_errno("fcntl");
    }
  }
  Result<Fd> children = adopt_and_watch_children();
  if (!children) return fail(std::move(children.error()));
  children_ = std::move(*children);
  Hello hello;
  hello.version = HORA_VERSION;
  hello.program = own_program();
  hello.host_name = own_name();
  const std::string ssh = find_variable(own_, "SSH_CONNECTION").value_or("");
  hello.ssh_client = ssh.substr(0, ssh.find(' '));
  pending_ = kAgentGreeting;
  say(hello);
  return {};
}

int Agent::run() {
  while (!abandoned_ && !(finished_ && pending_.empty())) {
    wait();
    if (steady_now() - heard_at_ >= silence_limit_) abandoned_ = true;
    if (kill_at_) kill_again(steady_now());
  }
  const auto left = kill_all_children(Deadline::after(kKillPatience));
  return finished_ && left.empty() ? 0 : 1;
}

void Agent::wait() {
  PollSet set;
  if (signals_.valid()) set.add(signals_.get(), POLLIN, [this] { on_signals(); });
  set.add(from_horarun_.get(), POLLIN, [this] { read_horarun(); });
  set.add(children_.get(), POLLIN, [this] { on_children(); });
  set.add(to_horarun_.get(), pending_.empty() ? short{0} : short{POLLOUT}, [this] { flush(); });
  if (!stdin_pending_.empty()) set.add(stdin_pipe_.get(), POLLOUT, [this] { write_stdin(); });
  watch_workers(set);
  TimePoint deadline = heard_at_ + silence_limit_;
  if (kill_at_) deadline = std::min(deadline, *kill_at_);
  set.wait(deadline);
  flush();
}

void Agent::watch_workers(PollSet& set) {
  if (in_flight_bytes_ >= kOutputWindowBytes) return;
  for (Worker& worker : workers_.all()) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      const Fd& pipe = worker.pipes[static_cast<std::size_t>(stream)];
      if (!pipe.valid()) continue;
      set.add(pipe.get(), POLLIN, [this, &worker, stream] {
        if (in_flight_bytes_ < kOutputWindowBytes) pass_on(worker, stream);
      });
    }
  }
}

void Agent::read_horarun() {
  const ssize_t got = ::read(from_horarun_.get(), buffer_.data(), buffer_.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    abandoned_ = true;
    return;
  }
  heard_at_ = steady_now();
  frames_.feed({buffer_.data(), static_cast<std::size_t>(got)});
  while (!abandoned_) {
    Result<std::optional<ToAgent>> message = frames_.next();
    if (!message) {
      abandoned_ = true;
      return;
    }
    if (!*message) return;
    std::visit([this](auto& one) { on(std::move(one)); }, **message);
  }
}

void Agent::flush() {
  while (!pending_.empty()) {
    const ssize_t wrote = ::write(to_horarun_.get(), pending_.data(), pending_.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      if (errno != EAGAIN) abandoned_ = true;
      return;
    }
    pending_.erase(0, static_cast<std::size_t>(wrote));
  }
  // Without anything to write, poll() still tells an error: the other end is closed.
  pollfd end = {to_horarun_.get(), 0, 0};
  if (::poll(&end, 1, 0) == 1 && (end.revents & (POLLERR | POLLHUP)) != 0) abandoned_ = true;
}

void Agent::on_signals() {
  std::array<unsigned char, 64> bytes{};
  const ssize_t got = ::read(signals_.get(), bytes.data(), bytes.size());
  if (got < 0) return;
  if (got == 0) {  // the guard was killed
    abandoned_ = true;
    return;
  }
  const int signo = bytes[0];
  if (signo != SIGTERM && signo != SIGINT && signo != SIGQUIT && signo != SIGHUP) return;
  if (!kill_at_) {
    note(fmt::format("its agent there got signal {}; ending the workers", describe_signal(signo)));
  }
  kill_at_ = steady_now();
}

void Agent::on_children() {
  signalfd_siginfo info{};
  while (::read(children_.get(), &info, sizeof info) == sizeof info) {
  }
  for (const Ended& ended : workers_.reap()) {
    drain(*workers_.find(ended.rank), kLastWordsBytes);
    say(Exited{ended.rank, ended.status});
  }
  tell_census();
}

void Agent::on(Prepare prepare_message) {
  if (prepared_) {
    abandoned_ = true;  // nobody says it twice
    return;
  }
  job_ = std::move(prepare_message);
  silence_limit_ = std::chrono::milliseconds(job_.silence_ms);
  Result<Ready> ready = prepare();
  if (ready) {
    prepared_ = true;
    say(std::move(*ready));
  } else {
    say(Refused{refusal_code_, ready.error().message});
  }
  heard_at_ = steady_now();  // what came meanwhile has not been read yet
}

Result<Ready> Agent::prepare() {
  Ready ready;
  std::string directory = job_.directory;
  if (::chdir(directory.c_str()) != 0) {
    const std::string here = current_directory("");
    ready.notes.push_back(fmt::format("no directory '{}' there ({}); its workers run in '{}'",
                                      directory, std::strerror(errno), here));
    directory = here;
  }
  environment_ = merge_environments(job_.environment, own_);
  environment_ = merge_environments({"PWD=" + directory}, environment_);
  share_out_threads(environment_, usable_cores(), static_cast<int>(job_.slots.size()));
  HORA_TRY(add_horovod_aliases(environment_, own_program()));
  auto program = find_program(job_.arguments.front(), find_variable(environment_, "PATH"));
  if (!program) {
    refusal_code_ = program.error().exit_code;
    return fail(ErrorKind::system, program.error().message);
  }
  program_ = std::move(*program);
  HORA_TRY(check_interfaces(job_.interfaces));
  Result<Reached> reached =
      reach_rendezvous(job_.endpoints, job_.job, job_.secret, job_.slots.front().rank,
                       Deadline::after(std::chrono::milliseconds(job_.patience_ms)));
  if (!reached) return fail(std::move(reached.error()));
  facts_ = {job_.job, job_.secret, reached->endpoint, reached->address};
  ready.endpoint = reached->endpoint;
  ready.address = reached->address;
  return ready;
}

void Agent::on(const StartWorkers&) {
  if (!prepared_ || started_) {
    abandoned_ = true;
    return;
  }
  started_ = true;
  const bool has_stdin = job_.slots.front().rank == Rank(0);
  Result<Fd> input = workers_.open_remote_stdin(has_stdin);
  if (input) stdin_pipe_ = std::move(*input);
  for (const Slot& slot : job_.slots) {
    const Environment environment = make_worker_environment(environment_, facts_, slot);
    const Result<void> started =
        input ? workers_.start({program_, job_.arguments, environment, inherited_}, slot)
              : tl::unexpected<Error>(input.error());
    if (!started) {
      note(started.error().message);
      say(Exited{slot.rank, {false, 126, false, false}});
      break;  // which ends the job
    }
    say(Started{slot.rank, workers_.find(slot.rank)->pid});
  }
  if (stdin_pipe_.valid()) say(StdinTaken{});
  tell_census();
}

void Agent::on(const SignalWorkers& order) {
  switch (order.target) {
    case SignalWorkers::Target::groups:
      workers_.signal_groups(order.signo);
      return;
    case SignalWorkers::Target::each:
      workers_.signal_each(order.signo);
      return;
    case SignalWorkers::Target::everything:
      if (order.signo == SIGKILL) {
        kill_at_ = steady_now();
      } else {
        workers_.signal_everything(order.signo);
      }
  }
}

void Agent::on(StdinBytes input) {
  if (!stdin_pipe_.valid()) return;
  if (input.bytes.empty()) {
    stdin_pipe_.reset();
    return;
  }
  stdin_pending_ = std::move(input.bytes);
  write_stdin();
}

void Agent::write_stdin() {
  const ssize_t wrote = ::write(stdin_pipe_.get(), stdin_pending_.data(), stdin_pending_.size());
  if (wrote < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (wrote < 0) {  // rank 0 reads no more
    stdin_pipe_.reset();
    stdin_pending_.clear();
    return;
  }
  stdin_pending_.erase(0, static_cast<std::size_t>(wrote));
  if (stdin_pending_.empty()) say(StdinTaken{});
}

// One buffer full of a worker's output. False: nothing there now, or it has ended.
bool Agent::pass_on(Worker& worker, Stream stream) {
  Fd& pipe = worker.pipes[static_cast<std::size_t>(stream)];
  if (!pipe.valid()) return false;
  const std::string_view bytes = read_pipe(pipe, buffer_);
  if (!pipe.valid()) say(OutputEnd{worker.slot.rank, stream});
  if (bytes.empty()) return false;
  say(OutputBytes{worker.slot.rank, stream, std::string(bytes)});
  in_flight_bytes_ += bytes.size();
  return true;
}

void Agent::drain(Worker& worker, std::size_t most_bytes) {
  for (const Stream stream : {Stream::out, Stream::err}) {
    for (std::size_t bytes = 0; bytes < most_bytes && pass_on(worker, stream);)
      bytes += kReadBytes;
  }
}

void Agent::tell_census() {
  const Census& now = workers_.census();
  const HostCensus census = {now.workers, now.others};
  if (started_ && census.workers == 0 && !census.others) {
    // Everybody who could write is gone: what the pipes hold is all there will be.
    for (Worker& worker : workers_.all())
      drain(worker, SIZE_MAX);
    kill_at_.reset();
  }
  if (started_ && census != told_) say(census);
  told_ = census;
}

void Agent::kill_again(TimePoint now) {
  if (now < *kill_at_) return;
  workers_.signal_everything(SIGKILL);
  kill_at_ = now + kKillInterval;
}

}  // namespace

int run_agent(const Inherited& inherited, const Environment& own, Fd signals) {
  Agent agent(inherited, own, std::move(signals));
  if (auto opened = agent.open(); !opened) {
    fmt::print(stderr, "horarun: {}\n", opened.error().message);
    return 1;
  }
  return agent.run();
}

}  // namespace hora
