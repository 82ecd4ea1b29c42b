// CollectiveRun: one collective to be run, and where its bytes are.
//
// The collective has a byte space of its own that is never materialized: tensors one behind the
// other, each on a multiple of 64 B (the *piece table*). Segments cut that space; pack and unpack
// move the bytes of a segment between the callers' tensors and a slot, so a fused buffer exists
// only segment by segment, in cache. The ragged shapes (gather, scatter, transpose) have *extents*
// instead: chunk c is so many bytes, at some place in the input of who gives it and in the output
// of who gets it. A segment covers the same range of every chunk; what is shorter than others is
// short or empty in the last segments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "compress/residual.h"
#include "ops/reduce.h"
#include "ops/schedule.h"
#include "runtime/base/dtype.h"

namespace hora {

/// The part of one tensor in the collective's byte space.
struct Piece {
  const std::byte* input = nullptr;  ///< Null: zeros (leaf of a broadcast: nothing).
  std::byte* output = nullptr;       ///< Null: the result is not wanted.
  std::uint64_t start = 0;           ///< First byte in the byte space, a multiple of 64.
  std::uint64_t bytes = 0;
  Residual* residual = nullptr;  ///< With error feedback: what this tensor keeps.
};

/// A chunk of a ragged collective. All ranks know its length; where it lies is known to those who
/// have or get it.
struct Extent {
  std::uint64_t bytes = 0;
  std::uint64_t input = 0;   ///< Offset in the run's `input`.
  std::uint64_t output = 0;  ///< Offset in the run's `output`.
};

/// Who contributes to a result: ascending numbers of members. What they number is the owner's
/// business; a collective that is finished by fewer than began it has more than one list.
using Contributors = std::shared_ptr<const std::vector<std::int32_t>>;

/// The contributors of a run's segments below `end_segment`, from the last range's end on.
struct Contribution {
  std::uint64_t end_segment = 0;
  Contributors contributors;
};

/// What this rank alone has to do before a run can start, because the run is about it: what it
/// works on was brought by the runs before in the same lane.
class LocalWork {
 public:
  virtual ~LocalWork() = default;
  /// Goes on, for about `budget_bytes` touched bytes, which it takes off. True: it is done.
  virtual bool work(std::size_t& budget_bytes) = 0;
};

/// What a segment of a run with a codec is doing.
enum class SegmentPhase : std::uint8_t { idle, encode, transfer, decode };

/// Is told what segments do, for the timeline. `track`: which of those in flight at once.
class SegmentObserver {
 public:
  virtual ~SegmentObserver() = default;
  virtual void on_phase(std::uint32_t track, SegmentPhase from, SegmentPhase to) = 0;
};

/// A collective and its progress. Owner: the executor while it runs.
struct CollectiveRun {
  const Schedule* schedule = nullptr;  ///< Template of a segment; outlives the run.
  /// The group that runs it: its ranks, by index in the template. Empty: all ranks. Outlives it.
  std::span<const std::int32_t> group;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  Finish finish;
  std::vector<Piece> pieces;           ///< Reduce and copy: in order of `start`.
  std::vector<Extent> extents;         ///< Ragged: by chunk.
  const std::byte* input = nullptr;    ///< Ragged: what this rank gives. Null: zeros.
  std::byte* output = nullptr;         ///< Ragged: what it gets. Null: it is not wanted.
  std::uint64_t total_bytes = 0;       ///< Of the byte space (ragged: of the longest chunk).
  std::uint64_t segment_bytes = 0;     ///< Multiple of 64 * grid; ragged: of 64, per chunk.
  std::uint64_t ticket = 0;            ///< The owner's name for this run.
  Contributors contributors;           ///< Of the segments that start from now on; may be null.
  std::shared_ptr<const void> anchor;  ///< Whatever else must live as long: what `schedule` is of.
  std::unique_ptr<LocalWork> before;   ///< Null: nothing. Starts when the runs before are finished.
  /// Not null: `schedule` has encoded cells. The byte space is one of float32 then, whatever the
  /// tensors are made of, and pieces and chunks start on the codec's blocks.
  std::shared_ptr<const Codec> codec;
  ResidualStore* residuals = nullptr;   ///< Not null: the codec has error feedback.
  SegmentObserver* observer = nullptr;  ///< With a codec; may be null.
  /// Shadows of segments that were begun in a World that ended, by index: committed with a copy of
  /// the result, dropped when the segment is run again.
  std::map<std::uint64_t, std::unique_ptr<Shadow>> suspended;

