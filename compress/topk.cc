// topk: the largest elements of a run, exactly k = ceil(ratio * count) of them.
//
//   payload of a run:  entries, uint32 | indices, uint32 each, ascending | values, float32 each
//
// Selected by magnitude (topk_select.h); of equal ones the lower index wins. Zeros are never sent:
// a run of zeros has no entries, and that is what makes the size of a payload vary. NaN and
// infinity are always among the selected.
//
// Kind gather: payloads of all ranks are added everywhere, nothing is encoded twice. What is not
// selected is the error; without error feedback it is lost, and training with it does not converge.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "compress/codecs.h"
#include "compress/topk_select.h"

namespace hora {
namespace {

/// Runs start on multiples of this; it bounds how many headers a chunk can have.
constexpr std::size_t kBlock = 256;
constexpr double kDefaultRatio = 0.01;

class TopkCodec final : public Codec {
 public:
  TopkCodec(double ratio, std::string text, bool error_feedback)
      : Codec({CodecKind::gather, kBlock, false}, std::move(text), error_feedback), ratio_(ratio) {}

  [[nodiscard]] std::size_t bound(std::size_t count) const override {
    // Each run rounds its k up, by less than one.
    const std::size_t runs = (count + kBlock - 1) / kBlock;
    return runs * (kHeadBytes + kEntryBytes) + kEntryBytes * kept(count);
  }

  [[nodiscard]] std::optional<std::size_t> exact(std::size_t /*count*/) const override {
    return std::nullopt;
  }

  std::size_t encode(const float* in, std::size_t count, std::byte* payload,
                     float* error) const override {
    if (count == 0) return 0;
    const std::uint32_t entries = select_largest(in, count, kept(count), payload + kHeadBytes);
    put_values(in, entries, payload);
    if (error != nullptr) {
      if (error != in) std::memcpy(error, in, count * sizeof(float));
      take_sent(payload, entries, error);
    }
    return kHeadBytes + kEntryBytes * entries;
  }

  std::size_t encode_sum(const float* in, const float* added, std::size_t count, std::byte* payload,
                         float* error, EncodeNotes& notes) const override {
    if (count == 0) return 0;
    const std::uint32_t entries =
        add_and_select(in, added, count, kept(count), error, notes, payload + kHeadBytes);
    put_values(error, entries, payload);
    // What is not finite is sent before what is.
    const bool finite = take_sent(payload, entries, error);
    notes.overflow = notes.overflow || !finite;
    return kHeadBytes + kEntryBytes * entries;
  }

  [[nodiscard]] std::optional<std::size_t> decode(std::span<const std::byte> payload,
                                                  std::size_t count, float* out) const override {
    std::fill_n(out, count, 0.0F);
    return decode_add(payload, count, out);
  }

  [[nodiscard]] std::optional<std::size_t> decode_add(std::span<const std::byte> payload,
                                                      std::size_t count,
                                                      float* sum) const override {
    if (count == 0) return 0;
    if (payload.size() < kHeadBytes) return std::nullopt;
    std::uint32_t entries = 0;
    std::memcpy(&entries, payload.data(), sizeof entries);
    if (entries > count || payload.size() - kHeadBytes < kEntryBytes * entries) return std::nullopt;
    std::size_t next = 0;  // The lowest index that may come.
    for (std::uint32_t e = 0; e < entries; ++e) {
      const std::size_t index = index_at(payload.data(), e);
      if (index < next || index >= count) return std::nullopt;
      next = index + 1;
      sum[index] += value_at(payload.data(), entries, e);
    }
    return kHeadBytes + kEntryBytes * entries;
  }

 private:
  static constexpr std::size_t kHeadBytes = 4, kIndexBytes = 4, kEntryBytes = 8;

  [[nodiscard]] std::size_t kept(std::size_t count) const {
    const double k = std::ceil(ratio_ * static_cast<double>(count));
    return std::clamp<std::size_t>(static_cast<std::size_t>(k), 1, std::max<std::size_t>(1, count));
  }
  static std::uint32_t index_at(const std::byte* payload, std::size_t entry) {
    std::uint32_t index = 0;
    std::memcpy(&index, payload + kHeadBytes + kIndexBytes * entry, sizeof index);
    return index;
  }
  static float value_at(const std::byte* payload, std::uint32_t entries, std::size_t entry) {
    float value = 0;
    std::memcpy(&value, payload + kHeadBytes + kIndexBytes * entries + sizeof value * entry,
                sizeof value);
    return value;
  }
  static void put_values(const float* in, std::uint32_t entries, std::byte* payload) {
    std::memcpy(payload, &entries, sizeof entries);
    std::byte* const values = payload + kHeadBytes + kIndexBytes * entries;
    for (std::uint32_t e = 0; e < entries; ++e) {
      std::memcpy(values + sizeof(float) * e, in + index_at(payload, e), sizeof(float));
    }
  }
  /// A number sent leaves nothing, NaN and infinity leave NaN. False: there were such.
  static bool take_sent(const std::byte* payload, std::uint32_t entries, float* error) {
    bool finite = true;
    for (std::uint32_t e = 0; e < entries; ++e) {
      float& left = error[index_at(payload, e)];
      left -= value_at(payload, entries, e);
      finite = finite && left == 0;
    }
    return finite;
  }

  double ratio_;
};

}  // namespace

CodecResult make_topk_codec(const CodecWords& words) {
  HORA_TRY(only_keys(words, {"ratio"}));
  double ratio = kDefaultRatio;
  if (const auto given = words.values.find("ratio"); given != words.values.end()) {
    const std::string& text = given->second;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, ratio);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == end;
    if (!is_number || !(ratio > 0 && ratio <= 0.5)) {
      return bad_codec(words, "ratio must be a number above 0 and at most 0.5, not '" + text +
                                  "': an entry takes as many bytes as two float32");
    }
  }
  std::array<char, 32> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), ratio);
  std::string text = "topk(ratio=" + std::string(digits.data(), written.ptr) + ")";
  if (words.error_feedback) text += "+ef";
  return std::make_shared<const TopkCodec>(ratio, std::move(text), words.error_feedback);
}

}  // namespace hora
