// Fleet: the other hosts of a job, together.
//
// All are dialed at once; a job starts when every one of them is ready, and not before: a host that
// cannot be reached, or lacks the program, is told while nothing runs anywhere. After the first
// failure the rest get a moment longer, so that one attempt names as many bad hosts as it can.
// Signals and the census are the sum over hosts. With no other hosts all of this is nothing.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "launcher/remote_host.h"
#include "launcher/workers.h"

namespace hora {

struct FleetOptions {
  std::vector<RemoteHostOptions> hosts;
  Duration start_timeout = 60s;
};

/// Owner: the supervisor.
class Fleet {
 public:
  enum class Start { waiting, ready, failed };

  Fleet(FleetOptions options, const RemoteEvents& events);

  /// Starts an ssh per host. `add_helper` gets their pids.
  Result<void> dial(const Environment& own, const Inherited& inherited,
                    const std::function<void(pid_t)>& add_helper);
  /// How far the hosts have come; hosts that are late fail here.
  Start check_start(TimePoint now);
  /// What horarun ends with when the start has failed.
  [[nodiscard]] int start_exit_code() const;
  void start_workers();

  void watch(PollSet& set);
  void step(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  void on_helper_end(const EndedHelper& ended);

  void signal(SignalWorkers::Target target, int signo);
  void kill_everything();
  [[nodiscard]] Census census() const;
  void deliver(bool all);
  /// Some host's output waits for ours.
  [[nodiscard]] bool holds_output() const;

  /// Ends the agents, which are told that nothing more is wanted.
  void finish();
  /// Kills what is left of ssh.
  void hang_up();
  [[nodiscard]] bool closed() const;

  /// The host of rank 0 asks for input.
  [[nodiscard]] bool wants_stdin() const;
  void send_stdin(std::string bytes);

  [[nodiscard]] bool empty() const { return hosts_.empty(); }
  [[nodiscard]] const std::vector<std::unique_ptr<RemoteHost>>& hosts() const { return hosts_; }

 private:
  std::vector<std::unique_ptr<RemoteHost>> hosts_;
  Duration start_timeout_;
  std::optional<TimePoint> start_deadline_;
  bool killing_ = false;
};

}  // namespace hora