  std::uint64_t started = 0, finished = 0;  ///< Segments.
  std::vector<Contribution> contributed;    ///< Of the finished ones, in order.

  /// The next segment is done, with these contributors.
  void finish_segment(const Contributors& by);

  /// The rank at an index of the template.
  [[nodiscard]] std::int32_t rank_at(int index) const {
    return group.empty() ? index : group[static_cast<std::size_t>(index)];
  }
  /// At least one: an empty collective still meets everybody.
  [[nodiscard]] std::uint64_t segments() const {
    return total_bytes == 0 ? 1 : (total_bytes + segment_bytes - 1) / segment_bytes;
  }
};

/// The geometry of one segment: which bytes a chunk or cell means.
class Segment {
 public:
  Segment() = default;
  Segment(const CollectiveRun& run, std::uint64_t index);

  /// Bytes of a chunk (kWhole: of the segment, unless it is ragged).
  [[nodiscard]] std::uint64_t length(int chunk) const;
  /// First byte of a chunk within the segment.
  [[nodiscard]] std::uint64_t start(int chunk) const;
  /// Offset of a cell within the slot's payload area.
  [[nodiscard]] std::uint64_t offset(Place place) const;

  /// visit(piece, begin, end) for the pieces that a chunk has parts of, in order: bytes
  /// [begin, end) of the byte space.
  template <class Visit>
  void for_pieces(int chunk, const Visit& visit) const {
    const std::uint64_t first = base_ + start(chunk);
    const std::uint64_t last = first + length(chunk);
    for (auto piece = first_piece(first); piece != run_->pieces.end() && piece->start < last;
         ++piece) {
      visit(*piece, std::max(first, piece->start), std::min(last, piece->start + piece->bytes));
    }
  }
  /// First byte of the segment in the byte space.
  [[nodiscard]] std::uint64_t base() const { return base_; }

  /// Copies the callers' bytes of a chunk to `to`, prescaled; gaps between tensors are zeroed.
  void pack(int chunk, std::byte* to) const;
  /// Copies a chunk of the result from `from` to the callers' tensors. With a codec `from` is
  /// float32, rounded to the tensors' type.
  void unpack(int chunk, const std::byte* from) const;

  /// A whole result in a row: its length, and where a chunk stands in it.
  [[nodiscard]] std::uint64_t result_bytes() const;
  [[nodiscard]] std::uint64_t result_offset(int chunk) const;
  /// Copies a result in a row to the callers' tensors.
  void unpack_result(const std::byte* from) const;

 private:
  /// The first piece that ends behind a byte of the space.
  [[nodiscard]] std::vector<Piece>::const_iterator first_piece(std::uint64_t at) const;
  [[nodiscard]] std::uint64_t stride(std::uint16_t buffer) const {
    return run_->schedule->buffers[buffer].encoded ? encoded_stride_ : stride_;
  }

  const CollectiveRun* run_ = nullptr;
  std::uint64_t base_ = 0;    // First byte in the byte space.
  std::uint64_t bytes_ = 0;   // Of the segment; 0 if it is ragged.
  std::uint64_t stride_ = 0;  // Of a cell.
  std::uint64_t encoded_stride_ = 0;
};

/// `segment_bytes` of `schedule` so that a segment fits into a slot, and a rank gives at most about
/// `wanted` bytes to it. It leaves room for 64 bytes more in every cell: then it fits the
/// templates of fewer ranks as well, whose chunks are longer and end on other multiples of 64.
std::uint64_t fit_segment(const Schedule& schedule, bool views_only, std::uint64_t slot_bytes,
                          std::uint64_t wanted);
/// What a segment of that many bytes takes of a slot.
std::uint64_t slot_bytes_of(const Schedule& schedule, bool views_only, std::uint64_t segment_bytes);
/// `segment_bytes` of a schedule with encoded cells, with room for a block more in every cell, if
/// there is any; 0 if not even one block per chunk fits.
std::uint64_t fit_encoded_segment(const Schedule& schedule, const Codec& codec, bool views_only,
                                  std::uint64_t slot_bytes, std::uint64_t wanted);
/// What a segment of that many bytes takes of a slot.
std::uint64_t encoded_slot_bytes(const Schedule& schedule, const Codec& codec, bool views_only,
                                 std::uint64_t segment_bytes);

}  // namespace hora
