// Radix select: a magnitude is an integer of 31 bits. A histogram of the upper 11 bits says in
// which bin the k-th largest lies; two more, of 10 bits each and of that bin alone, give it
// exactly. Nothing that is certainly too small is looked at one by one, and there are two ways to
// know what that is.
//
// Without a guess: the maxima of groups of 8 elements are put into a histogram. Where k maxima are
// at least L, the k-th largest element is, too, so vectors in which nothing reaches L are passed
// over with one comparison, and most are.
//
//   pass 1   maxima of groups -> L          pass 2, 3, 4   histograms of what is >= L
//   pass 5   indices of what is larger than the k-th largest, or equal while there is room
//
// With a guess: what reaches the guess is put into a list of candidates while the numbers are added
// up, and if there are k of them, all that follows goes over the list. The guess is the threshold
// of the run before less a margin; the margin is halved when it lets through half more than are
// wanted, and doubled when it lets through too few. Then, or if there are too many for the list,
// the five passes select: a bad guess costs time and nothing else.
//
//   pass 1   sum = in + kept; candidates: indices of what is >= guess
//
// Source: radix select, as in Alabi et al., "Fast k-selection algorithms for graphics processing
// units", 2012; thresholds from the step before, as in Strom, "Scalable distributed DNN training
// using commodity GPU cloud computing", 2015, but not in place of exactness.
#include "compress/topk_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "runtime/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/topk_select.cc"
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

/// Indices of what may be among the largest, ascending.
struct Candidates {
  static constexpr std::size_t kMost = 8192;
  std::size_t count = 0;
  bool complete = true;  ///< Otherwise the list was too short.
  std::array<std::uint32_t, kMost> indices;
};

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

/// sum = in + kept, and what of it reaches `least`.
void add_and_collect(const float* in, const float* kept, std::size_t count, std::uint32_t least,
                     float* sum, Candidates& candidates) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = in[i] + kept[i];
    sum[i] = value == value ? value : std::numeric_limits<float>::quiet_NaN();
    if (magnitude(sum[i]) < least) continue;
    candidates.complete = candidates.complete && candidates.count < Candidates::kMost;
    if (candidates.complete) candidates.indices[candidates.count++] = static_cast<std::uint32_t>(i);
  }
}

#else

constexpr std::size_t kLanes = hn::MaxLanes(DFloat{});
/// Vectors that are looked at together: a lane of them is a group.
constexpr std::size_t kGroup = 8;
/// The same while adding: fewer, because more of them have something.
constexpr std::size_t kAddGroup = 4;

HWY_INLINE VInt magnitudes(const float* in) {
  return hn::And(hn::BitCast(DInt{}, hn::LoadU(DFloat{}, in)), hn::Set(DInt{}, 0x7fffffff));
}

/// visit(lane) of the lanes at `in` whose magnitude is above `below`.
template <class Visit>
HWY_INLINE void for_lanes_above(const float* in, VInt below, const Visit& visit) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(DInt{}, hn::Gt(magnitudes(in), below), bytes);
  std::uint32_t mask = bytes[0];
  if constexpr (kLanes > 8) mask |= static_cast<std::uint32_t>(bytes[1]) << 8;
  for (; mask != 0; mask &= mask - 1)
    visit(static_cast<std::size_t>(std::countr_zero(mask)));
}

/// Magnitudes are positive as signed numbers too.
HWY_INLINE VInt just_below(std::uint32_t least) {
  return hn::Set(DInt{}, static_cast<std::int32_t>(least) - 1);
}

