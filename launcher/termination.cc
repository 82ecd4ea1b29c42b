// `deadline_` is when the present phase ends; `kill_at_` is set with the first SIGTERM and outlives
// phases, so that the grace is one for the whole job. Every change of phase goes through `enter`,
// which holds it against the table of moves.
#include "launcher/termination.h"

#include <algorithm>
#include <array>

#include "runtime/base/check.h"

namespace hora {
namespace {

using Phase = Termination::Phase;

// How often the living are killed again: their children become ours one generation at a time.
constexpr Duration kKillInterval = 20ms;

constexpr std::array kMoves = {
    std::pair{Phase::running, Phase::failing},    std::pair{Phase::running, Phase::stopping},
    std::pair{Phase::running, Phase::leftovers},  std::pair{Phase::running, Phase::over},
    std::pair{Phase::running, Phase::killing},    std::pair{Phase::failing, Phase::stopping},
    std::pair{Phase::failing, Phase::leftovers},  std::pair{Phase::failing, Phase::over},
    std::pair{Phase::failing, Phase::killing},    std::pair{Phase::stopping, Phase::leftovers},
    std::pair{Phase::stopping, Phase::killing},   std::pair{Phase::stopping, Phase::over},
    std::pair{Phase::leftovers, Phase::clearing}, std::pair{Phase::leftovers, Phase::killing},
    std::pair{Phase::leftovers, Phase::over},     std::pair{Phase::clearing, Phase::killing},
    std::pair{Phase::clearing, Phase::over},      std::pair{Phase::killing, Phase::over},
};

}  // namespace

void Termination::enter(Phase next, std::optional<TimePoint> deadline) {
  HORA_CHECK(std::find(kMoves.begin(), kMoves.end(), std::pair{phase_, next}) != kMoves.end(),
             "not a move of a job's end");
  phase_ = next;
  deadline_ = deadline;
}

void Termination::start_killing(TimePoint now) {
  give_up_at_ = now + times_.give_up;
  enter(Phase::killing, now);
}

void Termination::on_last_words(Rank rank) {
  if (phase_ == Phase::running && !suspect_) suspect_ = rank;
}

void Termination::on_failure(const Failure& failure, TimePoint now) {
  if (signal_) return;
  const bool suspected = suspect_ == failure.rank;
  if (phase_ == Phase::running) {
    failure_ = failure;
    enter(Phase::failing, now + (suspect_ && !suspected ? times_.confession : times_.notice));
  } else if (phase_ == Phase::failing && suspected && failure_->rank != failure.rank) {
    failure_ = failure;
    deadline_ = std::min(*deadline_, now + times_.notice);
  }
}

void Termination::on_signal(int signo, TimePoint now) {
  switch (phase_) {
    case Phase::running:
    case Phase::failing:
    case Phase::leftovers:
      if (!signal_) {
        signal_ = signo;
        deadline_ = now;
        kill_at_ = std::min(kill_at_.value_or(now + times_.grace), now + times_.grace);
        return;
      }
      [[fallthrough]];
    case Phase::stopping:
    case Phase::clearing:
      if (!signal_) signal_ = signo;
      start_killing(now);
      return;
    case Phase::killing:
    case Phase::over:
      return;
  }
}

void Termination::on_abandoned(TimePoint now) {
  if (phase_ != Phase::killing && phase_ != Phase::over) start_killing(now);
}

Termination::Order Termination::ask(Phase next, TimePoint now) {
  asked_ = true;
  if (!kill_at_) kill_at_ = now + times_.grace;
  enter(next, kill_at_);
  return Order::ask;
}

Termination::Order Termination::step(const Census& census, TimePoint now) {
  if (phase_ == Phase::over) return Order::none;
  if (census.workers == 0 && !census.others) {
    enter(Phase::over, std::nullopt);
    return Order::none;
  }
  const bool with_workers =
      phase_ == Phase::running || phase_ == Phase::failing || phase_ == Phase::stopping;
  if (census.workers == 0 && with_workers) {
    // After a signal nobody wants to wait longer than the grace.
    const TimePoint quiet_until = now + times_.leftovers_quiet;
    enter(Phase::leftovers, std::min(quiet_until, kill_at_.value_or(quiet_until)));
  }
  if (!deadline_ || now < *deadline_) return Order::none;
  switch (phase_) {
    case Phase::running:
    case Phase::failing:
      return ask(Phase::stopping, now);
    case Phase::leftovers:
      if (!kill_at_ || now < *kill_at_) return ask(Phase::clearing, now);
      [[fallthrough]];
    case Phase::stopping:
    case Phase::clearing:
      start_killing(now);
      [[fallthrough]];
    case Phase::killing:
      if (now >= give_up_at_) {
        gave_up_ = true;
        enter(Phase::over, std::nullopt);
        return Order::none;
      }
      deadline_ = now + kKillInterval;
      return Order::kill;
    case Phase::over:
      break;
  }
  return Order::none;
}

int Termination::exit_code() const {
  if (failure_) return hora::exit_code(failure_->status);
  if (signal_) return 128 + *signal_;
  return 0;
}

const char* to_string(Termination::Phase phase) {
  switch (phase) {
    case Phase::running:
      return "running";
    case Phase::failing:
      return "failing";
    case Phase::stopping:
      return "stopping";
    case Phase::leftovers:
      return "leftovers";
    case Phase::clearing:
      return "clearing";
    case Phase::killing:
      return "killing";
    case Phase::over:
      return "over";
  }
  return "?";
}

}  // namespace hora
