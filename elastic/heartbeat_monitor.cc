// See heartbeat_monitor.h. A rank is named once per silence: the flag is set by check() and cleared
// by a beat. A sleep of the monitor itself shows as a gap between two checks; the gap is added to
// everybody's last beat.
#include "elastic/heartbeat_monitor.h"

namespace hora {

void HeartbeatMonitor::start(Rank rank, TimePoint now) {
  if (watched_.empty()) last_check_ = now;
  watched_[rank] = {now, false};
}

void HeartbeatMonitor::stop(Rank rank) {
  watched_.erase(rank);
}

bool HeartbeatMonitor::beat(Rank rank, TimePoint now) {
  const auto found = watched_.find(rank);
  if (found == watched_.end()) return false;
  const bool back = found->second.silent;
  found->second = {now, false};
  return back;
}

std::vector<HeartbeatMonitor::Silence> HeartbeatMonitor::check(TimePoint now) {
  std::vector<Silence> silences;
  const Duration slept = last_check_ ? now - *last_check_ : Duration::zero();
  last_check_ = now;
  const bool self_slept = slept > limit_ / 2;
  for (auto& [rank, watched] : watched_) {
    if (self_slept) watched.last += slept;
    if (watched.silent || now - watched.last < limit_) continue;
    watched.silent = true;
    silences.push_back({rank, now - watched.last});
  }
  return silences;
}

std::optional<TimePoint> HeartbeatMonitor::next_check() const {
  if (watched_.empty()) return std::nullopt;
  return *last_check_ + limit_ / 8;
}

}  // namespace hora
