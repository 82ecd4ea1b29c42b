// int8: blocks of 256 elements, each with its largest magnitude as scale.
//
//   scale = largest / 127      code = nearest even(x * (127 / largest))      decoded = code * scale
//
//   payload of a block:  scale, float32 | codes, one byte each
//   codes lie in columns, so that four vectors become one by shifts and ors, on any processor and
//   for any length of vector; nothing crosses a lane:
//
//        word 0          word 1          ...      word 63
//        x0 x64 x128 x192  x1 x65 x129 x193       x63 x127 x191 x255
//
//   A last block of n < 256 elements has ceil(n/4) words, and columns of that length.
//
// The scale is in the block, so nothing waits for a statistic of the whole tensor. The code 127 is
// the largest magnitude itself, -127 its negative: symmetric, and 0 is exact (-0 becomes 0). An
// error is at most half a scale. Special blocks:
//
//   NaN or infinity in it   scale is NaN, codes are 0: all of it decodes to NaN
//   largest < 127 * 2^-126  scale and codes are 0, because 127 / largest would be infinite; what is
//                           lost is left to the residual
//   scale > kInt8MostScale  127 * scale would round to infinity; the scale is kInt8MostScale then
//
// Not unbiased, but a contraction; re-encoding a partial sum at every hop of a ring multiplies the
// error by about size/3, encoding once per rank and once at the owner does not.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "compress/codecs.h"
#include "compress/scalar.h"
#include "runtime/base/float16.h"
#include "runtime/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/int8.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come before highway.h.
#include <hwy/highway.h>

#include "runtime/base/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void encode_int8(const float* in, std::size_t count, std::byte* payload, float* error) {
  encode_int8_scalar(in, count, payload, error);
}
void decode_int8(const std::byte* payload, std::size_t count, float* out) {
  decode_int8_scalar(payload, count, out);
}
void decode_add_int8(const std::byte* payload, std::size_t count, float* sum) {
  decode_add_int8_scalar(payload, count, sum);
}

#else

namespace {

constexpr std::size_t kColumn = kInt8Block / 4;
constexpr std::size_t kLanes = hn::MaxLanes(DFloat{});
static_assert(kColumn % kLanes == 0);

/// Scale and inverse from the largest magnitude of a block; see the top.
struct Scale {
  float scale = 0, inverse = 0;

  explicit Scale(std::uint32_t largest_bits) {
    constexpr float kMost = 127;
    const auto largest = std::bit_cast<float>(largest_bits);
    if (largest_bits >= 0x7f800000) {
      scale = std::bit_cast<float>(kFloat32Nan);
    } else if (largest >= std::numeric_limits<float>::min() * kMost) {
      scale = std::min(largest / kMost, kInt8MostScale);
      inverse = kMost / largest;
    }
  }
};

HWY_INLINE std::uint32_t largest_magnitude(const float* in) {
  const DInt d;
  const VInt mask = hn::Set(d, 0x7fffffff);
  VInt most[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (std::size_t i = 0; i < kColumn; i += kLanes) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      const VInt bits = hn::BitCast(d, hn::LoadU(DFloat{}, in + j * kColumn + i));
      most[j] = hn::Max(most[j], hn::And(bits, mask));
    }
  }
  const VInt all = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(d, all)));
}

