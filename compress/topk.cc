// topk: the largest elements of a run, exactly k = ceil(ratio * count) of them.
//
//   payload of a run:  entries, uint32 | indices, uint32 each, ascending | values, float32 each
//
// Selected by magnitude; of equal ones the lower index wins, so that all processors select the
// same. Zeros are never sent: a run of zeros has no entries, and that is what makes the size of a
// payload vary. NaN is larger than infinity, infinity larger than numbers: they are always among
// the selected.
//
// Radix select: a magnitude is an integer of 31 bits. A histogram of the upper 11 bits says in
// which bin the k-th largest lies; two more, of 10 bits each and of that bin alone, give it
// exactly. What is certainly too small is never looked at one by one: the maxima of groups of 8
// elements are put into a histogram first, and where k maxima are at least L, the k-th largest
// element is, too. So vectors in which nothing reaches L are passed over with one comparison, and
// most are.
//
//   pass 1   maxima of groups -> L          pass 2, 3, 4   histograms of what is >= L
//   pass 5   indices of what is larger than the k-th largest, or equal while there is room
//
// Kind gather: payloads of all ranks are added everywhere, nothing is encoded twice. What is not
// selected is the error; without error feedback it is lost, and training with it does not converge.
//
// Source: radix select, as in Alabi et al., "Fast k-selection algorithms for graphics processing
// units", 2012.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "compress/codecs.h"
#include "runtime/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/topk.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come before highway.h.
#include <hwy/highway.h>

#include "runtime/base/float_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {
namespace {

using Histogram = std::array<std::uint32_t, 2048>;

/// A digit of a magnitude: `bits` of it, from `shift` up.
struct Digit {
  unsigned shift, bits;

  [[nodiscard]] std::uint32_t of(std::uint32_t magnitude) const {
    return magnitude >> shift & ((1u << bits) - 1);
  }
};
constexpr std::array<Digit, 3> kDigits = {Digit{20, 11}, Digit{10, 10}, Digit{0, 10}};

std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffff;
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

/// visit(index, magnitude) of all elements whose magnitude is at least `least`, in order.
template <class Visit>
void for_large(const float* in, std::size_t count, std::uint32_t least, const Visit& visit) {
  for (std::size_t i = 0; i < count; ++i) {
    if (magnitude(in[i]) >= least) visit(i, magnitude(in[i]));
  }
}

/// A magnitude that at least k elements reach, perhaps 0.
std::uint32_t lower_bound(const float*, std::size_t, std::size_t) {
  return 0;
}

#else

constexpr std::size_t kLanes = hn::MaxLanes(DFloat{});
/// Vectors that are looked at together: a lane of them is a group.
constexpr std::size_t kGroup = 8;

HWY_INLINE VInt magnitudes(const float* in) {
  return hn::And(hn::BitCast(DInt{}, hn::LoadU(DFloat{}, in)), hn::Set(DInt{}, 0x7fffffff));
}

template <class Visit>
HWY_INLINE void for_large(const float* in, std::size_t count, std::uint32_t least,
                          const Visit& visit) {
  const DInt d;
  // Magnitudes are positive as signed numbers too.
  const VInt below = hn::Set(d, static_cast<std::int32_t>(least) - 1);
  std::size_t i = 0;
  for (; count - i >= kGroup * kLanes; i += kGroup * kLanes) {
    VInt most = magnitudes(in + i);
#pragma GCC unroll 8
    for (std::size_t g = 1; g < kGroup; ++g)
      most = hn::Max(most, magnitudes(in + i + g * kLanes));
    if (hn::AllFalse(d, hn::Gt(most, below))) continue;
    for (std::size_t g = 0; g < kGroup; ++g) {
      const std::size_t first = i + g * kLanes;
      alignas(8) std::uint8_t mask_bytes[8] = {};
      hn::StoreMaskBits(d, hn::Gt(magnitudes(in + first), below), mask_bytes);
      std::uint64_t mask = 0;
      std::memcpy(&mask, mask_bytes, sizeof mask);
      for (; mask != 0; mask &= mask - 1) {
        const std::size_t at = first + static_cast<std::size_t>(std::countr_zero(mask));
        visit(at, magnitude(in[at]));
      }
    }
  }
  for (; i < count; ++i) {
    if (magnitude(in[i]) >= least) visit(i, magnitude(in[i]));
  }
}

HWY_INLINE std::uint32_t lower_bound(const float* in, std::size_t count, std::size_t k) {
  Histogram histogram{};
  for (std::size_t i = 0; count - i >= kGroup * kLanes; i += kGroup * kLanes) {
    VInt most = magnitudes(in + i);
#pragma GCC unroll 8
    for (std::size_t g = 1; g < kGroup; ++g)
      most = hn::Max(most, magnitudes(in + i + g * kLanes));
    alignas(64) std::int32_t maxima[kLanes];
    hn::Store(most, DInt{}, maxima);
    for (const std::int32_t maximum : maxima)
      ++histogram[kDigits[0].of(static_cast<std::uint32_t>(maximum))];
  }
  std::size_t reached = 0;
  for (std::uint32_t bin = histogram.size() - 1; bin > 0; --bin) {
    reached += histogram[bin];
    if (reached >= k) return bin << kDigits[0].shift;
  }
  return 0;
}

#endif

}  // namespace

/// Writes the ascending indices of the k largest that are not zero; returns how many they are.
std::uint32_t select_largest(const float* in, std::size_t count, std::size_t k,
                             std::byte* indices) {
  std::uint32_t threshold = 0;  // The k-th largest magnitude, digit by digit ...
  std::size_t larger = 0;       // ... and how many are larger.
  const std::uint32_t bound = lower_bound(in, count, k);
  for (const Digit digit : kDigits) {
    Histogram histogram{};
    const unsigned above = digit.shift + digit.bits;
    for_large(in, count, std::max(bound, threshold), [&](std::size_t, std::uint32_t bits) {
      if (bits >> above == threshold >> above) ++histogram[digit.of(bits)];
    });
    // From the top: the bin in which the k-th lies.
    std::uint32_t bin = (1u << digit.bits) - 1;
    while (larger + histogram[bin] < k)
      larger += histogram[bin--];
    threshold |= bin << digit.shift;
  }
  std::uint32_t entries = 0;
  std::size_t ties_left = k - larger;
  for_large(in, count, std::max(threshold, 1u), [&](std::size_t i, std::uint32_t bits) {
    if (bits == threshold && ties_left == 0) return;
    if (bits == threshold) --ties_left;
    const auto index = static_cast<std::uint32_t>(i);
    std::memcpy(indices + sizeof index * entries++, &index, sizeof index);
  });
  return entries;
}

}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hora {
namespace {

HWY_EXPORT(select_largest);

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
    const std::uint32_t entries =
        HWY_DYNAMIC_DISPATCH(select_largest)(in, count, kept(count), payload + kHeadBytes);
    std::memcpy(payload, &entries, sizeof entries);
    put_values(in, entries, payload);
    if (error != nullptr) {
      if (error != in) std::memcpy(error, in, count * sizeof(float));
      // A number sent leaves nothing, NaN and infinity leave NaN.
      for (std::uint32_t e = 0; e < entries; ++e)
        error[index_at(payload, e)] -= value_at(payload, entries, e);
    }
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
    std::byte* const values = payload + kHeadBytes + kIndexBytes * entries;
    for (std::uint32_t e = 0; e < entries; ++e) {
      std::memcpy(values + sizeof(float) * e, in + index_at(payload, e), sizeof(float));
    }
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
#endif
