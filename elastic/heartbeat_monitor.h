// HeartbeatMonitor: who has been silent for too long? Pure: time comes in, names go out.
//
// Silence is no death: a stopped process, a stuck machine and a dead one look alike from here. So
// the monitor says "silent" once when the limit passes and "back" once when a beat comes again, and
// others decide.
//
// It also suspects itself. If it was not asked for more than half the limit, it was this process
// that slept (a stopped launcher, a suspended laptop), and nobody is blamed for beats that nobody
// was awake to read: all clocks move on by the time that was slept.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"

namespace hora {

/// Owner: one thread.
class HeartbeatMonitor {
 public:
  explicit HeartbeatMonitor(Duration limit) : limit_(limit) {}

  /// From now on `rank` is expected to beat.
  void start(Rank rank, TimePoint now);
  /// Not any more.
  void stop(Rank rank);
  /// A sign of life. True: the rank had been called silent, and is back.
  bool beat(Rank rank, TimePoint now);

  struct Silence {
    Rank rank;
    Duration silent_for;
  };
  /// Ranks whose silence has reached the limit since the last call; each is named once per silence.
  std::vector<Silence> check(TimePoint now);

  /// When check() is due next; nothing if nobody is watched.
  [[nodiscard]] std::optional<TimePoint> next_check() const;

 private:
  struct Watched {
    TimePoint last;
    bool silent = false;
  };

  Duration limit_;
  std::map<Rank, Watched> watched_;
  std::optional<TimePoint> last_check_;
};

}  // namespace hora
