// What an executor knows of its lanes and of the segments in flight.
//
// Internal to ops/executor*.cc: running segments (executor.cc) and handing them over to the next
// World (executor_repair.cc) work on the same state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "ops/encoded_segment.h"
#include "ops/executor.h"
#include "runtime/base/freeze_word.h"

namespace hora {

/// A segment in flight: the template, its geometry, and which tasks are done. It stays as it is
/// when the segment is done, until its slot is used again: it knows where the result is.
struct Executor::Instance {
  bool active = false;
  bool copied = false;  // Its result comes from a member that has it.
  std::uint64_t position = 0;
  std::shared_ptr<CollectiveRun> run;
  const Schedule* schedule = nullptr;
  Segment segment;
  EncodedSegment encoded;  // Of a run with a codec.
  Contributors contributors;
  std::size_t first_open = 0;  // All tasks before are done.
  std::size_t open = 0;        // Tasks that are not done, unpacks excepted.
  std::vector<std::uint8_t> done;
  std::vector<std::span<const std::byte>> received;  // By task; recv tasks only.
  std::vector<std::byte> copy;                       // `copied`: the result in a row.
};

struct Executor::LaneState {
  LaneState(Epoch epoch, std::uint16_t lane, std::uint32_t slots, std::uint64_t done)
      : number(lane),
        next_position(done),
        end_position(done),
        count(done),
        word(epoch, done),
        window(slots) {}

  std::uint16_t number;
  std::deque<ResumedRun> runs;  // Front: the one that finishes next.
  std::deque<PlacedRun> past;   // Finished here; somebody may lack a segment of it.
  std::size_t starting = 0;     // Index in runs of the one that starts next.
  std::uint64_t next_position;
  std::uint64_t end_position;  // Where the next run that is enqueued begins.
  std::uint64_t count;         // Positions below are done here.
  FreezeWord word;             // The same, and whether more may be.
  bool window_shut = false;
  std::deque<PlacedRun> unshown;  // Finished here and private: shown when all have theirs.
  std::uint64_t gate = 0;         // End of the last private run: no other starts before.
  std::vector<Instance> window;   // By position mod W.
  std::map<std::uint64_t, SegmentResult> copies;     // Have come; not taken yet.
  std::map<std::uint64_t, SegmentResult> inherited;  // Results of the last World, by position.

  Instance& at(std::uint64_t position) { return window[position % window.size()]; }
};

}  // namespace hora
