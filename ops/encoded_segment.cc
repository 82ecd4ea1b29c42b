#include "ops/encoded_segment.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/float_arrays.h"

namespace hora {
namespace {

float* floats(std::byte* bytes) {
  return reinterpret_cast<float*>(bytes);
}
const float* floats(const std::byte* bytes) {
  return reinterpret_cast<const float*>(bytes);
}

/// Elements of one tensor in a segment.
struct Part {
  const Piece* piece = nullptr;
  std::size_t first = 0;  // In the tensor.
  std::size_t count = 0;
  std::size_t offset = 0;  // In the segment, in floats.
};

}  // namespace

template <class Visit>
void EncodedSegment::for_runs(int chunk, const Visit& visit) const {
  segment_.for_pieces(chunk, [&](const Piece& piece, std::uint64_t begin, std::uint64_t end) {
    visit(Part{&piece, static_cast<std::size_t>((begin - piece.start) / sizeof(float)),
               static_cast<std::size_t>((end - begin) / sizeof(float)),
               static_cast<std::size_t>((begin - segment_.base()) / sizeof(float))});
  });
}

void EncodedSegment::begin(CollectiveRun& run, std::uint64_t index, bool copied,
                           std::uint32_t track) {
  abort();
  run_ = &run;
  index_ = index;
  track_ = track;
  phase_ = SegmentPhase::idle;
  segment_ = Segment(run, index);
  lengths_.assign(run.schedule->cells(false), 0);
  finite_ = true;
  if (run.residuals == nullptr) return;
  auto suspended = run.suspended.extract(index);
  if (copied) {
    if (!suspended.empty()) shadow_ = std::move(suspended.mapped());
    return;
  }
  shadow_ = run.residuals->begin(segment_.length(kWhole) / sizeof(float));
  for_runs(kWhole, [&](const Part& part) {
    Residual* const residual = part.piece->residual;
    if (residual != nullptr) shadow_->add(*residual, part.first, part.count, part.offset);
  });
}

void EncodedSegment::commit() {
  enter(SegmentPhase::idle);
  if (shadow_ == nullptr) return;
  if (merge_.take_overflow()) finite_ = false;
  if (!finite_) return abort();
  run_->residuals->commit(std::move(shadow_));
}

void EncodedSegment::abort() {
  merge_.take_overflow();
  if (shadow_ != nullptr) run_->residuals->abort(std::move(shadow_));
}

void EncodedSegment::suspend(CollectiveRun& run) {
  enter(SegmentPhase::idle);
  if (shadow_ == nullptr) return;
  if (merge_.take_overflow()) return abort();
  run.suspended[index_] = std::move(shadow_);
}

bool EncodedSegment::accepts(const Task& recv, std::size_t bytes) const {
  if (!run_->schedule->buffers[recv.at.buffer].encoded) {
    return bytes == segment_.length(recv.chunk);
  }
  std::size_t exact = 0;
  bool is_exact = true;
  for_runs(recv.chunk, [&](const Part& part) {
    const auto length = run_->codec->exact(part.count);
    is_exact = is_exact && length;
    exact += length.value_or(0);
  });
  if (is_exact) return bytes == exact;
  return bytes <= run_->codec->bound(segment_.length(recv.chunk) / sizeof(float));
}

std::span<const std::byte> EncodedSegment::payload(const Task& send, const SegmentMemory& memory) {
  enter(SegmentPhase::transfer);
  return bytes_of(local(send.at), send.chunk, memory);
}

Result<void> EncodedSegment::run(const Task& task, const SegmentMemory& memory) {
  switch (task.kind) {
    case Primitive::merge:
      enter(SegmentPhase::encode);
      return merge(task, memory);
    case Primitive::copy:
      copy(task, memory);
      return {};
    case Primitive::unpack:
      enter(SegmentPhase::decode);
      unpack(task, memory);
      return {};
    default:
      HORA_CHECK(false, "nothing else touches payloads");
  }
}

Result<void> EncodedSegment::merge(const Task& task, const SegmentMemory& memory) {
  const Schedule& schedule = *run_->schedule;
  const Operand* const operands = schedule.operands.data() + task.first_operand;
  operands_.clear();
  for (std::uint32_t k = 0; k < task.operand_count; ++k) {
    if (operands[k].caller) {
      operands_.push_back({});
    } else {
      operands_.push_back({true, bytes_of(operands[k], task.chunk, memory)});
    }
  }
  const bool encodes = schedule.buffers[task.at.buffer].encoded;
  std::byte* const at = memory.slot + segment_.offset(task.at);
  const std::size_t chunk_offset = segment_.start(task.chunk) / sizeof(float);
  const EncodedRecipe how = recipe(task.finish);
  std::size_t used = 0;
  std::optional<std::size_t> wrong;
  for_runs(task.chunk, [&](const Part& part) {
    if (wrong) return;
    std::size_t malformed = 0;
    if (!encodes) {
      float* const to = floats(at) + (part.offset - chunk_offset);
      if (!merge_.decode(how, operands_, part.count, to, malformed)) wrong = malformed;
      return;
    }
    EncodedRun run{.count = part.count};
    if (part.piece->input != nullptr) {
      run.source = part.piece->input + part.first * size_of(run_->dtype);
    }
    if (part.piece->residual != nullptr) {
      run.residual = part.piece->residual->values.data() + part.first;
      run.shadow = shadow_->data() + part.offset;
    }
    const auto written = merge_.encode(how, operands_, run, at + used, malformed);
    if (!written) wrong = malformed;
    used += written.value_or(0);
  });
  for (std::size_t k = 0; k < operands_.size() && !wrong; ++k) {
    if (!operands_[k].payload.empty()) wrong = k;  // Bytes behind the last run.
  }
  if (wrong) return malformed(operands[*wrong]);
  if (encodes) lengths_[cell_of(task.at)] = used;
  return {};
}

void EncodedSegment::copy(const Task& task, const SegmentMemory& memory) {
  const Operand& operand = run_->schedule->operands[task.first_operand];
  const std::span<const std::byte> from = bytes_of(operand, task.chunk, memory);
  std::byte* const at = memory.slot + segment_.offset(task.at);
  if (from.data() != at && !from.empty()) std::memcpy(at, from.data(), from.size());
  if (run_->schedule->is_encoded(operand)) lengths_[cell_of(task.at)] = from.size();
}

void EncodedSegment::unpack(const Task& task, const SegmentMemory& memory) {
  const Operand& operand = run_->schedule->operands[task.first_operand];
  std::span<const std::byte> from = bytes_of(operand, task.chunk, memory);
  if (!run_->schedule->is_encoded(operand)) {
    const std::size_t chunk_offset = segment_.start(task.chunk) / sizeof(float);
    for_runs(task.chunk, [&](const Part& part) {
      const float* const result = floats(from.data()) + (part.offset - chunk_offset);
      std::byte* const output = part.piece->output;
      for (std::size_t first = 0; first < part.count; first += kCodecStretch) {
        const std::size_t count = std::min(kCodecStretch, part.count - first);
        note_result(result + first, count);
        if (output == nullptr) continue;
        narrow(result + first, run_->dtype, output + (part.first + first) * size_of(run_->dtype),
               count);
      }
    });
    return;
  }
  // Stretch by stretch, so that what is decoded is still in cache when it is rounded.
  for_runs(task.chunk, [&](const Part& part) {
    std::byte* const output = part.piece->output == nullptr
                                  ? nullptr
                                  : part.piece->output + part.first * size_of(run_->dtype);
    const bool in_place = run_->dtype == DType::float32 && output != nullptr;
    if (!in_place) stretch_.resize(kCodecStretch);
    for (std::size_t first = 0; first < part.count; first += kCodecStretch) {
      const std::size_t count = std::min(kCodecStretch, part.count - first);
      float* const to = in_place ? floats(output) + first : stretch_.data();
      const auto read = run_->codec->decode(from, count, to);
      HORA_CHECK(read.has_value(), "the length of a hop codec's payload was checked");
      from = from.subspan(*read);
      note_result(to, count);
      if (in_place || output == nullptr) continue;
      narrow(to, run_->dtype, output + first * size_of(run_->dtype), count);
    }
  });
}

void EncodedSegment::unpack_copy(const std::byte* from) {
  for_runs(kWhole, [&](const Part& part) { note_result(floats(from) + part.offset, part.count); });
  segment_.unpack_result(from);
}

void EncodedSegment::read_result(const Task& unpack, const SegmentMemory& memory,
                                 float* out) const {
  const Operand& operand = run_->schedule->operands[unpack.first_operand];
  std::span<const std::byte> from = bytes_of(operand, unpack.chunk, memory);
  if (!run_->schedule->is_encoded(operand)) {
    std::memcpy(out, from.data(), from.size());
    return;
  }
  const std::size_t chunk_offset = segment_.start(unpack.chunk) / sizeof(float);
  for_runs(unpack.chunk, [&](const Part& part) {
    const auto read = run_->codec->decode(from, part.count, out + (part.offset - chunk_offset));
    HORA_CHECK(read.has_value(), "the length of a hop codec's payload was checked");
    from = from.subspan(*read);
  });
}

tl::unexpected<Error> EncodedSegment::malformed(const Operand& operand) const {
  HORA_CHECK(operand.received != kNoTask, "our own payloads decode");
  const Rank peer(run_->rank_at(run_->schedule->tasks[operand.received].peer));
  return fail(Error{ErrorKind::protocol,
                    "rank " + std::to_string(peer.value) + " sent what is no payload of codec '" +
                        run_->codec->text() + "'",
                    peer});
}

std::span<const std::byte> EncodedSegment::bytes_of(const Operand& operand, int chunk,
                                                    const SegmentMemory& memory) const {
  if (operand.received != kNoTask) return memory.received[operand.received];
  const std::size_t length = run_->schedule->is_encoded(operand)
                                 ? lengths_[cell_of(operand.place)]
                                 : static_cast<std::size_t>(segment_.length(chunk));
  return {memory.slot + segment_.offset(operand.place), length};
}

std::size_t EncodedSegment::cell_of(Place place) const {
  std::size_t cell = place.cell;
  for (std::uint16_t b = 0; b < place.buffer; ++b)
    cell += run_->schedule->buffers[b].cells;
  return cell;
}

EncodedRecipe EncodedSegment::recipe(bool finish) const {
  return {run_->codec.get(), run_->dtype, run_->prescale, finish ? run_->finish : Finish{}};
}

void EncodedSegment::enter(SegmentPhase phase) {
  const SegmentPhase before = std::exchange(phase_, phase);
  if (run_->observer != nullptr && before != phase) run_->observer->on_phase(track_, before, phase);
}

void EncodedSegment::note_result(const float* values, std::size_t count) {
  if (shadow_ != nullptr && finite_) finite_ = all_finite(values, count);
}

}  // namespace hora
