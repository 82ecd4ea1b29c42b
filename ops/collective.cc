#include "ops/collective.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/float_arrays.h"

namespace hora {

namespace {

constexpr std::uint64_t kAlign = 64;

std::uint64_t align_up(std::uint64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}
std::uint64_t clamp_length(std::uint64_t total, std::uint64_t start, std::uint64_t most) {
  return total <= start ? 0 : std::min(most, total - start);
}

/// Bytes of byte space on which pieces and chunks of a run with a codec begin.
std::uint64_t unit_of(const Codec& codec) {
  return std::max<std::uint64_t>(kAlign, codec.traits().block * sizeof(float));
}

/// Copies without `rep movs`, which memcpy uses for large copies: it is slow over lines that
/// another core has just written, and those are what unpack reads. A 102 MB all-reduce on 4 ranks
/// of 2 Zen 3 cores took 1.5 times as long with memcpy.
void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  using Block = std::array<std::uint64_t, 16>;
  std::uint64_t at = 0;
  for (; at + sizeof(Block) <= bytes; at += sizeof(Block)) {
    Block block;
    std::memcpy(&block, from + at, sizeof block);
    std::memcpy(to + at, &block, sizeof block);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

void copy_scaled(const CollectiveRun& run, const std::byte* from, std::byte* to,
                 std::uint64_t bytes) {
  if (run.prescale == 1.0) {
    copy_bytes(to, from, bytes);
  } else {
    scale(run.dtype, from, to, bytes / size_of(run.dtype), run.prescale);
  }
}

}  // namespace

Segment::Segment(const CollectiveRun& run, std::uint64_t index) : run_(&run) {
  base_ = index * run.segment_bytes;
  if (is_ragged(run.schedule->shape)) {
    stride_ = run.segment_bytes;
  } else {
    bytes_ = clamp_length(run.total_bytes, base_, run.segment_bytes);
    const auto grid = static_cast<std::uint64_t>(run.schedule->grid);
    stride_ = align_up((bytes_ + grid - 1) / grid);
    if (run.codec) {
      const std::uint64_t unit = unit_of(*run.codec);
      stride_ = (stride_ + unit - 1) / unit * unit;
      encoded_stride_ = align_up(run.codec->bound(stride_ / sizeof(float)));
    }
  }
}

std::uint64_t Segment::length(int chunk) const {
  if (chunk == kWhole) return bytes_;
  if (is_ragged(run_->schedule->shape)) {
    return clamp_length(run_->extents[static_cast<std::size_t>(chunk)].bytes, base_, stride_);
  }
  return clamp_length(bytes_, static_cast<std::uint64_t>(chunk) * stride_, stride_);
}

std::uint64_t Segment::start(int chunk) const {
  return chunk == kWhole ? 0 : std::min(bytes_, static_cast<std::uint64_t>(chunk) * stride_);
}

std::uint64_t Segment::offset(Place place) const {
  std::uint64_t offset = place.cell * stride(place.buffer);
  for (std::uint16_t b = 0; b < place.buffer; ++b)
    offset += run_->schedule->buffers[b].cells * stride(b);
  return offset;
}

std::vector<Piece>::const_iterator Segment::first_piece(std::uint64_t at) const {
  return std::upper_bound(
      run_->pieces.begin(), run_->pieces.end(), at,
      [](std::uint64_t value, const Piece& piece) { return value < piece.start + piece.bytes; });
}

void Segment::pack(int chunk, std::byte* to) const {
  const std::uint64_t bytes = length(chunk);
  if (bytes == 0) return;
  if (is_ragged(run_->schedule->shape)) {
    const Extent& extent = run_->extents[static_cast<std::size_t>(chunk)];
    if (run_->input == nullptr) {
      std::memset(to, 0, bytes);
    } else {
      copy_scaled(*run_, run_->input + extent.input + base_, to, bytes);
    }
    return;
  }
  const std::uint64_t first = base_ + start(chunk);
  const std::uint64_t last = first + bytes;
  std::uint64_t at = first;
  for (auto piece = first_piece(first); at < last; ++piece) {
    const std::uint64_t begin =
        piece == run_->pieces.end() ? last : std::min(last, std::max(at, piece->start));
    std::memset(to + (at - first), 0, begin - at);
    at = begin;
    if (at == last) break;
    const std::uint64_t end = std::min(last, piece->start + piece->bytes);
    if (piece->input == nullptr) {
      std::memset(to + (at - first), 0, end - at);
    } else {
      copy_scaled(*run_, piece->input + (at - piece->start), to + (at - first), end - at);
    }
    at = end;
  }
}

void Segment::unpack(int chunk, const std::byte* from) const {
  const std::uint64_t bytes = length(chunk);
  if (bytes == 0) return;
  if (is_ragged(run_->schedule->shape)) {
    if (run_->output == nullptr) return;
    const Extent& extent = run_->extents[static_cast<std::size_t>(chunk)];
    copy_bytes(run_->output + extent.output + base_, from, bytes);
    return;
  }
  const std::uint64_t first = base_ + start(chunk);
  for_pieces(chunk, [&](const Piece& piece, std::uint64_t begin, std::uint64_t end) {
    if (piece.output == nullptr) return;
    const std::byte* const source = from + (begin - first);
    if (run_->codec) {
      const std::uint64_t element = (begin - piece.start) / sizeof(float);
      narrow(reinterpret_cast<const float*>(source), run_->dtype,
             piece.output + element * size_of(run_->dtype), (end - begin) / sizeof(float));
    } else {
      copy_bytes(piece.output + (begin - piece.start), source, end - begin);
    }
  });
}

std::uint64_t Segment::result_bytes() const {
  return is_ragged(run_->schedule->shape) ? result_offset(run_->schedule->grid) : bytes_;
}

std::uint64_t Segment::result_offset(int chunk) const {
  if (!is_ragged(run_->schedule->shape)) return start(chunk);
  std::uint64_t offset = 0;
  for (int before = 0; before < chunk; ++before)
    offset += length(before);
  return offset;
}

void Segment::unpack_result(const std::byte* from) const {
  if (!is_ragged(run_->schedule->shape)) return unpack(kWhole, from);
  for (int chunk = 0; chunk < run_->schedule->grid; ++chunk)
    unpack(chunk, from + result_offset(chunk));
}

void CollectiveRun::finish_segment(const Contributors& by) {
  ++finished;
  const bool same =
      !contributed.empty() && (contributed.back().contributors == by ||
                               (contributed.back().contributors != nullptr && by != nullptr &&
                                *contributed.back().contributors == *by));
  if (!same) contributed.push_back({0, by});
  contributed.back().end_segment = finished;
}

std::uint64_t fit_segment(const Schedule& schedule, bool views_only, std::uint64_t slot_bytes,
                          std::uint64_t wanted) {
  const std::uint64_t cells = std::max<std::uint64_t>(1, schedule.cells(views_only));
  std::uint64_t stride_limit = slot_bytes / cells / kAlign * kAlign;
  HORA_CHECK(stride_limit > 0, "a slot has room for 64 bytes per cell");
  if (stride_limit > kAlign) stride_limit -= kAlign;
  // Chunks that a rank gives: all of the segment, its own, or one for each.
  const auto given =
      static_cast<std::uint64_t>(schedule.shape == Shape::gather      ? 1
                                 : schedule.shape == Shape::transpose ? schedule.size
                                                                      : schedule.grid);
  const std::uint64_t stride =
      std::clamp(align_up((wanted + given - 1) / given), kAlign, stride_limit);
  return is_ragged(schedule.shape) ? stride : stride * given;
}

std::uint64_t slot_bytes_of(const Schedule& schedule, bool views_only,
                            std::uint64_t segment_bytes) {
  const auto grid = static_cast<std::uint64_t>(is_ragged(schedule.shape) ? 1 : schedule.grid);
  return schedule.cells(views_only) * align_up((segment_bytes + grid - 1) / grid);
}

std::uint64_t fit_encoded_segment(const Schedule& schedule, const Codec& codec, bool views_only,
                                  std::uint64_t slot_bytes, std::uint64_t wanted) {
  const std::uint64_t unit = unit_of(codec);
  const auto grid = static_cast<std::uint64_t>(schedule.grid);
  const auto fits = [&](std::uint64_t units) {
    return encoded_slot_bytes(schedule, codec, views_only, units * unit * grid) <= slot_bytes;
  };
  // The most units per chunk that fit, by halving; what is wanted is usually little enough.
  std::uint64_t most = std::max<std::uint64_t>(1, (wanted / grid + unit - 1) / unit);
  if (fits(most + 1)) return most * unit * grid;
  std::uint64_t least = 0;
  for (++most; most - least > 1;) {
    const std::uint64_t middle = least + (most - least) / 2;
    (fits(middle) ? least : most) = middle;
  }
  return (least > 1 ? least - 1 : least) * unit * grid;
}

std::uint64_t encoded_slot_bytes(const Schedule& schedule, const Codec& codec, bool views_only,
                                 std::uint64_t segment_bytes) {
  const std::uint64_t unit = unit_of(codec);
  const auto grid = static_cast<std::uint64_t>(schedule.grid);
  const std::uint64_t stride = ((segment_bytes + grid - 1) / grid + unit - 1) / unit * unit;
  const std::uint64_t encoded_stride = align_up(codec.bound(stride / sizeof(float)));
  std::uint64_t bytes = 0;
  for (const BufferSpec& buffer : schedule.buffers) {
    if (views_only && buffer.landing) continue;
    bytes += buffer.cells * (buffer.encoded ? encoded_stride : stride);
  }
  return bytes;
}

}  // namespace hora
