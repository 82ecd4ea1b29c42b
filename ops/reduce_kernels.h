// What lies between reduce.cc and its kernels, and the instruction sets they are compiled for.
//
// Each target costs seconds of compile time and a copy of every loop. Left out: SSSE3, because
// x86_64 processors with it but without SSE4.2 and AES are fifteen years old; AVX3_DL, which
// Highway leaves out itself; SVE, whose vectors have no size at compile time and so fit into no
// struct. That leaves AVX3 (AVX-512), AVX2 and SSE4; NEON on aarch64; and elsewhere the scalar
// oracle. Include before anything of Highway.
#pragma once

#ifdef HORA_SANITIZED
// Instrumented, every loop takes ten times as long to compile: one target must do.
#define HORA_UNSANITIZED_TARGETS (HWY_SSE4 | HWY_AVX3)
#else
#define HORA_UNSANITIZED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS \
  (HORA_UNSANITIZED_TARGETS | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include "ops/reduce.h"

namespace hora {

/// `reduce` for float16, bfloat16, float32, float64 on the best target.
void reduce_floating(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                     std::byte* out, std::size_t count, const Finish& finish);
/// `reduce` for integers and bool on the best target.
void reduce_integer(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::byte* out, std::size_t count, const Finish& finish);

}  // namespace hora
