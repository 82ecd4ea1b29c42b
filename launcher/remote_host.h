// RemoteHost: one other host of the job, as horarun sees it: an ssh process and a state.
//
//   dialing --Hello--> greeted --Ready--> ready --start()--> running --finish()--> finishing
//      |                  |                 |                   |                      |
//      +------ ssh ends, the host refuses, is silent or talks nonsense ------> failed  +--> closed
//
// Where workers of this host would be processes, they are messages here; the rest is the same:
// signals go in, output, ends and a census come out. A host that fails while it runs takes its
// living workers with it: each is reported as lost. What ssh wrote on stderr is kept, for the
// message that says why.
//
// Output is read from ssh always, or an end would hide behind it; what our own full outputs cannot
// take waits here, and the agent's window (agent_messages.h) bounds how much that is.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/agent_messages.h"
#include "launcher/line_splitter.h"
#include "launcher/poll_set.h"
#include "launcher/spawn.h"
#include "launcher/tail.h"
#include "launcher/termination.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"

namespace hora {

/// What a host has to tell. Called from its handlers of a PollSet and its methods.
struct RemoteEvents {
  std::function<void(Rank rank, std::int64_t pid)> on_started;
  /// Nobody can take more of this stream now.
  std::function<bool(Stream stream)> is_full;
  std::function<void(Rank rank, Stream stream, std::string_view bytes)> on_output;
  std::function<void(Rank rank, Stream stream)> on_output_end;
  std::function<void(Rank rank, const ExitStatus& status)> on_exit;
  /// A line for the user.
  std::function<void(const std::string& line)> say;
};

struct RemoteHostOptions {
  std::vector<Slot> slots;           ///< All of this host; at least one.
  std::vector<std::string> command;  ///< From make_ssh_command().
  std::string program;               ///< The file of the command's first word.
  Duration silence_limit = 30s;
  bool verbose = false;
  /// What to tell the agent that said Hello.
  std::function<Prepare(const Hello& hello)> make_prepare;
};

/// Owner: the supervisor.
class RemoteHost {
 public:
  enum class Phase { dialing, greeted, ready, running, finishing, closed, failed };

  RemoteHost(RemoteHostOptions options, RemoteEvents events);
  /// Starts ssh; the process is the caller's to reap.
  Result<void> dial(const Environment& own, const Inherited& inherited);

  void watch(PollSet& set);
  /// Pings, and gives the host up when it is silent. To be called at `deadline()` or later.
  void step(TimePoint now);
  [[nodiscard]] TimePoint deadline() const;
  /// Its ssh has been reaped.
  void on_ssh_end(const ExitStatus& status);
  /// Passes on what waits, as far as our outputs are not full; `all`: whether they are or not.
  void deliver(bool all);

  /// All hosts are ready.
  void start();
  void signal(SignalWorkers::Target target, int signo);
  /// Nothing lives there any more, or shall.
  void finish();
  /// Not wanted or not usable any more: its ssh is killed, and its agent kills what is left.
  void give_up(const std::string& why);

  /// Output waits here for ours to have room.
  [[nodiscard]] bool holds_output() const { return !held_[0].empty() || !held_[1].empty(); }
  /// Rank 0 runs there and asks for input.
  [[nodiscard]] bool wants_stdin() const { return wants_stdin_; }
  void send_stdin(std::string bytes);

  [[nodiscard]] const std::string& name() const { return options_.slots.front().host; }
  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] const Census& census() const { return census_; }
  [[nodiscard]] pid_t ssh() const { return ssh_; }
  [[nodiscard]] bool ssh_alive() const { return ssh_ > 0 && !ssh_ended_; }
  /// Valid from `ready` on.
  [[nodiscard]] const Ready& ready() const { return ready_; }
  /// What horarun shall end with if this host fails before it runs.
  [[nodiscard]] int exit_code() const { return exit_code_; }

 private:
  struct Held {
    Rank rank{};
    std::string bytes;
    bool end = false;
  };

  void send(const ToAgent& message);
  void flush();
  void read_frames();
  void read_errors();
  bool take(std::string_view bytes);
  void take_errors(std::string_view bytes);
  void pass(Stream stream, const Held& held);
  void say_why(const std::string& why);

  Result<void> on(const Hello& hello);
  Result<void> on(const Ready& ready);
  Result<void> on(const Refused& refused);
  Result<void> on(const Started& started);
  Result<void> on(OutputBytes& output);
  Result<void> on(const OutputEnd& end);
  Result<void> on(const Exited& exited);
  Result<void> on(const HostCensus& census);
  Result<void> on(const StdinTaken& taken);
  Result<void> on(const Pong& pong);
  Result<void> on(const Note& note);
  [[nodiscard]] bool owns(Rank rank) const;

  RemoteHostOptions options_;
  RemoteEvents events_;
  Phase phase_ = Phase::dialing;
  pid_t ssh_ = -1;
  bool ssh_ended_ = false;
  Fd to_agent_, from_agent_, errors_;
  std::vector<char> buffer_;
  std::string pending_;  ///< To be written to the agent.
  std::string noise_;    ///< Before the greeting.
  FrameReader<FromAgent> frames_;
  LineSplitter error_lines_;
  Tail error_tail_;
  TimePoint heard_at_{}, ping_at_{};
  Ready ready_;
  Census census_;
  std::set<Rank> living_;
  std::array<std::deque<Held>, 2> held_;  ///< By stream.
  std::uint64_t consumed_bytes_ = 0;      ///< Not told to the agent yet.
  bool wants_stdin_ = false;
  int exit_code_ = 1;
};

}  // namespace hora