template <class Visit>
HWY_INLINE void for_large(const float* in, std::size_t count, std::uint32_t least,
                          const Visit& visit) {
  const DInt d;
  const VInt below = just_below(least);
  std::size_t i = 0;
  for (; count - i >= kGroup * kLanes; i += kGroup * kLanes) {
    VInt most = magnitudes(in + i);
#pragma GCC unroll 8
    for (std::size_t g = 1; g < kGroup; ++g)
      most = hn::Max(most, magnitudes(in + i + g * kLanes));
    if (hn::AllFalse(d, hn::Gt(most, below))) continue;
    for (std::size_t first = i; first < i + kGroup * kLanes; first += kLanes) {
      for_lanes_above(in + first, below,
                      [&](std::size_t lane) { visit(first + lane, magnitude(in[first + lane])); });
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

HWY_INLINE void add_and_collect(const float* in, const float* kept, std::size_t count,
                                std::uint32_t least, float* sum, Candidates& candidates) {
  const DFloat df;
  const DInt d;
  VInt below = just_below(least);
  std::size_t used = 0;
  std::size_t i = 0;
  for (; count - i >= kAddGroup * kLanes; i += kAddGroup * kLanes) {
    VInt most = hn::Zero(d);
#pragma GCC unroll 4
    for (std::size_t first = i; first < i + kAddGroup * kLanes; first += kLanes) {
      const VFloat v =
          with_one_nan(hn::Add(hn::LoadU(df, in + first), hn::LoadU(df, kept + first)));
      hn::StoreU(v, df, sum + first);
      most = hn::Max(most, hn::And(hn::BitCast(d, v), hn::Set(d, 0x7fffffff)));
    }
    if (HWY_LIKELY(hn::AllFalse(d, hn::Gt(most, below)))) continue;
    if (used + kAddGroup * kLanes > Candidates::kMost) {
      candidates.complete = false;
      below = hn::Set(d, 0x7fffffff);  // From here on only add.
      continue;
    }
    for (std::size_t first = i; first < i + kAddGroup * kLanes; first += kLanes) {
      for_lanes_above(sum + first, below, [&](std::size_t lane) {
        candidates.indices[used++] = static_cast<std::uint32_t>(first + lane);
      });
    }
  }
  for (; i < count; ++i) {
    const float value = in[i] + kept[i];
    sum[i] = value == value ? value : std::numeric_limits<float>::quiet_NaN();
    if (magnitude(sum[i]) < least) continue;
    candidates.complete = candidates.complete && used < Candidates::kMost;
    if (candidates.complete) candidates.indices[used++] = static_cast<std::uint32_t>(i);
  }
  candidates.count = used;
}

#endif

/// The k-th largest magnitude, and how many are larger.
struct Threshold {
  std::uint32_t magnitude = 0;
  std::size_t larger = 0;
};

/// Digit by digit. visit_large(least, visit(index, magnitude)) goes over what reaches `least`; k or
/// more reach `bound`.
template <class VisitLarge>
HWY_INLINE Threshold find_threshold(std::size_t k, std::uint32_t bound,
                                    const VisitLarge& visit_large) {
  Threshold found;
  for (const Digit digit : kDigits) {
    Histogram histogram;
    std::fill_n(histogram.begin(), std::size_t{1} << digit.bits, 0);
    const unsigned above = digit.shift + digit.bits;
    visit_large(std::max(bound, found.magnitude), [&](std::size_t, std::uint32_t bits) {
      if (bits >> above == found.magnitude >> above) ++histogram[digit.of(bits)];
    });
    // From the top: the bin in which the k-th lies.
    std::uint32_t bin = (1u << digit.bits) - 1;
    while (found.larger + histogram[bin] < k)
      found.larger += histogram[bin--];
    found.magnitude |= bin << digit.shift;
  }
  return found;
}

/// Writes the indices of what is larger, and of the first that are equal.
template <class VisitLarge>
HWY_INLINE std::uint32_t write_indices(std::size_t k, Threshold threshold, std::byte* indices,
                                       const VisitLarge& visit_large) {
  std::uint32_t entries = 0;
  std::size_t ties_left = k - threshold.larger;
  visit_large(std::max(threshold.magnitude, 1u), [&](std::size_t i, std::uint32_t bits) {
    if (bits == threshold.magnitude && ties_left == 0) return;
    if (bits == threshold.magnitude) --ties_left;
    const auto index = static_cast<std::uint32_t>(i);
    std::memcpy(indices + sizeof index * entries++, &index, sizeof index);
  });
  return entries;
}

/// The five passes.
std::uint32_t select(const float* in, std::size_t count, std::size_t k, std::byte* indices,
                     Threshold& threshold) {
  const auto visit_large = [&](std::uint32_t least, const auto& visit)
                               HWY_ATTR { for_large(in, count, least, visit); };
  threshold = find_threshold(k, lower_bound(in, count, k), visit_large);
  return write_indices(k, threshold, indices, visit_large);
}

/// Margins are differences of magnitudes: 2^23 is a factor of 2.
void guess_anew(EncodeNotes& notes, Threshold threshold, std::size_t k, std::size_t reached) {
  constexpr std::uint32_t kLeastMargin = 1u << 16, kMostMargin = 1u << 23, kFirstMargin = 1u << 19;
  if (notes.guess == 0) {
    notes.margin = kFirstMargin;
  } else if (reached < k) {
    notes.margin = std::min(2 * notes.margin, kMostMargin);
  } else if (reached > k + k / 2) {
    notes.margin = std::max(notes.margin / 2, kLeastMargin);
  }
  notes.guess = std::max(threshold.magnitude, notes.margin + 1) - notes.margin;
}

}  // namespace

std::uint32_t select_unguessed(const float* in, std::size_t count, std::size_t k,
                               std::byte* indices) {
  Threshold threshold;
  return select(in, count, k, indices, threshold);
}

std::uint32_t select_guessed(const float* in, const float* kept, std::size_t count, std::size_t k,
                             float* sum, EncodeNotes& notes, std::byte* indices) {
  constexpr std::uint32_t kUnreachable = 0x7fffffff;
  Candidates candidates;
  add_and_collect(in, kept, count, notes.guess == 0 ? kUnreachable : notes.guess, sum, candidates);
  Threshold threshold;
  std::uint32_t entries = 0;
  // A guess of 1 lets through all but zeros, and those are not wanted.
  const bool has_all = candidates.complete && (candidates.count >= k || notes.guess == 1);
  if (!has_all) {
    entries = select(sum, count, k, indices, threshold);
  } else {
    const auto visit_large = [&](std::uint32_t least, const auto& visit) HWY_ATTR {
      for (std::size_t c = 0; c < candidates.count; ++c) {
        const std::uint32_t i = candidates.indices[c];
        if (magnitude(sum[i]) >= least) visit(i, magnitude(sum[i]));
      }
    };
    if (candidates.count >= k) threshold = find_threshold(k, notes.guess, visit_large);
    entries = write_indices(k, threshold, indices, visit_large);
  }
  guess_anew(notes, threshold, k, candidates.complete ? candidates.count : count);
  return entries;
}

}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hora {

HWY_EXPORT(select_unguessed);
HWY_EXPORT(select_guessed);

std::uint32_t select_largest(const float* in, std::size_t count, std::size_t k,
                             std::byte* indices) {
  return HWY_DYNAMIC_DISPATCH(select_unguessed)(in, count, k, indices);
}

std::uint32_t add_and_select(const float* in, const float* kept, std::size_t count, std::size_t k,
                             float* sum, EncodeNotes& notes, std::byte* indices) {
  return HWY_DYNAMIC_DISPATCH(select_guessed)(in, kept, count, k, sum, notes, indices);
}

}  // namespace hora
#endif
