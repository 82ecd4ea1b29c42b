// What is left of a lane when its World ends, and where the next World's executor goes on.
//
//   position   floor            done           started
//   ---------- +================+--------------+----------------> later
//   everybody  | done here;     | in flight:   | queued
//   has it     | results held   | inputs intact|
//
// Nobody is more than a window apart, so what somebody may lack is a few segments. Their results
// are copied out of the slots (of peers' slots as well, where memory is shared): the session, with
// its links and mappings, can then be thrown away whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ops/collective.h"

namespace hora {

/// The result of one segment as its unpacks would read it: the segment's bytes, or, of a ragged
/// shape, those of its chunks one behind the other.
struct SegmentResult {
  std::vector<std::byte> bytes;
  Contributors contributors;
};

/// A run and where it lies in its lane.
struct PlacedRun {
  std::uint64_t first = 0;  ///< Position of its first segment.
  std::shared_ptr<CollectiveRun> run;

  [[nodiscard]] std::uint64_t end() const { return first + run->segments(); }
};

struct LaneRemains {
  std::uint64_t done = 0;     ///< Positions below are done here.
  std::uint64_t started = 0;  ///< Positions below were started here.
  std::uint64_t floor = 0;    ///< The lowest count of a member that was heard of.
  /// In order, without gaps: those that end behind `floor`, also those that are finished here and
  /// those that wait.
  std::vector<PlacedRun> runs;
  std::map<std::uint64_t, SegmentResult> results;  ///< By position: from `floor` to `done`.
};

/// A run that goes on. Segments below `done` of its lane are done; then up to `copied_to` they come
/// as copies (Executor::accept_copy); the others are run, with the run's schedule of now.
struct ResumedRun {
  PlacedRun placed;
  std::uint64_t copied_to = 0;
};

struct LaneStart {
  std::uint64_t done = 0;
  std::uint64_t next = 0;        ///< Where runs that are enqueued later begin.
  std::vector<ResumedRun> runs;  ///< In order, from `done` to `next` without gaps.
  std::vector<PlacedRun> past;   ///< Finished here, but others lack segments.
  std::map<std::uint64_t, SegmentResult> results;  ///< Kept until all members have them.
};

}  // namespace hora
