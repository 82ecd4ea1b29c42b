// none: numbers as they are.
//
// The way to say "no codec" in the language of codecs. It is of kind summed with the numbers
// themselves as payload, so that what runs is the plain schedule; encode and decode copy.
#include <cstring>

#include "compress/codecs.h"

namespace hora {
namespace {

class NoneCodec final : public Codec {
 public:
  NoneCodec() : Codec({CodecKind::summed, 1, false}, "none", false) {}

  [[nodiscard]] std::size_t bound(std::size_t count) const override {
    return count * sizeof(float);
  }

  [[nodiscard]] std::optional<std::size_t> exact(std::size_t count) const override {
    return bound(count);
  }

  std::size_t encode(const float* in, std::size_t count, std::byte* payload,
                     float* error) const override {
    if (count > 0) std::memcpy(payload, in, bound(count));
    if (error != nullptr && count > 0) std::memset(error, 0, bound(count));
    return bound(count);
  }

  [[nodiscard]] std::optional<std::size_t> decode(std::span<const std::byte> payload,
                                                  std::size_t count, float* out) const override {
    if (payload.size() < bound(count)) return std::nullopt;
    if (count > 0) std::memcpy(out, payload.data(), bound(count));
    return bound(count);
  }

  [[nodiscard]] std::optional<std::size_t> decode_add(std::span<const std::byte> payload,
                                                      std::size_t count,
                                                      float* sum) const override {
    if (payload.size() < bound(count)) return std::nullopt;
    for (std::size_t i = 0; i < count; ++i) {
      float value = 0;
      std::memcpy(&value, payload.data() + i * sizeof value, sizeof value);
      sum[i] += value;
    }
    return bound(count);
  }
};

}  // namespace

CodecResult make_none_codec(const CodecWords& words) {
  HORA_TRY(only_keys(words, {}));
  if (words.error_feedback) return bad_codec(words, "it loses nothing that '+ef' could keep");
  return std::make_shared<const NoneCodec>();
}

}  // namespace hora
