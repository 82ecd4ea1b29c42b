// The kernels of the integers and bool, for every target.
//
// An operation on integers wraps in the element type: signed and unsigned add and multiply alike,
// so these two exist per width. Finishing is a second pass over a block that is still in the
// first-level cache, in float64 where that is exact, by the oracle for int64. An average of the
// narrow types sums in float64 at once, which is exact too: no sum of fewer than 2^21 values of 32
// bits has more than 53 bits.
#include <algorithm>
#include <array>

#include "ops/reduce_kernels.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/reduce_integer.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come before highway.h.
#include <hwy/highway.h>

#include "ops/reduce_lanes-inl.h"
#include "ops/reduce_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void integer(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
             std::size_t count, const Finish& finish) {
  reduce_scalar(dtype, op, inputs, out, count, finish);
}

#else

namespace {

/// `Unsigned` is the unsigned type of the width of T.
template <class T, class Unsigned>
void run_wrapping(ReduceOp op, Inputs inputs, std::byte* out, Range range) {
  constexpr Finish kNone;
  switch (op) {
    case ReduceOp::average:
    case ReduceOp::sum:
      return run_sized<Integers<Unsigned>, Sum>(inputs, out, range, kNone);
    case ReduceOp::min:
      return run_any<Integers<T>, IntegerMin>(inputs, out, range, kNone);
    case ReduceOp::max:
      return run_any<Integers<T>, IntegerMax>(inputs, out, range, kNone);
    case ReduceOp::product:
      return run_any<Integers<Unsigned>, IntegerProduct>(inputs, out, range, kNone);
    case ReduceOp::adasum:
      break;
  }
  HORA_CHECK(false, "adasum is not an element-wise reduction");
}

/// Divides and scales data[range] in place.
template <class T>
void finish_in_place(DType dtype, std::byte* data, Range range, const Finish& finish) {
  if constexpr (sizeof(T) == 8) {
    std::byte* at = data + range.begin * sizeof(T);
    const std::array<const std::byte*, 1> in{at};
    reduce_scalar(dtype, ReduceOp::sum, in, at, range.end - range.begin, finish);
  } else {
    const std::array<const std::byte*, 1> in{data};
    run_any<Quotients<T>, Sum>(in, data, range, finish);
  }
}

template <class T, class Unsigned>
void choose_op(DType dtype, ReduceOp op, Inputs inputs, std::byte* out, std::size_t count,
               const Finish& finish) {
  if (finish.is_identity()) return run_wrapping<T, Unsigned>(op, inputs, out, {0, count});
  if constexpr (sizeof(T) < 8) {
    if (op == ReduceOp::average) {
      return run_any<Quotients<T>, Sum>(inputs, out, {0, count}, finish);
    }
  }
  constexpr std::size_t kBlock = 4096 / sizeof(T);
  for (std::size_t at = 0; at < count; at += kBlock) {
    const Range range{at, std::min(at + kBlock, count)};
    run_wrapping<T, Unsigned>(op, inputs, out, range);
    finish_in_place<T>(dtype, out, range, finish);
  }
}

void choose_bool_op(ReduceOp op, Inputs inputs, std::byte* out, std::size_t count) {
  const bool all = op == ReduceOp::min || op == ReduceOp::product;
  const auto run =
      all ? run_any<Integers<std::uint8_t>, All> : run_any<Integers<std::uint8_t>, Any>;
  run(inputs, out, {0, count}, Finish{});
}

}  // namespace

void integer(DType dtype, ReduceOp op, Inputs inputs, std::byte* out, std::size_t count,
             const Finish& finish) {
  using std::int16_t, std::int32_t, std::int64_t, std::int8_t;
  using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t;
  switch (dtype) {
    case DType::uint8:
      return choose_op<uint8_t, uint8_t>(dtype, op, inputs, out, count, finish);
    case DType::int8:
      return choose_op<int8_t, uint8_t>(dtype, op, inputs, out, count, finish);
    case DType::uint16:
      return choose_op<uint16_t, uint16_t>(dtype, op, inputs, out, count, finish);
    case DType::int16:
      return choose_op<int16_t, uint16_t>(dtype, op, inputs, out, count, finish);
    case DType::int32:
      return choose_op<int32_t, uint32_t>(dtype, op, inputs, out, count, finish);
    case DType::int64:
      return choose_op<int64_t, uint64_t>(dtype, op, inputs, out, count, finish);
    case DType::boolean:
      return choose_bool_op(op, inputs, out, count);
    default:
      HORA_CHECK(false, "not an integer type");
  }
}

#endif

}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hora {

HWY_EXPORT(integer);

void reduce_integer(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::byte* out, std::size_t count, const Finish& finish) {
  HWY_DYNAMIC_DISPATCH(integer)(dtype, op, inputs, out, count, finish);
}

}  // namespace hora
#endif
