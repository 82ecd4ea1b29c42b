// EncodedSegment: a segment in flight of a run with a codec.
//
// What an executor needs beside the geometry of a plain segment: payloads have lengths of their
// own, merges encode and decode, and error feedback is a transaction:
//
//   begin      the segment starts: a shadow is opened for the elements of its pieces
//   commit     it is done here, and unpacked: the shadow becomes the residual. Unless the result is
//              not finite: then the residual stays, as if the segment had not begun. All ranks see
//              the same result, so all do the same
//   abort      it will not be finished here, or is begun anew
//   suspend    its World has ended. If somebody finished it, our encodings are in the result, which
//              comes as a copy, and the shadow is committed with that; else the segment is begun
//              anew
//
// A chunk's payload is the payloads of the runs in it, one per tensor, so gaps between tensors cost
// nothing on the wire. The slot and what was received are the executor's; it hands them in.
//
// Owner: the progress token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/collective.h"
#include "ops/encoded_merge.h"
#include "ops/schedule.h"
#include "runtime/base/result.h"

namespace hora {

/// What the tasks of a segment work on: the own slot, and by task what a recv brought.
struct SegmentMemory {
  std::byte* slot = nullptr;
  std::span<const std::span<const std::byte>> received;
};

class EncodedSegment {
 public:
  /// Starts segment `index` of a run with a codec. What was not committed before is aborted.
  /// `copied`: its result will come, and what was suspended belongs to that. `track`: for the run's
  /// observer.
  void begin(CollectiveRun& run, std::uint64_t index, bool copied, std::uint32_t track);
  void commit();
  void abort();
  /// Leaves the shadow to the run.
  void suspend(CollectiveRun& run);

  /// May a payload of this length be what the recv waits for?
  [[nodiscard]] bool accepts(const Task& recv, std::size_t bytes) const;
  /// What a send sends.
  [[nodiscard]] std::span<const std::byte> payload(const Task& send, const SegmentMemory& memory);
  /// Runs a copy, merge or unpack. Error protocol: a peer's payload is none; it names the peer.
  Result<void> run(const Task& task, const SegmentMemory& memory);
  /// The result that an unpack reads, as float32, gaps undefined; also when the segment is done.
  void read_result(const Task& unpack, const SegmentMemory& memory, float* out) const;
  /// Unpacks a result in a row, as `read_result` gives it.
  void unpack_copy(const std::byte* from);

 private:
  Result<void> merge(const Task& task, const SegmentMemory& memory);
  void copy(const Task& task, const SegmentMemory& memory);
  void unpack(const Task& task, const SegmentMemory& memory);
  tl::unexpected<Error> malformed(const Operand& operand) const;
  [[nodiscard]] std::span<const std::byte> bytes_of(const Operand& operand, int chunk,
                                                    const SegmentMemory& memory) const;
  [[nodiscard]] std::size_t cell_of(Place place) const;
  [[nodiscard]] EncodedRecipe recipe(bool finish) const;
  void enter(SegmentPhase phase);
  void note_result(const float* values, std::size_t count);
  template <class Visit>
  void for_runs(int chunk, const Visit& visit) const;

  const CollectiveRun* run_ = nullptr;
  std::uint64_t index_ = 0;
  Segment segment_;
  std::vector<std::size_t> lengths_;  // Of the payload in each cell of the slot.
  std::unique_ptr<Shadow> shadow_;
  std::uint32_t track_ = 0;
  SegmentPhase phase_ = SegmentPhase::idle;
  bool finite_ = true;  // The result, and what would become the residual.
  EncodedMerge merge_;
  std::vector<EncodedOperand> operands_;
  std::vector<float> stretch_;  // Of a result, on its way to a tensor that is no float32.
};

}  // namespace hora
