// The scalar oracles of the codecs' kernels: what a payload is, one element at a time.
//
// Plain loops that use nothing of what the SIMD kernels use, so that the agreement of the two is
// evidence. They also run where there is no SIMD target. Same contracts as Codec's functions, with
// payloads of the right size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hora {

/// Elements that share one scale.
inline constexpr std::size_t kInt8Block = 256;
/// The largest scale whose 127-fold is finite.
inline constexpr float kInt8MostScale = 0x1.020406p+121F;
/// Bytes of a run: for each block its scale, then its codes, padded to words.
constexpr std::size_t int8_bytes(std::size_t count) {
  const std::size_t tail = count % kInt8Block;
  return count / kInt8Block * (4 + kInt8Block) + (tail == 0 ? 0 : 4 + (tail + 3) / 4 * 4);
}

void encode_int8_scalar(const float* in, std::size_t count, std::byte* payload, float* error);
void decode_int8_scalar(const std::byte* payload, std::size_t count, float* out);
void decode_add_int8_scalar(const std::byte* payload, std::size_t count, float* sum);

void encode_fp16_scalar(const float* in, std::size_t count, std::byte* payload, float* error);
void encode_bf16_scalar(const float* in, std::size_t count, std::byte* payload, float* error);
void decode_add_fp16_scalar(const std::byte* payload, std::size_t count, float* sum);
void decode_add_bf16_scalar(const std::byte* payload, std::size_t count, float* sum);

}  // namespace hora
