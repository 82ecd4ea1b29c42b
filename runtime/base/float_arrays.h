// Arrays of floating-point numbers that become float32, and come back.
//
// Codecs compute in float32 whatever a tensor is made of. Widening is exact (float64 excepted,
// which is rounded to nearest even); narrowing to 16 bits rounds to nearest even, what is too large
// becomes infinity, denormals are kept, and every NaN becomes the one NaN. The same bits on every
// processor, and the same as runtime/base/float16.h says one element at a time.
//
// Threads: pure functions. Never allocate.
#pragma once

#include <cstddef>

#include "runtime/base/dtype.h"

namespace hora {

/// out[i] = in[i]. `from` is one of the four floating-point types; `in` is aligned to its size.
/// The arrays must not overlap.
void widen(DType from, const std::byte* in, float* out, std::size_t count);

/// out[i] = in[i], rounded once to `to`, one of the four floating-point types. No overlap.
void narrow(const float* in, DType to, std::byte* out, std::size_t count);

/// out[i] = in[i]; whether all are finite. Large arrays are written past the caches, so that memory
/// which nobody reads soon is not read in order to be overwritten. No overlap.
bool copy_floats(const float* in, float* out, std::size_t count);

/// No infinity and no NaN among them.
[[nodiscard]] bool all_finite(const float* values, std::size_t count);

}  // namespace hora
