// Progress: who steps the engine, and how it sleeps.
//
// One thread at a time holds the *progress token* and steps the engine: a caller that waits (no
// hand-over, so a small call costs no thread switch), or the engine thread. Everybody else who
// waits sleeps on his handle.
//
//  - A caller in drive_until takes the token if it is free, steps until its handle is done, and
//    gives it back. If tensors are still in flight then, it kicks the engine thread: one wake.
//  - The engine thread is parked until it is kicked by an asynchronous submission or by a leaving
//    caller, or until no caller has been active for kIdle. Then it takes the token and steps. It
//    parks again as soon as a burst of work is over, so that callers drive themselves.
//
// So some thread always sleeps on the doorbell whenever a peer may want something, and a loop of
// synchronous calls never wakes a second thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/wait_point.h"
#include "runtime/engine.h"

namespace hora {

/// How often a waiting caller looks for signals.
inline constexpr Duration kInterruptPeriod = 50ms;

struct ProgressOptions {
  bool threaded = true;  ///< False: no engine thread, only callers drive.
  /// Look for news a while before sleeping: worth it where peers share memory and have cores of
  /// their own. With ranks that outnumber the cores, who spins keeps the one he waits for from
  /// running; and news of sockets comes later than spinning lasts, at a system call a look.
  bool spin = true;
};

class Progress {
 public:
  /// Engine and WaitPoint outlive this.
  Progress(Engine& engine, WaitPoint& wait_point, const ProgressOptions& options);
  /// Ends the engine thread. No caller may be in a function of this object.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Something was posted to the engine. `caller_waits`: whoever posted will call
  /// drive_until at once.
  void on_posted(bool caller_waits);

  /// Steps, or sleeps while somebody else does, until `completion` is done (true),
  /// `deadline` has passed or `interrupted` said so (false). `interrupted` is asked every
  /// 50 ms, without the token.
  enum class Outcome { done, deadline, interrupted };
  Outcome drive_until(CompletionImpl& completion, Deadline deadline,
                      const std::function<bool()>& interrupted);

  /// Steps with the token until `ready` or the deadline; before anything was submitted. `ready` is
  /// asked every 50 ms at least.
  bool drive_start(const std::function<bool()>& ready, Deadline deadline);

 private:
  /// Steps until `until`, `limit` or (if given) the burst is over. Holds the token.
  void drive(const std::function<bool()>& until, TimePoint limit);
  bool try_take() { return !taken_.exchange(true, std::memory_order_acquire); }
  void give_back();
  void kick();
  void run_thread();

  Engine& engine_;
  WaitPoint& wait_point_;
  std::atomic<bool> taken_{false};
  std::atomic<std::int64_t> last_caller_ns_{0};

  std::mutex park_mutex_;
  std::condition_variable unparked_;
  bool kicked_ = false;  // Guarded by park_mutex_.
  std::atomic<bool> kick_pending_{false};
  std::atomic<bool> ending_{false};
  const int spin_steps_;
  std::thread thread_;
};

}  // namespace hora
