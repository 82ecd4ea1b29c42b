#include "runtime/progress.h"

#include <algorithm>

#include <pthread.h>
#include <signal.h>

namespace hora {

namespace {

/// The engine thread takes over when no caller has been active for this long.
constexpr Duration kIdle = 10ms;
/// The longest sleep with the token.
constexpr Duration kLongestSleep = 1s;
/// Fruitless steps before sleeping; each but the first is followed by some pauses: 10 us in all.
constexpr int kSpinSteps = 20, kFewSpinSteps = 2;
constexpr int kPausesPerSpin = 10;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::int64_t to_ns(TimePoint t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
}

/// Threads of ours take no signals: those belong to the program.
void block_all_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Progress::Progress(Engine& engine, WaitPoint& wait_point, const ProgressOptions& options)
    : engine_(engine),
      wait_point_(wait_point),
      spin_steps_(options.spin ? kSpinSteps : kFewSpinSteps) {
  if (options.threaded) thread_ = std::thread([this] { run_thread(); });
}

Progress::~Progress() {
  ending_.store(true, std::memory_order_release);
  kick();
  wait_point_.wake();
  if (thread_.joinable()) thread_.join();
}

void Progress::on_posted(bool caller_waits) {
  // Either we see that the token is free, or its holder sees the mail when he gives it back: four
  // sequentially consistent accesses, two here (Engine::post_* stores the mail) and two there.
  if (taken_.load(std::memory_order_seq_cst)) {
    wait_point_.wake();
  } else if (!caller_waits) {
    kick();
  }
}

Progress::Outcome Progress::drive_until(CompletionImpl& completion, Deadline deadline,
                                        const std::function<bool()>& interrupted) {
  // A quick answer needs no clock and no look for signals.
  TimePoint now = steady_now();
  for (;;) {
    if (completion.done()) break;
    if (deadline.passed(now)) return Outcome::deadline;
    const TimePoint limit = std::min(deadline.at, now + kInterruptPeriod);
    if (try_take()) {
      drive([&completion] { return completion.done(); }, limit);
      last_caller_ns_.store(to_ns(now), std::memory_order_relaxed);
      give_back();
    } else {
      completion.sleep_until(limit);
    }
    if (completion.done()) break;
    if (interrupted && interrupted()) return Outcome::interrupted;
    now = steady_now();
  }
  return Outcome::done;
}

bool Progress::drive_start(const std::function<bool()>& ready, Deadline deadline) {
  while (!try_take())
    std::this_thread::yield();
  bool is_ready = false;  // Asks the engine, so with the token.
  for (TimePoint now = steady_now(); !is_ready && !deadline.passed(now); now = steady_now()) {
    drive(ready, std::min(deadline.at, now + kInterruptPeriod));
    is_ready = ready();
  }
  give_back();
  return is_ready;
}

void Progress::drive(const std::function<bool()>& until, TimePoint limit) {
  int fruitless = 0;
  while (!until() && !ending_.load(std::memory_order_relaxed)) {
    const TimePoint now = steady_now();
    if (now >= limit) return;
    if (engine_.step(now)) {
      fruitless = 0;
      continue;
    }
    if (++fruitless < spin_steps_) {
      for (int i = 0; i < kPausesPerSpin; ++i)
        pause_cpu();
      continue;
    }
    TimePoint wake_at = std::min(limit, now + kLongestSleep);
    if (const auto next = engine_.next_deadline()) wake_at = std::min(wake_at, *next);
    const SleepNeed need = engine_.need();
    // Counting rings is a guess at what peers will send: something else may come,
    // so look again soon.
    if (need.rings > 1) wake_at = std::min(wake_at, now + kInterruptPeriod);
    engine_.count_sleep();
    wait_point_.sleep({wake_at}, need,
                      [this, now, &until] { return !engine_.step(now) && !until(); });
    fruitless = spin_steps_ - 1;  // One look after waking, then sleep again.
  }
}

void Progress::give_back() {
  // Whoever takes the token next may step at once: only the mail may be asked for afterwards.
  const bool busy = engine_.busy();
  taken_.store(false, std::memory_order_seq_cst);
  // A submission that saw the token taken relies on us.
  if (busy || engine_.has_mail()) kick();
}

void Progress::kick() {
  if (kick_pending_.exchange(true, std::memory_order_acq_rel)) return;
  {
    const std::lock_guard lock(park_mutex_);
    kicked_ = true;
  }
  unparked_.notify_one();
}

void Progress::run_thread() {
  block_all_signals();
  ::pthread_setname_np(::pthread_self(), "hora-engine");
  while (!ending_.load(std::memory_order_acquire)) {
    bool kicked = false;
    {
      std::unique_lock lock(park_mutex_);
      unparked_.wait_for(lock, kIdle, [this] { return kicked_; });
      kicked = std::exchange(kicked_, false);
      if (kicked) kick_pending_.store(false, std::memory_order_release);
    }
    const std::int64_t since_caller =
        to_ns(steady_now()) - last_caller_ns_.load(std::memory_order_relaxed);
    const bool idle = since_caller > std::chrono::nanoseconds(kIdle).count();
    if (!kicked && !idle) continue;
    if (!try_take()) continue;
    // Until the burst is over, or, if nothing is going on, until there was one.
    bool was_busy = engine_.busy();
    drive(
        [this, &was_busy] {
          const bool busy = engine_.busy();
          const bool over = was_busy && !busy;
          was_busy = was_busy || busy;
          return over;
        },
        TimePoint::max());
    give_back();
  }
}

}  // namespace hora
