#include "runtime/carried.h"

#include <algorithm>

#include "ops/reduce.h"
#include "runtime/base/check.h"

namespace hora {
namespace {

constexpr std::size_t kAlign = 16;  // As operator new aligns.

}  // namespace

std::size_t carriable_bytes(const Request& canonical) {
  const bool plain = canonical.kind == Kind::allreduce && canonical.op != ReduceOp::adasum &&
                     canonical.codec.empty() && canonical.refusal.empty();
  if (!plain) return 0;
  const std::uint64_t bytes = byte_count(canonical);
  return bytes <= kMaxCarriedBytes ? static_cast<std::size_t>(bytes) : 0;
}

void CarriedInputs::put(int place, int size, std::span<const std::byte> input) {
  HORA_CHECK(place >= 0 && place < size && !input.empty(), "ranks of the set carry their inputs");
  if (count_ == 0) {
    bytes_ = input.size();
    stride_ = (bytes_ + kAlign - 1) / kAlign * kAlign;
    inputs_.resize(static_cast<std::size_t>(size) * stride_);
  }
  HORA_CHECK(input.size() == bytes_ && count_ < size, "who agrees on a tensor sends as many bytes");
  ++count_;
  std::copy(
      input.begin(), input.end(),
      inputs_.begin() + static_cast<std::ptrdiff_t>(place) * static_cast<std::ptrdiff_t>(stride_));
}

void CarriedInputs::clear() {
  count_ = 0;
  inputs_ = {};
}

std::vector<std::byte> CarriedInputs::reduce(const Request& request) {
  const std::size_t count = bytes_ / size_of(request.dtype);
  std::vector<const std::byte*> operands;
  for (std::size_t place = 0; place < static_cast<std::size_t>(count_); ++place) {
    std::byte* const input = inputs_.data() + place * stride_;
    scale(request.dtype, input, input, count, request.prescale);
    operands.push_back(input);
  }
  Finish finish;
  finish.postscale = request.postscale;
  if (request.op == ReduceOp::average) finish.divisor = count_;
  std::vector<std::byte> result(bytes_);
  hora::reduce(request.dtype, request.op, operands, result.data(), count, finish);
  return result;
}

}  // namespace hora
