#include "compress/scalar.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/float16.h"

namespace hora {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr float kMostCode = 127;

template <class T>
T load(const std::byte* from, std::size_t index = 0) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void store(std::byte* to, T value, std::size_t index = 0) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

/// Byte of element `i` among the codes of a block of `count`: columns of four (int8.cc).
std::size_t place_of(std::size_t i, std::size_t count) {
  const std::size_t words = (count + 3) / 4;
  return i % words * 4 + i / words;
}

void encode_block(const float* in, std::size_t count, std::byte* payload, float* error) {
  std::uint32_t most = 0;  // As integers magnitudes are ordered, and nothing is lost to a NaN.
  for (std::size_t i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<std::uint32_t>(in[i]) & 0x7fffffff);
  const auto largest = std::bit_cast<float>(most);
  float scale = 0;
  float inverse = 0;
  if (most >= kInfinity) {
    scale = std::bit_cast<float>(kFloat32Nan);
  } else if (largest >= std::numeric_limits<float>::min() * kMostCode) {
    scale = std::min(largest / kMostCode, kInt8MostScale);
    inverse = kMostCode / largest;
  }
  store(payload, scale);
  std::byte* const codes = payload + sizeof scale;
  std::fill_n(codes, (count + 3) / 4 * 4, std::byte{0});
  for (std::size_t i = 0; i < count; ++i) {
    const float code = most >= kInfinity ? 0 : std::nearbyint(in[i] * inverse);
    codes[place_of(i, count)] = static_cast<std::byte>(static_cast<std::int8_t>(code));
    if (error != nullptr) error[i] = most >= kInfinity ? scale : in[i] - code * scale;
  }
}

float decoded(const std::byte* block, std::size_t i, std::size_t count) {
  const auto code = static_cast<std::int8_t>(block[sizeof(float) + place_of(i, count)]);
  return static_cast<float>(code) * load<float>(block);
}

/// visit(first element, its block, elements of the block) for each block of a run.
template <class Visit>
void for_blocks(std::size_t count, const Visit& visit) {
  for (std::size_t first = 0; first < count; first += kInt8Block) {
    visit(first, int8_bytes(first), std::min(kInt8Block, count - first));
  }
}

template <std::uint16_t (*narrow)(float), float (*widen)(std::uint16_t)>
void encode_halves(const float* in, std::size_t count, std::byte* payload, float* error) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = in[i];
    const std::uint16_t half = narrow(value);
    store(payload, half, i);
    if (error != nullptr) error[i] = value - widen(half);
  }
}

template <float (*widen)(std::uint16_t)>
void decode_add_halves(const std::byte* payload, std::size_t count, float* sum) {
  for (std::size_t i = 0; i < count; ++i)
    sum[i] += widen(load<std::uint16_t>(payload, i));
}

}  // namespace

void encode_int8_scalar(const float* in, std::size_t count, std::byte* payload, float* error) {
  for_blocks(count, [&](std::size_t first, std::size_t at, std::size_t n) {
    encode_block(in + first, n, payload + at, error == nullptr ? nullptr : error + first);
  });
}

void decode_int8_scalar(const std::byte* payload, std::size_t count, float* out) {
  for_blocks(count, [&](std::size_t first, std::size_t at, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      out[first + i] = decoded(payload + at, i, n);
  });
}

void decode_add_int8_scalar(const std::byte* payload, std::size_t count, float* sum) {
  for_blocks(count, [&](std::size_t first, std::size_t at, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      sum[first + i] += decoded(payload + at, i, n);
  });
}

void encode_fp16_scalar(const float* in, std::size_t count, std::byte* payload, float* error) {
  encode_halves<float16_from_float, float_from_float16>(in, count, payload, error);
}
void encode_bf16_scalar(const float* in, std::size_t count, std::byte* payload, float* error) {
  encode_halves<bfloat16_from_float, float_from_bfloat16>(in, count, payload, error);
}
void decode_add_fp16_scalar(const std::byte* payload, std::size_t count, float* sum) {
  decode_add_halves<float_from_float16>(payload, count, sum);
}
void decode_add_bf16_scalar(const std::byte* payload, std::size_t count, float* sum) {
  decode_add_halves<float_from_bfloat16>(payload, count, sum);
}

}  // namespace hora
