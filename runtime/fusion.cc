#include "runtime/fusion.h"

#include <algorithm>
#include <bit>

namespace hora {

bool fuses(const Request& a, const Request& b) {
  const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };
  return a.kind == Kind::allreduce && b.kind == Kind::allreduce && a.set == b.set &&
         a.dtype == b.dtype && a.op == b.op && a.op != ReduceOp::adasum &&
         bits(a.prescale) == bits(b.prescale) && bits(a.postscale) == bits(b.postscale) &&
         a.codec == b.codec;
}

std::uint16_t lane_of(std::uint64_t bytes, const NegotiationOptions& options) {
  return bytes <= options.small_bytes ? kSmallLane : kBulkLane;
}

FusionPlanner::FusionPlanner(const NegotiationOptions& options)
    : limit_(options.fusion_bytes), full_(std::min(options.target_bytes, options.fusion_bytes)) {}

FusedBuffer& FusionPlanner::start_buffer(std::uint32_t item) {
  if (used_ == buffers_.size()) buffers_.emplace_back();
  FusedBuffer& buffer = buffers_[used_++];
  buffer.bytes = 0;
  buffer.full = false;
  buffer.items.assign(1, item);
  return buffer;
}

std::span<const FusedBuffer> FusionPlanner::plan(std::span<const FusionItem> items) {
  used_ = 0;
  open_.clear();
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    const FusionItem& item = items[i];
    const auto matching = std::find_if(open_.begin(), open_.end(), [&](std::size_t index) {
      return fuses(*items[buffers_[index].items.front()].request, *item.request);
    });
    const bool found = matching != open_.end();
    const bool fits = found && buffers_[*matching].bytes + item.bytes <= limit_;
    if (found && !fits) {
      buffers_[*matching].full = true;
      open_.erase(matching);
    }
    FusedBuffer& buffer = fits ? buffers_[*matching] : start_buffer(i);
    if (fits) buffer.items.push_back(i);
    buffer.bytes += item.bytes;
    buffer.full = !fuses(*item.request, *item.request) || buffer.bytes >= full_ ||
                  buffer.items.size() == kMaxFusedTensors;
    if (fits && buffer.full) open_.erase(matching);
    if (!fits && !buffer.full) open_.push_back(used_ - 1);
  }
  return {buffers_.data(), used_};
}

}  // namespace hora
