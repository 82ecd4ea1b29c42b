// fp16 and bf16: numbers of 16 bits instead of 32.
//
// No scale and no block, one rounding to nearest even per element. bf16 has the range of float32
// and 8 bits of precision; fp16 has 11 bits and ends at 65504, beyond which lies infinity (visible,
// not clamped), so it never carries partial sums. NaN stays NaN, denormals are kept.
//
// Merges add in float32: a sum is rounded once at its owner, not once per addition.
#include <cstring>

#include "compress/codecs.h"
#include "compress/scalar.h"
#include "runtime/base/float_arrays.h"
#include "runtime/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/half.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come before highway.h.
#include <hwy/highway.h>

#include "runtime/base/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void encode_fp16(const float* in, std::size_t count, std::byte* payload, float* error) {
  encode_fp16_scalar(in, count, payload, error);
}
void encode_bf16(const float* in, std::size_t count, std::byte* payload, float* error) {
  encode_bf16_scalar(in, count, payload, error);
}
void decode_add_fp16(const std::byte* payload, std::size_t count, float* sum) {
  decode_add_fp16_scalar(payload, count, sum);
}
void decode_add_bf16(const std::byte* payload, std::size_t count, float* sum) {
  decode_add_bf16_scalar(payload, count, sum);
}

#else

namespace {

constexpr std::size_t kLanes = hn::MaxLanes(DFloat{});

struct Fp16 {
  static HWY_INLINE VFloat load(const std::uint16_t* from) { return load_float16(from); }
  static HWY_INLINE void store(VFloat v, std::uint16_t* to) { store_float16(v, to); }
};
struct Bf16 {
  static HWY_INLINE VFloat load(const std::uint16_t* from) { return load_bfloat16(from); }
  static HWY_INLINE void store(VFloat v, std::uint16_t* to) { store_bfloat16(v, to); }
};

/// With errors; without, `narrow` does it.
template <class Half>
HWY_INLINE void encode_with_error(const float* in, std::size_t count, std::uint16_t* out,
                                  float* error) {
  const auto step = [](const float* from, std::uint16_t* to, float* lost) HWY_ATTR {
    const VFloat value = hn::LoadU(DFloat{}, from);
    Half::store(value, to);
    hn::StoreU(hn::Sub(value, Half::load(to)), DFloat{}, lost);
  };
  std::size_t i = 0;
  for (; count - i >= kLanes; i += kLanes)
    step(in + i, out + i, error + i);
  if (i == count) return;
  alignas(64) float from[kLanes] = {}, lost[kLanes];
  alignas(64) std::uint16_t to[kLanes];
  std::memcpy(from, in + i, (count - i) * sizeof(float));
  step(from, to, lost);
  std::memcpy(out + i, to, (count - i) * sizeof(std::uint16_t));
  std::memcpy(error + i, lost, (count - i) * sizeof(float));
}

template <class Half>
HWY_INLINE void decode_add_halves(const std::uint16_t* in, std::size_t count, float* sum) {
  const auto step = [](const std::uint16_t* from, float* to) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(DFloat{}, to), Half::load(from)), DFloat{}, to);
  };
  std::size_t i = 0;
  for (; count - i >= kLanes; i += kLanes)
    step(in + i, sum + i);
  if (i == count) return;
  alignas(64) std::uint16_t from[kLanes] = {};
  alignas(64) float to[kLanes] = {};
  std::memcpy(from, in + i, (count - i) * sizeof(std::uint16_t));
  std::memcpy(to, sum + i, (count - i) * sizeof(float));
  step(from, to);
  std::memcpy(sum + i, to, (count - i) * sizeof(float));
}

std::uint16_t* halves(std::byte* payload) {
  return reinterpret_cast<std::uint16_t*>(payload);
}
const std::uint16_t* halves(const std::byte* payload) {
  return reinterpret_cast<const std::uint16_t*>(payload);
}

}  // namespace

void encode_fp16(const float* in, std::size_t count, std::byte* payload, float* error) {
  encode_with_error<Fp16>(in, count, halves(payload), error);
}
void encode_bf16(const float* in, std::size_t count, std::byte* payload, float* error) {
  encode_with_error<Bf16>(in, count, halves(payload), error);
}
void decode_add_fp16(const std::byte* payload, std::size_t count, float* sum) {
  decode_add_halves<Fp16>(halves(payload), count, sum);
}
void decode_add_bf16(const std::byte* payload, std::size_t count, float* sum) {
  decode_add_halves<Bf16>(halves(payload), count, sum);
}

#endif

}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hora {
namespace {

HWY_EXPORT(encode_fp16);
HWY_EXPORT(encode_bf16);
HWY_EXPORT(decode_add_fp16);
HWY_EXPORT(decode_add_bf16);

class HalfCodec final : public Codec {
 public:
  HalfCodec(DType dtype, const std::string& name, bool error_feedback)
      : Codec({CodecKind::hop, 1, dtype == DType::float16}, name + (error_feedback ? "+ef" : ""),
              error_feedback),
        dtype_(dtype) {}

  [[nodiscard]] std::size_t bound(std::size_t count) const override { return 2 * count; }

  [[nodiscard]] std::optional<std::size_t> exact(std::size_t count) const override {
    return 2 * count;
  }

  std::size_t encode(const float* in, std::size_t count, std::byte* payload,
                     float* error) const override {
    if (error == nullptr) {
      narrow(in, dtype_, payload, count);
    } else if (dtype_ == DType::float16) {
      HWY_DYNAMIC_DISPATCH(encode_fp16)(in, count, payload, error);
    } else {
      HWY_DYNAMIC_DISPATCH(encode_bf16)(in, count, payload, error);
    }
    return 2 * count;
  }

  [[nodiscard]] std::optional<std::size_t> decode(std::span<const std::byte> payload,
                                                  std::size_t count, float* out) const override {
    if (payload.size() < 2 * count) return std::nullopt;
    widen(dtype_, payload.data(), out, count);
    return 2 * count;
  }

  [[nodiscard]] std::optional<std::size_t> decode_add(std::span<const std::byte> payload,
                                                      std::size_t count,
                                                      float* sum) const override {
    if (payload.size() < 2 * count) return std::nullopt;
    if (dtype_ == DType::float16) {
      HWY_DYNAMIC_DISPATCH(decode_add_fp16)(payload.data(), count, sum);
    } else {
      HWY_DYNAMIC_DISPATCH(decode_add_bf16)(payload.data(), count, sum);
    }
    return 2 * count;
  }

 private:
  DType dtype_;
};

}  // namespace

CodecResult make_fp16_codec(const CodecWords& words) {
  HORA_TRY(only_keys(words, {}));
  return std::make_shared<const HalfCodec>(DType::float16, "fp16", words.error_feedback);
}

CodecResult make_bf16_codec(const CodecWords& words) {
  HORA_TRY(only_keys(words, {}));
  return std::make_shared<const HalfCodec>(DType::bfloat16, "bf16", words.error_feedback);
}

}  // namespace hora
#endif
