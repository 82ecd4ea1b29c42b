// The supervisor's class, for the files that implement it: supervisor.cc (the loop),
// supervisor_start.cc (until the workers run) and supervisor_end.cc (what ends them, and what is
// said then). Nobody else includes it; supervisor.h is the way in.
//
// Workers of this host are processes (`workers_`), those of others are messages (`fleet_`). What
// concerns a rank, wherever it runs, is in `seats_`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <limits.h>

#include "launcher/fleet.h"
#include "launcher/job_server.h"
#include "launcher/poll_set.h"
#include "launcher/supervisor.h"
#include "launcher/workers.h"

namespace hora {

/// What the server's thread tells the loop through a pipe: a letter, a text, a newline.
inline constexpr char kNotice = 'n';
inline constexpr char kLastWords = 'w';
inline constexpr char kLeftOut = 'l';

/// A rank, wherever it runs.
struct Seat {
  std::int64_t pid = -1;
  std::string host;  ///< Of another host; empty: here.
};

class Supervisor {
 public:
  Supervisor(const Job& job, Fd signals, std::unique_ptr<Output> output);

  Result<void> prepare();
  /// Makes the other hosts ready. Not 0: the exit code of a job that cannot start.
  int connect_hosts();
  Result<void> start_workers();
  int run();

 private:
  [[nodiscard]] FleetOptions fleet_options();
  RemoteEvents remote_events();
  [[nodiscard]] Prepare prepare_host(const Hello& hello, const std::vector<Slot>& slots) const;
  Result<void> start_server();
  void watch_pipes(PollSet& set);
  void watch_sinks(PollSet& set);
  void watch_stdin(PollSet& set);
  void wait(std::optional<TimePoint> deadline);
  void on_signals();
  void signal_groups(int signo);
  void on_children();
  void on_notices();
  void on_exit(Rank rank, const ExitStatus& status);
  bool survive(Rank rank, const ExitStatus& status);
  bool read_worker(Worker& worker, Stream stream);
  void read_stdin();
  void flush(Stream stream);
  void flush_all();
  void carry_out(Termination::Order order);
  [[nodiscard]] Census census() const;
  void finish();
  void close_fleet();
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
  std::vector<Seat> seats_;  ///< By rank.
  Fleet fleet_;
  std::set<Rank> spoke_;     ///< Said why they fail: in order, so the others fail with them.
  int lost_ = 0;             ///< Ranks without which the job goes on.
  std::set<Rank> ended_;     ///< Whose processes are gone.
  std::set<Rank> left_out_;  ///< Of the others, those whom the rest has left behind.
  bool hurry_ = false;       ///< Told to end at once: do not wait for readers.
  bool loss_said_ = false;
};

}  // namespace hora
