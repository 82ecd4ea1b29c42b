// The loops of float_arrays.h, once per target: whole vectors, then the rest through a zeroed
// buffer. float64 is a plain loop: gradients in it are rare.
#include "runtime/base/float_arrays.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/float16.h"
#include "runtime/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/base/float_arrays.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come before highway.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "runtime/base/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void widen_float16s(const std::uint16_t* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = float_from_float16(in[i]);
}
void widen_bfloat16s(const std::uint16_t* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = float_from_bfloat16(in[i]);
}
void narrow_float16s(const float* in, std::uint16_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = float16_from_float(in[i]);
}
void narrow_bfloat16s(const float* in, std::uint16_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = bfloat16_from_float(in[i]);
}
bool finite_floats(const float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if ((std::bit_cast<std::uint32_t>(values[i]) & 0x7f800000) == 0x7f800000) return false;
  }
  return true;
}
bool copy_finite_floats(const float* in, float* out, std::size_t count) {
  if (count > 0) std::memcpy(out, in, count * sizeof(float));
  return finite_floats(in, count);
}

#else

namespace {

constexpr std::size_t kLanes = hn::MaxLanes(DFloat{});

/// convert(in + i, out + i) for every vector; the rest by way of buffers.
template <class In, class Out, class Convert>
HWY_INLINE void for_vectors(const In* in, Out* out, std::size_t count, const Convert& convert) {
  std::size_t i = 0;
  for (; count - i >= kLanes; i += kLanes)
    convert(in + i, out + i);
  if (i == count) return;
  alignas(64) In from[kLanes] = {};
  alignas(64) Out to[kLanes];
  std::memcpy(from, in + i, (count - i) * sizeof(In));
  convert(from, to);
  std::memcpy(out + i, to, (count - i) * sizeof(Out));
}

}  // namespace

void widen_float16s(const std::uint16_t* in, float* out, std::size_t count) {
  for_vectors(in, out, count, [](const std::uint16_t* from, float* to) HWY_ATTR {
    hn::StoreU(with_one_nan(load_float16(from)), DFloat{}, to);
  });
}
void widen_bfloat16s(const std::uint16_t* in, float* out, std::size_t count) {
  for_vectors(in, out, count, [](const std::uint16_t* from, float* to) HWY_ATTR {
    hn::StoreU(load_bfloat16(from), DFloat{}, to);
  });
}
void narrow_float16s(const float* in, std::uint16_t* out, std::size_t count) {
  for_vectors(in, out, count, [](const float* from, std::uint16_t* to) HWY_ATTR {
    store_float16(hn::LoadU(DFloat{}, from), to);
  });
}
void narrow_bfloat16s(const float* in, std::uint16_t* out, std::size_t count) {
  for_vectors(in, out, count, [](const float* from, std::uint16_t* to) HWY_ATTR {
    store_bfloat16(hn::LoadU(DFloat{}, from), to);
  });
}
bool finite_floats(const float* values, std::size_t count) {
  // A number is not finite iff its magnitude, as an integer, is at least infinity's.
  const DInt d;
  const VInt magnitude = hn::Set(d, 0x7fffffff);
  VInt most = hn::Zero(d);
  std::size_t i = 0;
  for (; count - i >= kLanes; i += kLanes) {
    most = hn::Max(most, hn::And(hn::BitCast(d, hn::LoadU(DFloat{}, values + i)), magnitude));
  }
  if (i != count) {
    alignas(64) float rest[kLanes] = {};
    std::memcpy(rest, values + i, (count - i) * sizeof(float));
    most = hn::Max(most, hn::And(hn::BitCast(d, hn::Load(DFloat{}, rest)), magnitude));
  }
  return hn::AllTrue(d, hn::Gt(hn::Set(d, 0x7f800000), most));
}
bool copy_finite_floats(const float* in, float* out, std::size_t count) {
  constexpr std::size_t kLarge = 16384;  // A part of a first cache and more.
  const DFloat df;
  const DInt d;
  // Whole lines can be written past the caches: up to the first one, and behind the last, plainly.
  const std::size_t behind = reinterpret_cast<std::uintptr_t>(out) / sizeof(float) % 16;
  std::size_t i = count < kLarge ? count : (16 - behind) % 16;
  bool finite = finite_floats(in, i);
  if (i > 0) std::memcpy(out, in, i * sizeof(float));
  if (i == count) return finite;
  VInt most = hn::Zero(d);
  for (; count - i >= kLanes; i += kLanes) {
    const VFloat v = hn::LoadU(df, in + i);
    most = hn::Max(most, hn::And(hn::BitCast(d, v), hn::Set(d, 0x7fffffff)));
    hn::Stream(v, df, out + i);
  }
  hwy::FlushStream();
  std::memcpy(out + i, in + i, (count - i) * sizeof(float));
  finite = finite && finite_floats(in + i, count - i);
  return finite && hn::AllTrue(d, hn::Gt(hn::Set(d, 0x7f800000), most));
}

#endif

}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hora {

HWY_EXPORT(widen_float16s);
HWY_EXPORT(widen_bfloat16s);
HWY_EXPORT(narrow_float16s);
HWY_EXPORT(narrow_bfloat16s);
HWY_EXPORT(finite_floats);
HWY_EXPORT(copy_finite_floats);

void widen(DType from, const std::byte* in, float* out, std::size_t count) {
  switch (from) {
    case DType::float16:
      return HWY_DYNAMIC_DISPATCH(widen_float16s)(reinterpret_cast<const std::uint16_t*>(in), out,
                                                  count);
    case DType::bfloat16:
      return HWY_DYNAMIC_DISPATCH(widen_bfloat16s)(reinterpret_cast<const std::uint16_t*>(in), out,
                                                   count);
    case DType::float32:
      if (count > 0) std::memcpy(out, in, count * sizeof(float));
      return;
    case DType::float64:
      for (std::size_t i = 0; i < count; ++i)
        out[i] = static_cast<float>(reinterpret_cast<const double*>(in)[i]);
      return;
    default:
      HORA_CHECK(false, "only floating-point numbers widen to float32");
  }
}

void narrow(const float* in, DType to, std::byte* out, std::size_t count) {
  switch (to) {
    case DType::float16:
      return HWY_DYNAMIC_DISPATCH(narrow_float16s)(in, reinterpret_cast<std::uint16_t*>(out),
                                                   count);
    case DType::bfloat16:
      return HWY_DYNAMIC_DISPATCH(narrow_bfloat16s)(in, reinterpret_cast<std::uint16_t*>(out),
                                                    count);
    case DType::float32:
      if (count > 0) std::memcpy(out, in, count * sizeof(float));
      return;
    case DType::float64:
      for (std::size_t i = 0; i < count; ++i)
        reinterpret_cast<double*>(out)[i] = in[i];
      return;
    default:
      HORA_CHECK(false, "float32 narrows to floating-point numbers only");
  }
}

bool copy_floats(const float* in, float* out, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(copy_finite_floats)(in, out, count);
}

bool all_finite(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(finite_floats)(values, count);
}

}  // namespace hora
#endif
