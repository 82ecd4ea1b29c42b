// The k largest of a run, exactly.
//
// Selected by magnitude; of equal ones the lower index wins, so that all processors select the
// same. Zeros are never selected. NaN is larger than infinity, infinity larger than numbers.
//
// Threads: pure functions. Never allocate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compress/codec.h"

namespace hora {

/// Writes the ascending indices, uint32 each, of the `k` largest of `count` numbers that are not
/// zero; returns how many they are. `k` is at least 1 and at most `count`.
std::uint32_t select_largest(const float* in, std::size_t count, std::size_t k, std::byte* indices);

/// The same of `sum`, which becomes in + kept, in one pass over memory if the guess in `notes` is
/// good. Makes the guess for a next run that is like this one. No overlap but sum == in or kept.
std::uint32_t add_and_select(const float* in, const float* kept, std::size_t count, std::size_t k,
                             float* sum, EncodeNotes& notes, std::byte* indices);

}  // namespace hora
