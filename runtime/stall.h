// StallInspector: who keeps everybody waiting.
//
// A tensor that some ranks submitted and others did not is normal for milliseconds and a deadlock
// after a minute: ranks took different branches, one of them is stuck in user code or dead. Nobody
// can tell which from one side, but the root sees all sides: after `stall_warning` it says which
// tensors wait, who has them, who has not, and of each missing rank what it did last and when (it
// submitted a tensor, and maybe waits for that one itself) and whether it lives: heartbeats that
// fail to come are evidence, which the root is told anyway. So a report costs no message. It looks
// again every `stall_warning` and speaks when the picture has changed. After `stall_shutdown` the
// job ends with the same text, about all that waits by then.
//
// Pure: asked with the time and the waiting tensors; says when it wants to be asked again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/negotiation.h"
#include "runtime/response_cache.h"

namespace hora {

/// A tensor that not all ranks of its process set have submitted.
struct WaitingTensor {
  SharedRequest request;
  TimePoint since;                    ///< When the first rank submitted it.
  std::vector<std::int32_t> have;     ///< Ascending.
  std::vector<std::int32_t> missing;  ///< Of the set, without those that have joined; ascending.
};

/// Owner: the Coordinator.
class StallInspector {
 public:
  explicit StallInspector(const NegotiationOptions& options);

  /// `request` is the last tensor that `rank` submitted.
  void on_submission(Rank rank, const SharedRequest& request, TimePoint now);
  /// Why the rank may not live: "has sent no heartbeat for 2.0 s"; empty: it does.
  void on_evidence(Rank rank, const std::string& text);

  /// When `inspect` should be called, if the oldest waiting tensor waits since
  /// `oldest`; nothing: never.
  [[nodiscard]] std::optional<TimePoint> next_deadline(std::optional<TimePoint> oldest) const;

  struct Finding {
    std::string notice;         ///< A report to log, or empty.
    std::optional<Error> stop;  ///< The job ends.
  };
  /// `waiting`: oldest first.
  Finding inspect(TimePoint now, const std::vector<WaitingTensor>& waiting);

 private:
  struct Activity {
    SharedRequest last;
    TimePoint at;
    std::string evidence;
  };

  /// About `overdue`, which are some of the waiting ones.
  [[nodiscard]] std::string report(TimePoint now, const std::vector<WaitingTensor>& overdue,
                                   const std::vector<WaitingTensor>& waiting, Duration limit) const;
  [[nodiscard]] std::string activity_text(std::int32_t rank, TimePoint now,
                                          const std::vector<WaitingTensor>& waiting) const;

  bool enabled_;
  Duration warning_, shutdown_;
  std::vector<Activity> ranks_;
  std::optional<TimePoint> looked_at_;
  std::string last_picture_;
};

}  // namespace hora
