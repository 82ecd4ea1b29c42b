// The instruction sets that kernels are compiled for. Include before anything of Highway.
//
// Each target costs seconds of compile time and a copy of every loop. Left out: SSSE3, because
// x86_64 processors with it but without SSE4.2 and AES are fifteen years old; AVX3_DL, which
// Highway leaves out itself; SVE, whose vectors have no size at compile time and so fit into no
// struct. That leaves AVX3 (AVX-512), AVX2 and SSE4; NEON on aarch64; and elsewhere the scalar
// oracles.
#pragma once

#ifdef HORA_SANITIZED
// Instrumented, every loop takes ten times as long to compile: one target must do.
#define HORA_UNSANITIZED_TARGETS (HWY_SSE4 | HWY_AVX3)
#else
#define HORA_UNSANITIZED_TARGETS 0
#endif
#define HWY_DISABLED_TARGETS \
  (HORA_UNSANITIZED_TARGETS | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
