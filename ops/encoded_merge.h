// The merge of operands that are encoded, or a caller's tensor: decode, add, feed the error back,
// finish, encode.
//
//   payload of rank 0 --decode----.
//   payload of rank 1 --decode----+--> sum --+ residual --finish--> encode --> payload
//   caller's tensor --prescale----'              ^                    |
//                                                '--- shadow <-- what was lost
//
// One run of elements (of one tensor) at a time, and within it one stretch: 2,048 elements for
// codecs of kind hop, so that everything between reading the operands and writing the payload stays
// in the first cache, and memory is touched once, as if it were one kernel; 32,768 for those of
// kind gather, which go over them several times, in the second cache.
//
// Arithmetic is float32, in the order of the operands; the residual is added last, then the result
// is divided and postscaled, then encoded. What was lost by a finished result is multiplied back,
// so that residuals are in units of the sum. The result does not depend on processors, nor, for
// kind hop, on stretches.
//
// Threads: belongs to one executor. Allocates when it meets a longer run than ever before.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "ops/reduce.h"
#include "runtime/base/dtype.h"

namespace hora {

/// One operand. `payload` is what is left of it: a merge of a run takes the run's from the front.
struct EncodedOperand {
  bool encoded = false;  ///< Otherwise the caller's tensor.
  std::span<const std::byte> payload;
};

/// What is the same for all runs of a collective.
struct EncodedRecipe {
  const Codec* codec = nullptr;
  DType dtype = DType::float32;  ///< Of the caller's tensor.
  double prescale = 1.0;
  Finish finish;  ///< Of this merge; the identity unless it finishes.
};

/// A run of elements: what the caller has, and its error feedback.
struct EncodedRun {
  std::size_t count = 0;
  const std::byte* source = nullptr;  ///< `count` elements of the recipe's dtype; null: zeros.
  const float* residual = nullptr;    ///< Null: no error feedback.
  float* shadow = nullptr;            ///< The next residual.
};

class EncodedMerge {
 public:
  /// Merges a run and encodes it to `payload`. Returns the bytes written; nothing if an operand is
  /// no payload of such a run: then `malformed` is its index.
  std::optional<std::size_t> encode(const EncodedRecipe& recipe, std::span<EncodedOperand> operands,
                                    const EncodedRun& run, std::byte* payload,
                                    std::size_t& malformed);
  /// Merges a run of payloads into floats. False: malformed.
  bool decode(const EncodedRecipe& recipe, std::span<EncodedOperand> operands, std::size_t count,
              float* out, std::size_t& malformed);

  /// Some shadow became infinite or NaN since the last call.
  bool take_overflow() {
    const bool overflow = overflow_;
    overflow_ = false;
    return overflow;
  }

 private:
  bool add(const EncodedRecipe& recipe, std::span<EncodedOperand> operands, const EncodedRun& run,
           std::size_t first, std::size_t count, float* sum, std::size_t& malformed);
  const float* source_floats(const EncodedRecipe& recipe, const EncodedRun& run, std::size_t first,
                             std::size_t count);

  std::vector<float> sum_, source_;
  bool overflow_ = false;
};

}  // namespace hora
