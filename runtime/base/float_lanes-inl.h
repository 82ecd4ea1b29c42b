// Vectors of float32 and the two 16-bit formats that widen to it, per instruction set.
//
// What ops/reduce and the codecs share, and what must equal runtime/base/float16.h bit for bit: one
// NaN, rounding to nearest even. AVX2 and AVX3 convert float16 in hardware (they imply F16C);
// elsewhere Highway's emulation truncates, so it is done here in integers.
//
// Compiled once per target by foreach_target.h; hence the unusual include guard. Not for targets
// without vectors: there the scalar functions of float16.h run instead.
#if defined(HORA_BASE_FLOAT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HORA_BASE_FLOAT_LANES_INL_H_
#undef HORA_BASE_FLOAT_LANES_INL_H_
#else
#define HORA_BASE_FLOAT_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DFloat = hn::ScalableTag<float>;
using VFloat = hn::Vec<DFloat>;
using DBits = hn::ScalableTag<std::uint32_t>;
using VBits = hn::Vec<DBits>;
using DInt = hn::ScalableTag<std::int32_t>;
using VInt = hn::Vec<DInt>;
/// As many 16-bit elements as a VFloat has lanes.
using DHalf = hn::Rebind<std::uint16_t, DFloat>;

/// `v`, or the one NaN.
template <class V>
HWY_INLINE V with_one_nan(V v) {
  using D = hn::DFromV<V>;
  const V nan = hn::Set(D{}, std::numeric_limits<hn::TFromD<D>>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(v), nan, v);
}

#if HWY_TARGET == HWY_SSE4
inline constexpr bool kConvertsFloat16 = false;
#else
inline constexpr bool kConvertsFloat16 = true;
#endif

/// float16 bits in 32-bit lanes -> float32.
HWY_INLINE VFloat widen_float16(VBits half) {
  const DBits d;
  const DFloat df;
  const VBits sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000)));
  const VBits shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7fff)));
  const VBits rebias = hn::Set(d, (127 - 15) << 23);
  const VBits exponent = hn::And(shifted, hn::Set(d, 0x1f << 23));
  const VBits normal = hn::Add(shifted, rebias);
  // Infinity and NaN: the exponent goes all the way up.
  const VBits special = hn::Add(normal, rebias);
  // Denormal: give it the implicit one of 2^-14 that it lacks, then subtract 2^-14 again.
  const VFloat least_normal = hn::Set(df, 0x1p-14F);
  const VFloat with_one = hn::BitCast(df, hn::Add(normal, hn::Set(d, 1 << 23)));
  const VBits denormal = hn::BitCast(d, hn::Sub(with_one, least_normal));
  VBits bits = hn::IfThenElse(hn::Eq(exponent, hn::Set(d, 0x1f << 23)), special, normal);
  bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d)), denormal, bits);
  return hn::BitCast(df, hn::Or(bits, sign));
}

/// float32, its NaN already the one NaN -> float16 bits in 32-bit lanes, rounded to nearest even.
HWY_INLINE VBits narrow_float16(VFloat value) {
  const DBits d;
  const DFloat df;
  const DInt di;
  const VBits bits = hn::BitCast(d, value);
  const VBits magnitude = hn::And(bits, hn::Set(d, 0x7fffffff));
  const VBits sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  // Normal: rebias, then add just less than half of the last kept place, a full half if
  // that place is odd.
  const VBits odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const VBits rebias = hn::Set(d, ((127U - 15) << 23) - 0xfff);
  const VBits normal = hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, rebias), odd));
  // Denormal: adding 0.5 makes the processor round at 2^-24, and leaves the result in the low bits.
  const VFloat half = hn::Set(df, 0.5F);
  const VFloat rounded = hn::Add(hn::BitCast(df, magnitude), half);
  const VBits denormal = hn::Sub(hn::BitCast(d, rounded), hn::BitCast(d, half));
  // 2^16 and above is infinity; the rounding of `normal` carries into infinity from 65520 on.
  const auto is_above = [&](std::uint32_t limit) HWY_ATTR {
    const auto signed_limit = hn::Set(di, static_cast<std::int32_t>(limit));
    return hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), signed_limit));
  };
  VBits half_bits = hn::IfThenElse(is_above(0x387fffff), normal, denormal);
  half_bits = hn::IfThenElse(is_above(0x477fffff), hn::Set(d, 0x7c00), half_bits);
  half_bits = hn::IfThenElse(is_above(0x7f800000), hn::Set(d, 0x7e00), half_bits);
  return hn::Or(half_bits, sign);
}

HWY_INLINE VFloat load_float16(const std::uint16_t* from) {
  const auto bits = hn::LoadU(DHalf{}, from);
  if constexpr (kConvertsFloat16) {
    return hn::PromoteTo(DFloat{}, hn::BitCast(hn::Rebind<hwy::float16_t, DFloat>{}, bits));
  } else {
    return widen_float16(hn::PromoteTo(DBits{}, bits));
  }
}

/// The one NaN for any NaN.
HWY_INLINE void store_float16(VFloat v, std::uint16_t* to) {
  const VFloat value = with_one_nan(v);
  if constexpr (kConvertsFloat16) {
    const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, DFloat>{}, value);
    hn::StoreU(hn::BitCast(DHalf{}, half), DHalf{}, to);
  } else {
    const VInt bits = hn::BitCast(DInt{}, narrow_float16(value));
    hn::StoreU(hn::DemoteTo(DHalf{}, bits), DHalf{}, to);
  }
}

/// The upper halves are the bfloat16 nearest to `value`. The one NaN survives: its
/// payload is empty.
HWY_INLINE VBits rounded_bfloat16(VFloat value) {
  const DBits d;
  const VBits bits = hn::BitCast(d, value);
  const VBits odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fff)));
}

HWY_INLINE VFloat load_bfloat16(const std::uint16_t* from) {
  const VBits bits = hn::PromoteTo(DBits{}, hn::LoadU(DHalf{}, from));
  return hn::BitCast(DFloat{}, hn::ShiftLeft<16>(bits));
}

/// The one NaN for any NaN.
HWY_INLINE void store_bfloat16(VFloat v, std::uint16_t* to) {
  const VBits upper = hn::ShiftRight<16>(rounded_bfloat16(with_one_nan(v)));
  hn::StoreU(hn::DemoteTo(DHalf{}, hn::BitCast(DInt{}, upper)), DHalf{}, to);
}

}  // namespace
}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // HORA_BASE_FLOAT_LANES_INL_H_