/// A whole block: 256 floats become a scale and 64 words. kError: also the errors.
template <bool kError>
HWY_INLINE void encode_block(const float* in, std::byte* payload, float* error) {
  const DInt d;
  const DFloat df;
  const std::uint32_t largest = largest_magnitude(in);
  const Scale scales(largest);
  std::memcpy(payload, &scales.scale, sizeof(float));
  auto* words = payload + sizeof(float);
  if (largest >= 0x7f800000) {
    std::memset(words, 0, kInt8Block);
    if (kError) std::fill_n(error, kInt8Block, scales.scale);
    return;
  }
  const VFloat scale = hn::Set(df, scales.scale);
  const VFloat inverse = hn::Set(df, scales.inverse);
  const VInt low = hn::Set(d, 0xff);
  for (std::size_t i = 0; i < kColumn; i += kLanes) {
    VInt codes[4];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) {
      const VFloat value = hn::LoadU(df, in + j * kColumn + i);
      codes[j] = hn::NearestInt(hn::Mul(value, inverse));
      if (kError) {
        const VFloat decoded = hn::Mul(hn::ConvertTo(df, codes[j]), scale);
        hn::StoreU(hn::Sub(value, decoded), df, error + j * kColumn + i);
      }
    }
    const VInt even = hn::Or(hn::And(codes[0], low), hn::ShiftLeft<8>(hn::And(codes[1], low)));
    const VInt odd = hn::Or(hn::ShiftLeft<16>(hn::And(codes[2], low)), hn::ShiftLeft<24>(codes[3]));
    hn::StoreU(hn::BitCast(hn::Repartition<std::uint8_t, DInt>{}, hn::Or(even, odd)),
               hn::Repartition<std::uint8_t, DInt>{},
               reinterpret_cast<std::uint8_t*>(words + 4 * i));
  }
}

/// A whole block back to floats; kAdd: on top of what is there.
template <bool kAdd>
HWY_INLINE void decode_block(const std::byte* payload, float* out) {
  const DInt d;
  const DFloat df;
  const hn::Repartition<std::uint8_t, DInt> d8;
  float scale_value = 0;
  std::memcpy(&scale_value, payload, sizeof scale_value);
  const VFloat scale = hn::Set(df, scale_value);
  const auto* words = reinterpret_cast<const std::uint8_t*>(payload + sizeof(float));
  const auto put = [&](VInt code, float* to) HWY_ATTR {
    VFloat value = hn::Mul(hn::ConvertTo(df, code), scale);
    if (kAdd) value = hn::Add(hn::LoadU(df, to), value);
    hn::StoreU(value, df, to);
  };
  for (std::size_t i = 0; i < kColumn; i += kLanes) {
    const VInt codes = hn::BitCast(d, hn::LoadU(d8, words + 4 * i));
    put(hn::ShiftRight<24>(hn::ShiftLeft<24>(codes)), out + i);
    put(hn::ShiftRight<24>(hn::ShiftLeft<16>(codes)), out + kColumn + i);
    put(hn::ShiftRight<24>(hn::ShiftLeft<8>(codes)), out + 2 * kColumn + i);
    put(hn::ShiftRight<24>(codes), out + 3 * kColumn + i);
  }
}

/// The last, short block: its columns are spread to whole ones in a buffer, and back.
class ShortBlock {
 public:
  explicit ShortBlock(std::size_t count) : count_(count), words_((count + 3) / 4) {}

  HWY_INLINE void encode(const float* in, std::byte* payload, float* error) {
    spread(in);
    std::byte whole[sizeof(float) + kInt8Block];
    encode_block<true>(floats_, whole, errors_);
    std::memcpy(payload, whole, sizeof(float) + 4 * words_);
    if (error == nullptr) return;
    for_columns([&](std::size_t column, std::size_t first, std::size_t n) {
      std::memcpy(error + first, errors_ + column * kColumn, n * sizeof(float));
    });
  }

  template <bool kAdd>
  HWY_INLINE void decode(const std::byte* payload, float* out) {
    std::byte whole[sizeof(float) + kInt8Block] = {};
    std::memcpy(whole, payload, sizeof(float) + 4 * words_);
    if (kAdd) spread(out);
    decode_block<kAdd>(whole, floats_);
    for_columns([&](std::size_t column, std::size_t first, std::size_t n) {
      std::memcpy(out + first, floats_ + column * kColumn, n * sizeof(float));
    });
  }

