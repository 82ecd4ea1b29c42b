// Termination: when the job ends and how, as a pure state machine.
//
//   running --failure--> failing --notice over--> stopping --grace over--> killing
//      |                    |                      ^    |                     |
//      +-------signal-------+--------signal--------+    |                     |
//      |                    |                           |                     |
//      +--all workers gone--+-----all workers gone------+                     |
//                           v                                                 v
//                       leftovers --quiet over--> clearing --none left-----> over
//
// The first failure gives the other workers a short notice: their own errors then name the dead
// peer, which is worth more than "Terminated". After that everything is asked to end (SIGTERM), and
// at the end of the grace it is made to (SIGKILL). Workers leave processes behind: helpers that
// unlink shared memory when their owner is gone, which deserve a quiet moment to do so, and
// daemons, which are then asked and in the end killed like the rest. A signal to horarun ends the
// job the same way; a second one kills at once. Nothing is over while any process is left - but for
// one that cannot be killed (state D, another user's): after a bounded time it is reported.
//
// The first cause, and no later one, decides the exit code. The first worker to *end* is not always
// the cause: one that fails in order tells the others, takes its time to unwind, and they may be
// gone before it. So a worker that gave last words before anybody failed is the suspect: its
// failure, if it follows soon, takes the place of those that it caused.
#pragma once

#include <optional>

#include "launcher/exit_status.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"

namespace hora {

struct TerminationTimes {
  Duration notice = 500ms;           ///< From the first failure to SIGTERM.
  Duration confession = 3s;          ///< The same, while the suspect has not ended yet.
  Duration grace = 5s;               ///< From SIGTERM to SIGKILL.
  Duration leftovers_quiet = 500ms;  ///< From the last worker's end to SIGTERM for what it left.
  Duration give_up = 10s;            ///< From SIGKILL to "cannot be killed".
};

/// What is alive.
struct Census {
  int workers = 0;
  bool others = false;  ///< Processes that workers started.
};

/// A worker and how it failed.
struct Failure {
  Rank rank{};
  ExitStatus status;
};

/// Owner: the supervisor.
class Termination {
 public:
  enum class Phase { running, failing, stopping, leftovers, clearing, killing, over };
  enum class Order {
    none,
    ask,   ///< SIGTERM to everything alive.
    kill,  ///< SIGKILL to everything alive; repeated while something lives.
  };

  explicit Termination(TerminationTimes times) : times_(times) {}

  /// A worker said why it is about to fail.
  void on_last_words(Rank rank);
  /// A worker ended with a status other than 0.
  void on_failure(const Failure& failure, TimePoint now);
  /// Horarun was told to end by this signal.
  void on_signal(int signo, TimePoint now);
  /// Whoever would wait for us is gone: kill at once.
  void on_abandoned(TimePoint now);

  /// What to do now. To be called after every event and at `deadline()`.
  Order step(const Census& census, TimePoint now);

  /// When `step` has to be called again at the latest.
  [[nodiscard]] std::optional<TimePoint> deadline() const { return deadline_; }
  [[nodiscard]] Phase phase() const { return phase_; }
  /// SIGTERM has been ordered: ends of workers from now on are our doing.
  [[nodiscard]] bool asked() const { return asked_; }
  /// Over although something lives.
  [[nodiscard]] bool gave_up() const { return gave_up_; }
  /// The first failure, if it was what ended the job.
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }
  /// The first signal horarun got; it may have come after the first failure.
  [[nodiscard]] std::optional<int> signal() const { return signal_; }
  /// 0, the first failure's code, or 128 + signal.
  [[nodiscard]] int exit_code() const;

 private:
  void enter(Phase next, std::optional<TimePoint> deadline);
  void start_killing(TimePoint now);
  Order ask(Phase next, TimePoint now);

  TerminationTimes times_;
  Phase phase_ = Phase::running;
  std::optional<TimePoint> deadline_;
  std::optional<TimePoint> kill_at_;
  TimePoint give_up_at_{};
  std::optional<Rank> suspect_;
  std::optional<Failure> failure_;
  std::optional<int> signal_;
  bool asked_ = false;
  bool gave_up_ = false;
};

const char* to_string(Termination::Phase phase);

}  // namespace hora
