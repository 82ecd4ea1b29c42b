// The reduction loop, once, for every kind of lanes and every operation.
//
//   for each stretch of kUnroll packs:          inputs[0]   ...| stretch |...
//     sums = load(inputs[0])                    inputs[1]   ...| stretch |...
//     sums = sums op load(inputs[k]), k = 1..        :
//     out  = finish(sums)                       out         ...| stretch |...
//
// All partial sums of a stretch stay in registers until its last operand is in: every source byte
// is read once, every result written once.
//
// A stretch is read whole before any of it is written, so `out` may be an input. The number of
// operands is a constant for 2, 3, 4 and 8 (pointers in registers), else a variable (one more load
// per operand and stretch). What is shorter than a pack goes through a zeroed buffer: the same
// instructions, no second formulation to keep in agreement.
#if defined(HORA_OPS_REDUCE_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HORA_OPS_REDUCE_LOOP_INL_H_
#undef HORA_OPS_REDUCE_LOOP_INL_H_
#else
#define HORA_OPS_REDUCE_LOOP_INL_H_
#endif

#include <cstring>
#include <span>

#include <hwy/highway.h>

#include "ops/reduce.h"
#include "ops/reduce_ops-inl.h"

// Without vectors the oracle runs instead.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {
namespace {

using Inputs = std::span<const std::byte* const>;

template <class Element>
HWY_INLINE const Element* elements(const std::byte* bytes) {
  return reinterpret_cast<const Element*>(bytes);
}

/// The elements to work on: [begin, end) of every operand.
struct Range {
  std::size_t begin, end;
};

/// kCount operands; 0 means inputs.size().
template <class Lanes, class Op, std::size_t kCount>
class Loop {
 public:
  using Element = typename Lanes::Element;
  using Pack = typename Lanes::Pack;

  Loop(Inputs inputs, const Finish& finish) : finish_(finish), inputs_(inputs) {
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kCount; ++k)
      fixed_[k] = elements<Element>(inputs[k]);
  }

  HWY_INLINE void run(Element* out, Range range) const {
    constexpr std::size_t kStretch = Lanes::kUnroll * Lanes::kStep;
    std::size_t i = range.begin;
    for (; range.end - i >= kStretch; i += kStretch)
      packs<Lanes::kUnroll>(i, out + i);
    for (; range.end - i >= Lanes::kStep; i += Lanes::kStep)
      packs<1>(i, out + i);
    if (i < range.end) rest(i, out + i, (range.end - i) * sizeof(Element));
  }

 private:
  HWY_INLINE std::size_t size() const {
    return kCount == 0 ? inputs_.size() : kCount;
  }
  HWY_INLINE const Element* input(std::size_t k) const {
    if constexpr (kCount == 0)
      return elements<Element>(inputs_[k]);
    else
      return fixed_[k];
  }

  template <std::size_t kPacks>
  HWY_INLINE void packs(std::size_t at, Element* out) const {
    Pack sums[kPacks];
    const Element* first = input(0) + at;
#pragma GCC unroll 4
    for (std::size_t p = 0; p < kPacks; ++p) {
      sums[p] = enter<Op>(Lanes::load(first + p * Lanes::kStep));
    }
    const std::size_t count = size();
#pragma GCC unroll 8
    for (std::size_t k = 1; k < count; ++k) {
      const Element* next = input(k) + at;
#pragma GCC unroll 4
      for (std::size_t p = 0; p < kPacks; ++p) {
        sums[p] = combine<Op>(sums[p], enter<Op>(Lanes::load(next + p * Lanes::kStep)));
      }
    }
#pragma GCC unroll 4
    for (std::size_t p = 0; p < kPacks; ++p)
      sums[p] = leave<Op>(sums[p]);
    if (!finish_.is_identity()) {
#pragma GCC unroll 4
      for (std::size_t p = 0; p < kPacks; ++p)
        sums[p] = finished(finish_, sums[p]);
    }
#pragma GCC unroll 4
    for (std::size_t p = 0; p < kPacks; ++p)
      Lanes::store(sums[p], out + p * Lanes::kStep);
  }

  HWY_INLINE void rest(std::size_t at, Element* out, std::size_t bytes) const {
    alignas(64) Element buffer[Lanes::kStep] = {};
    std::memcpy(buffer, input(0) + at, bytes);
    Pack sum = enter<Op>(Lanes::load(buffer));
    for (std::size_t k = 1; k < size(); ++k) {
      std::memcpy(buffer, input(k) + at, bytes);
      sum = combine<Op>(sum, enter<Op>(Lanes::load(buffer)));
    }
    Lanes::store(finished(finish_, leave<Op>(sum)), buffer);
    std::memcpy(out, buffer, bytes);
  }

  typename Lanes::Finisher finish_;
  Inputs inputs_;
  const Element* fixed_[kCount == 0 ? 1 : kCount];
};

template <class Lanes, class Op, std::size_t kCount>
HWY_NOINLINE void run_loop(Inputs inputs, std::byte* out, Range range, const Finish& finish) {
  const Loop<Lanes, Op, kCount> loop(inputs, finish);
  loop.run(reinterpret_cast<typename Lanes::Element*>(out), range);
}

/// One loop for any number of operands, for what is not worth five.
template <class Lanes, class Op>
void run_any(Inputs inputs, std::byte* out, Range range, const Finish& finish) {
  run_loop<Lanes, Op, 0>(inputs, out, range, finish);
}

/// The loop for this number of operands.
template <class Lanes, class Op>
void run_sized(Inputs inputs, std::byte* out, Range range, const Finish& finish) {
  switch (inputs.size()) {
    case 2:
      return run_loop<Lanes, Op, 2>(inputs, out, range, finish);
    case 3:
      return run_loop<Lanes, Op, 3>(inputs, out, range, finish);
    case 4:
      return run_loop<Lanes, Op, 4>(inputs, out, range, finish);
    case 8:
      return run_loop<Lanes, Op, 8>(inputs, out, range, finish);
    default:
      return run_loop<Lanes, Op, 0>(inputs, out, range, finish);
  }
}

}  // namespace
}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // HORA_OPS_REDUCE_LOOP_INL_H_
