// Reduction kernels: the arithmetic of Hora.
//
// `reduce` merges any number of operands at once, because merging two by two reads and writes the
// partial sum again each time (1.1-1.8x slower when measured), and because one rounding beats many.
// Operands are applied strictly in the order given, lower rank first, so the result is the same
// bytes on every rank and every processor: SIMD targets equal the scalar oracle bit for bit (no
// fused multiply-add, IEEE division, one NaN).
//
// Numerics, per element; a finish divides first, then postscales:
//   float32, float64   accumulate and finish in the same type, each step rounded to nearest even
//   float16, bfloat16  accumulate and finish in float32, then round once to nearest even; overflow
//                      is infinity, denormals are kept
//   NaN                any NaN result is the positive quiet NaN with an empty payload: which
//                      operand's payload survives an addition depends on processor and compiler
//   min, max           NaN if any operand is NaN; -0 < +0
//   integers           sum and product wrap in the element type, and that is finished; average
//                      sums in int64 and finishes that sum, so int8 to int32, uint8 and uint16
//                      cannot overflow on the way, and int64 wraps. A finish truncates twice,
//                      towards zero: the quotient (an exact integer division), then quotient *
//                      postscale in float64 unless postscale is 1. What the element type cannot
//                      hold saturates, NaN is 0. An average with the identity finish is a partial
//                      sum and wraps: no wider sum crosses from one merge to the next
//   bool               any byte but 0 is true, results are 0 or 1; sum, average, max are or;
//                      product, min are and; never divided or scaled
// The divisor and the scales are converted to the accumulation type first. Rounding follows the
// caller's floating-point environment, which is expected to be C's default.
//
// Threads: pure functions, no state but the dispatch table. Never allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.h"

namespace hora {

/// What the owner's last merge does before it rounds: divide by `divisor`, then
/// multiply by `postscale`.
struct Finish {
  std::int64_t divisor = 1;
  double postscale = 1.0;

  [[nodiscard]] bool is_identity() const { return divisor == 1 && postscale == 1.0; }
};

/// out[i] = finish(op(inputs[0][i], inputs[1][i], ...)). `inputs` has 1 to 2^20 pointers; each, and
/// `out`, points to `count` elements aligned to the element size. `out` may be equal to
/// inputs[k] for any k, but must not overlap otherwise. `op` average means sum (the divisor does
/// the rest); adasum is not accepted.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
            std::size_t count, const Finish& finish);

/// out[i] = in[i] * factor, element-wise rounding as Horovod's prescale: float16 and bfloat16
/// in float32, float32 in float32 (factor converted first), float64 in float64, integers in
/// float64, truncated and saturated. A factor of 1 copies, and bool is never scaled. `out`
/// may be equal to `in`.
void scale(DType dtype, const std::byte* in, std::byte* out, std::size_t count, double factor);

/// The scalar oracle of `reduce`: same contract, plain loops, for tests.
void reduce_scalar(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::byte* out, std::size_t count, const Finish& finish);

/// Names of the SIMD targets this machine can run, best first ("AVX3", "AVX2", ..., "SCALAR").
std::vector<std::string> reduce_targets();
/// Makes `reduce` use the named target from now on (tests only); "" returns to the
/// best. False if unknown.
bool force_reduce_target(const std::string& name);

}  // namespace hora
