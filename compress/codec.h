// Codec: a smaller form of a run of numbers.
//
//   floats ... encode ...> payload ... decode ...> nearly the same floats
//             \..> error = what was lost, for error feedback
//
// A codec computes in float32 whatever a tensor is made of, and has no state: what error feedback
// keeps lies in the ResidualStore (residual.h). It works on *runs*, consecutive elements of one
// tensor; the payload of several runs is their payloads one behind the other, so decoding says how
// much it has read. Decoding is arithmetic that gives the same bits on every processor: all ranks
// that decode the same bytes get the same floats.
//
// Kinds, which decide what a schedule may do with a payload:
//   hop      decoded, added to and encoded again on its way, by blocks: a run may be encoded in
//            parts that begin on a block (int8)
//   gather   every rank's payload goes to every rank as it is, and is added there (topk)
//   summed   payloads are themselves numbers that a plain schedule reduces (none)
//
// Numbers that are not finite come out as NaN or infinity on every rank, perhaps with neighbours in
// their block; they are never hidden, so that a loss scaler sees them.
//
// A codec is made from words: `name(key=value,...)[+ef]`, "ef" for error feedback. One file and one
// row of the registry (registry.cc) each; the tests of tests/compress iterate over the rows.
//
// Threads: immutable, anybody may use it. Encoding and decoding never allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.h"

namespace hora {

enum class CodecKind : std::uint8_t { hop, gather, summed };

struct CodecTraits {
  CodecKind kind = CodecKind::hop;
  /// Elements that depend on each other. Tensors and chunks start on it, so that what a block
  /// becomes does not depend on what else was fused.
  std::size_t block = 1;
  /// Cannot hold the sums of many ranks: never encodes partial sums.
  bool narrow = false;
};

/// What whoever encodes run after run keeps from one to the next.
struct EncodeNotes {
  /// The codec's, about numbers that are like those before. They decide how long it takes and never
  /// what is encoded.
  std::uint32_t guess = 0, margin = 0;
  /// Some error was infinite or NaN.
  bool overflow = false;
};

class Codec {
 public:
  Codec(const CodecTraits& traits, std::string text, bool error_feedback)
      : traits_(traits), text_(std::move(text)), error_feedback_(error_feedback) {}
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  [[nodiscard]] const CodecTraits& traits() const { return traits_; }
  /// In canonical words: two codecs are the same iff their texts are.
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool error_feedback() const { return error_feedback_; }

  /// The most bytes that runs of `count` elements in all can take, if they start on blocks.
  [[nodiscard]] virtual std::size_t bound(std::size_t count) const = 0;
  /// The bytes of one run of `count` elements, if they do not depend on the elements. A codec of
  /// kind hop has this; bytes of that length always decode.
  [[nodiscard]] virtual std::optional<std::size_t> exact(std::size_t count) const = 0;

  /// Encodes a run and returns the bytes written, at most bound(count). `error`: null, or `count`
  /// floats that become in - decoded; it may be `in`, but must not overlap it otherwise.
  virtual std::size_t encode(const float* in, std::size_t count, std::byte* payload,
                             float* error) const = 0;

  /// Encodes the sum of two runs; `error` is not null and may be one of them. The same payload and
  /// errors as of adding first, which is what happens unless a codec knows a shorter way.
  virtual std::size_t encode_sum(const float* in, const float* added, std::size_t count,
                                 std::byte* payload, float* error, EncodeNotes& notes) const;

  /// Decodes a run of `count` elements from the front of `payload`. Returns the bytes read, or
  /// nothing if they are no payload of such a run; `out` is undefined then.
  [[nodiscard]] virtual std::optional<std::size_t> decode(std::span<const std::byte> payload,
                                                          std::size_t count, float* out) const = 0;
  /// The same, added to `sum`.
  [[nodiscard]] virtual std::optional<std::size_t> decode_add(std::span<const std::byte> payload,
                                                              std::size_t count,
                                                              float* sum) const = 0;

 private:
  CodecTraits traits_;
  std::string text_;
  bool error_feedback_;
};

/// `topk(ratio=0.01)+ef`, taken apart.
struct CodecWords {
  std::string name;
  std::map<std::string, std::string> values;  ///< By key.
  bool error_feedback = false;
};
/// Error invalid_argument with the place where the words stop making sense.
Result<CodecWords> parse_codec(std::string_view text);

/// Longest text of a codec.
inline constexpr std::size_t kMaxCodecText = 256;

/// Elements that a hop codec is given at once; every block divides it.
inline constexpr std::size_t kCodecStretch = 2048;
/// And one of kind gather: so many that a part of them is a fair choice, so few that all that it
/// reads and writes stays in the second cache.
inline constexpr std::size_t kGatherStretch = 32768;

/// One row per codec.
struct CodecRow {
  std::string_view name;
  std::string_view description;
  /// For tests: the values of every key, or "" if there is none: "ratio=0.01".
  std::string_view example;
  Result<std::shared_ptr<const Codec>> (*make)(const CodecWords& words);
};
const std::vector<CodecRow>& codecs();

/// The codec of these words. Error invalid_argument: malformed, unknown name or key, value out of
/// range; the message names the text, and what there is instead.
Result<std::shared_ptr<const Codec>> make_codec(std::string_view text);

}  // namespace hora