 private:
  /// visit(column, its first element, its elements)
  template <class Visit>
  HWY_INLINE void for_columns(const Visit& visit) const {
    for (std::size_t column = 0; column * words_ < count_; ++column) {
      visit(column, column * words_, std::min(words_, count_ - column * words_));
    }
  }
  HWY_INLINE void spread(const float* in) {
    std::memset(floats_, 0, sizeof floats_);
    for_columns([&](std::size_t column, std::size_t first, std::size_t n) {
      std::memcpy(floats_ + column * kColumn, in + first, n * sizeof(float));
    });
  }

  std::size_t count_, words_;
  alignas(64) float floats_[kInt8Block];
  alignas(64) float errors_[kInt8Block];
};

template <bool kError>
HWY_INLINE void encode_run(const float* in, std::size_t count, std::byte* payload, float* error) {
  std::size_t i = 0;
  for (; count - i >= kInt8Block; i += kInt8Block) {
    encode_block<kError>(in + i, payload + int8_bytes(i), kError ? error + i : nullptr);
  }
  if (i < count) {
    ShortBlock(count - i).encode(in + i, payload + int8_bytes(i), kError ? error + i : nullptr);
  }
}

template <bool kAdd>
HWY_INLINE void decode_run(const std::byte* payload, std::size_t count, float* out) {
  std::size_t i = 0;
  for (; count - i >= kInt8Block; i += kInt8Block)
    decode_block<kAdd>(payload + int8_bytes(i), out + i);
  if (i < count) ShortBlock(count - i).decode<kAdd>(payload + int8_bytes(i), out + i);
}

}  // namespace

void encode_int8(const float* in, std::size_t count, std::byte* payload, float* error) {
  if (error != nullptr)
    encode_run<true>(in, count, payload, error);
  else
    encode_run<false>(in, count, payload, nullptr);
}
void decode_int8(const std::byte* payload, std::size_t count, float* out) {
  decode_run<false>(payload, count, out);
}
void decode_add_int8(const std::byte* payload, std::size_t count, float* sum) {
  decode_run<true>(payload, count, sum);
}

#endif

}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hora {
namespace {

HWY_EXPORT(encode_int8);
HWY_EXPORT(decode_int8);
HWY_EXPORT(decode_add_int8);

class Int8Codec final : public Codec {
 public:
  explicit Int8Codec(bool error_feedback)
      : Codec({CodecKind::hop, kInt8Block, false}, error_feedback ? "int8+ef" : "int8",
              error_feedback) {}

  [[nodiscard]] std::size_t bound(std::size_t count) const override {
    return (count + kInt8Block - 1) / kInt8Block * int8_bytes(kInt8Block);
  }

  [[nodiscard]] std::optional<std::size_t> exact(std::size_t count) const override {
    return int8_bytes(count);
  }

  std::size_t encode(const float* in, std::size_t count, std::byte* payload,
                     float* error) const override {
    HWY_DYNAMIC_DISPATCH(encode_int8)(in, count, payload, error);
    return int8_bytes(count);
  }

  [[nodiscard]] std::optional<std::size_t> decode(std::span<const std::byte> payload,
                                                  std::size_t count, float* out) const override {
    if (payload.size() < int8_bytes(count)) return std::nullopt;
    HWY_DYNAMIC_DISPATCH(decode_int8)(payload.data(), count, out);
    return int8_bytes(count);
  }

  [[nodiscard]] std::optional<std::size_t> decode_add(std::span<const std::byte> payload,
                                                      std::size_t count,
                                                      float* sum) const override {
    if (payload.size() < int8_bytes(count)) return std::nullopt;
    HWY_DYNAMIC_DISPATCH(decode_add_int8)(payload.data(), count, sum);
    return int8_bytes(count);
  }
};

}  // namespace

CodecResult make_int8_codec(const CodecWords& words) {
  HORA_TRY(only_keys(words, {}));
  return std::make_shared<const Int8Codec>(words.error_feedback);
}

}  // namespace hora
#endif
