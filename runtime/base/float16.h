// The two 16-bit floating-point formats, in portable integer arithmetic.
//
//   float16   1 sign, 5 exponent, 10 fraction bits: IEEE 754 binary16
//   bfloat16  1 sign, 8 exponent,  7 fraction bits: the upper half of a float32
//
// Neither is computed with: values widen to float32 (exact), are worked on, and come back with one
// rounding to nearest, ties to even. What is too large becomes infinity, what is too small
// denormal, then zero. Every NaN becomes *the* quiet NaN, positive with an empty payload, so that
// the bytes of a result depend on no processor. These functions define what the SIMD kernels must
// produce; they do not use what a processor offers for it, and they are not meant for loops that
// must be fast.
#pragma once

#include <bit>
#include <cstdint>

namespace hora {

inline constexpr std::uint32_t kFloat32Nan = 0x7fc00000;
inline constexpr std::uint16_t kFloat16Nan = 0x7e00;
inline constexpr std::uint16_t kBfloat16Nan = 0x7fc0;

constexpr float float_from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t bfloat16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return kBfloat16Nan;
  // Half of the last kept place, less one if the kept part is even: a tie then
  // carries only into odd.
  const std::uint32_t half = 0x7fff + (bits >> 16 & 1);
  return static_cast<std::uint16_t>((bits + half) >> 16);
}

constexpr float float_from_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1f;
  const std::uint32_t fraction = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(fraction ? kFloat32Nan : sign | 0x7f800000);
  if (exponent == 0) {  // Zero or denormal: fraction * 2^-24, exact in float32.
    const auto magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
    return std::bit_cast<float>(sign | magnitude);
  }
  return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

constexpr std::uint16_t float16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return kFloat16Nan;
  // 65520 is half way from 65504, the largest float16, to the 65536 that would come next.
  if (magnitude >= 0x477ff000) return static_cast<std::uint16_t>(sign | 0x7c00);
  // 2^-25 is half of the smallest denormal, and a tie: the even neighbour is zero.
  if (magnitude <= 0x33000000) return static_cast<std::uint16_t>(sign);

  const std::uint32_t exponent = magnitude >> 23;
  const bool normal = exponent > 127 - 15;
  // Below 2^-14 the leading one becomes explicit and each missing power of two drops one more bit.
  const std::uint32_t dropped = normal ? 13 : 13 + (127 - 14) - exponent;
  const std::uint32_t significand =
      normal ? magnitude - ((127 - 15) << 23) : (magnitude & 0x7fffff) | 0x800000;
  const std::uint32_t kept = significand >> dropped;
  const std::uint32_t rest = significand & ((1U << dropped) - 1);
  const std::uint32_t half = 1U << (dropped - 1);
  const bool up = rest > half || (rest == half && (kept & 1) != 0);
  // A carry out of the fraction lands in the exponent, where it belongs.
  return static_cast<std::uint16_t>(sign | (kept + (up ? 1 : 0)));
}

}  // namespace hora
