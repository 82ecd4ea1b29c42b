// The engine's runs with a codec: pieces in a byte space of float32, residuals by tensor name.
//
// Codec and algorithm follow from the response alone, so all ranks run the same, and those outside
// of its process set pass as many segments. A set of one rank never comes here: it has nothing to
// send, and its tensors stay as they are.
#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine.h"

namespace hora {

namespace {

/// Spans of segments on the timeline: a row for each that can be in flight, so that one sees the
/// encoding of one segment beside the transfer of another.
class SegmentSpans final : public SegmentObserver {
 public:
  SegmentSpans(Timeline& timeline, std::uint32_t window) : timeline_(timeline), window_(window) {}

  void on_phase(std::uint32_t track, SegmentPhase from, SegmentPhase to) override {
    const std::string row = "segments of lane " + std::to_string(track / window_) + ", slot " +
                            std::to_string(track % window_);
    if (from != SegmentPhase::idle) timeline_.end(row);
    if (to != SegmentPhase::idle) timeline_.begin(row, name_of(to));
  }

 private:
  static std::string_view name_of(SegmentPhase phase) {
    if (phase == SegmentPhase::encode) return activity::kEncode;
    return phase == SegmentPhase::decode ? activity::kDecode : activity::kTransfer;
  }

  Timeline& timeline_;
  std::uint32_t window_;
};

}  // namespace

std::shared_ptr<const Codec> Engine::codec_for(const std::string& words) {
  auto& codec = codecs_[words];
  if (!codec) {
    auto made = make_codec(words);
    HORA_CHECK(made.has_value(), "the words of a codec were checked when they came");
    codec = std::move(*made);
  }
  return codec;
}

void Engine::start_encoded_run(const Response& response, Calls calls) {
  auto run = std::make_unique<CollectiveRun>();
  lay_out_encoded_run(*run, response, calls);
  const Selection::Choice choice =
      selection_->choose_encoded(*run->codec, run->total_bytes, *response.set);
  if (choice.segment_bytes == 0) {
    const Error error{ErrorKind::resource,
                      "codec '" + response.codec + "' among " +
                          std::to_string(response.set->size()) + " ranks needs larger slots than " +
                          std::to_string(session_.layout.slot_bytes) +
                          " bytes; raise HORA_ARENA_BYTES on all ranks, or lower HORA_WINDOW",
                      std::nullopt};
    for (const Call& call : calls) {
      if (call) finish_call(*call, fail(error));
    }
    return;
  }
  enqueue(response, choice, std::move(run), std::move(calls));
}

/// Everything of a run but its template and its ticket.
void Engine::lay_out_encoded_run(CollectiveRun& run, const Response& response, const Calls& calls) {
  run.dtype = response.dtype;
  run.op = response.op;
  run.codec = codec_for(response.codec);
  run.prescale = response.prescale;
  run.finish.postscale = response.postscale;
  if (response.op == ReduceOp::average) run.finish.divisor = response.set->size();
  if (response.set->id != kGlobalSet) run.group = response.set->ranks;
  add_encoded_pieces(run, response, calls);
  if (!timeline_.on()) return;
  if (!segment_spans_) {
    segment_spans_ = std::make_unique<SegmentSpans>(timeline_, session_.layout.window);
  }
  run.observer = segment_spans_.get();
}

/// The piece table. A tensor that is not this rank's own contributes zeros, if the rank is in the
/// set at all, and has no residual here: other ranks may be at its next step already.
void Engine::add_encoded_pieces(CollectiveRun& run, const Response& response, const Calls& calls) {
  const std::uint64_t unit = std::max<std::uint64_t>(64, run.codec->traits().block * sizeof(float));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Request& request = *response.tensors[i].request;
    const auto elements = static_cast<std::uint64_t>(element_count(request.shape));
    if (elements == 0) continue;
    Piece piece;
    piece.start = (run.total_bytes + unit - 1) / unit * unit;
    piece.bytes = elements * sizeof(float);
    run.total_bytes = piece.start + piece.bytes;
    if (const Call& call = calls[i]) {
      piece.input = static_cast<const std::byte*>(call->submission().input);
      piece.output = static_cast<std::byte*>(call->submission().output);
      if (run.codec->error_feedback()) {
        run.residuals = &residuals_;
        piece.residual = open_residual(request, *response.set);
      }
    }
    run.pieces.push_back(piece);
  }
}

/// Residuals belong to a tensor of a group of ranks, not to the number of a process set, which is
/// given away again when the set is removed. The group of all ranks stays the same one when it
/// loses members: what a rank keeps is in units of its own contribution, whoever the others are.
Residual* Engine::open_residual(const Request& request, const ProcessSet& set) {
  const std::string group = set.id == kGlobalSet ? std::string("all ranks") : ranks_text(set.ranks);
  const auto elements = static_cast<std::size_t>(element_count(request.shape));
  Residual& residual = residuals_.open(group + ": " + request.name, elements);
  if (const double dropped = residuals_.take_dropped_norm(); dropped > 0) {
    log_.warning(tensor_text(request.name, request.set) +
                 " has another size than before: the error that was kept for it, of norm " +
                 std::to_string(dropped) + ", is dropped");
  }
  return &residual;
}

}  // namespace hora
