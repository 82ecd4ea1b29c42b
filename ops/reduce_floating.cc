// The kernels of float16, bfloat16, float32 and float64, for every target.
//
// foreach_target.h compiles this file once per target, then once more as usual; what follows
// HWY_ONCE exists once and chooses among them at run time.
#include "ops/reduce_kernels.h"
#include "runtime/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/reduce_floating.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come before highway.h.
#include <hwy/highway.h>

#include "ops/reduce_lanes-inl.h"
#include "ops/reduce_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void floating(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
              std::size_t count, const Finish& finish) {
  reduce_scalar(dtype, op, inputs, out, count, finish);
}

#else

namespace {

template <class Lanes>
void choose_op(ReduceOp op, Inputs inputs, std::byte* out, std::size_t count,
               const Finish& finish) {
  switch (op) {
    case ReduceOp::average:
    case ReduceOp::sum:
      return run_sized<Lanes, Sum>(inputs, out, {0, count}, finish);
    case ReduceOp::min:
      return run_any<Lanes, FloatMin>(inputs, out, {0, count}, finish);
    case ReduceOp::max:
      return run_any<Lanes, FloatMax>(inputs, out, {0, count}, finish);
    case ReduceOp::product:
      return run_any<Lanes, FloatProduct>(inputs, out, {0, count}, finish);
    case ReduceOp::adasum:
      break;
  }
  HORA_CHECK(false, "adasum is not an element-wise reduction");
}

}  // namespace

void floating(DType dtype, ReduceOp op, Inputs inputs, std::byte* out, std::size_t count,
              const Finish& finish) {
  switch (dtype) {
    case DType::float16:
      return choose_op<Halves>(op, inputs, out, count, finish);
    case DType::bfloat16:
      return choose_op<Brains>(op, inputs, out, count, finish);
    case DType::float32:
      return choose_op<Floats<float>>(op, inputs, out, count, finish);
    case DType::float64:
      return choose_op<Floats<double>>(op, inputs, out, count, finish);
    default:
      HORA_CHECK(false, "not a floating-point type");
  }
}

#endif

}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hora {

HWY_EXPORT(floating);

void reduce_floating(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                     std::byte* out, std::size_t count, const Finish& finish) {
  HWY_DYNAMIC_DISPATCH(floating)(dtype, op, inputs, out, count, finish);
}

}  // namespace hora
#endif
