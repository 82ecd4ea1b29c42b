// The vectors that the reduction loop works on, per instruction set.
//
// A *lanes* type is the vector form of the oracle's Number: `load` widens `kStep` elements into a
// Pack, `store` narrows and writes them. In between, an operation (reduce_ops-inl.h) combines Packs
// and a Finisher divides and scales the result.
//
//   Floats<T>      float32, float64   a Pack is one vector of T
//   Halves         float16            one vector of float32
//   Brains         bfloat16           two vectors of float32, the even and the odd elements: a
//                                     bfloat16 is the upper half of a float32, so one shift or one
//                                     mask widens it, and nothing ever crosses a lane
//   Integers<T>    all integers       one vector of T, finished elsewhere
//   Quotients<T>   up to 32 bits      one vector of float64: the sum of an average, or a result
//                                     that is to be finished
//
// Compiled once per target by foreach_target.h; hence the unusual include guard.
#if defined(HORA_OPS_REDUCE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HORA_OPS_REDUCE_LANES_INL_H_
#undef HORA_OPS_REDUCE_LANES_INL_H_
#else
#define HORA_OPS_REDUCE_LANES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

#include "ops/reduce.h"
#include "runtime/base/float_lanes-inl.h"

// Without vectors the oracle runs instead.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// A Finish as vectors of floating-point type T.
template <class T>
class FloatFinish {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  explicit FloatFinish(const Finish& finish)
      : divisor_(hn::Set(D{}, static_cast<T>(finish.divisor))),
        reciprocal_(hn::Set(D{}, 1 / static_cast<T>(finish.divisor))),
        postscale_(hn::Set(D{}, static_cast<T>(finish.postscale))),
        // x / 2^k and x * 2^-k are one real number and round alike; the product is faster.
        multiplies_(finish.divisor != 1 &&
                    std::has_single_bit(static_cast<std::uint64_t>(finish.divisor))),
        divides_(finish.divisor != 1 && !multiplies_),
        postscales_(finish.postscale != 1.0) {}

  [[nodiscard]] HWY_INLINE bool is_identity() const {
    return !multiplies_ && !divides_ && !postscales_;
  }
  HWY_INLINE V operator()(V v) const {
    if (multiplies_) v = hn::Mul(v, reciprocal_);
    if (divides_) v = hn::Div(v, divisor_);
    if (postscales_) v = hn::Mul(v, postscale_);
    return v;
  }

 private:
  V divisor_, reciprocal_, postscale_;
  bool multiplies_, divides_, postscales_;
};

template <class T>
struct Floats {
  using Element = T;
  using D = hn::ScalableTag<T>;
  using Pack = hn::Vec<D>;
  using Finisher = FloatFinish<T>;
  static constexpr std::size_t kStep = hn::MaxLanes(D{});
  static constexpr std::size_t kUnroll = 4;

  static HWY_INLINE Pack load(const Element* from) { return hn::LoadU(D{}, from); }
  static HWY_INLINE void store(Pack pack, Element* to) { hn::StoreU(with_one_nan(pack), D{}, to); }
};

struct Halves {
  using Element = std::uint16_t;
  using Pack = VFloat;
  using Finisher = FloatFinish<float>;
  static constexpr std::size_t kStep = hn::MaxLanes(DFloat{});
  static constexpr std::size_t kUnroll = 4;

  static HWY_INLINE Pack load(const Element* from) { return load_float16(from); }
  static HWY_INLINE void store(Pack pack, Element* to) { store_float16(pack, to); }
};

struct Brains {
  using Element = std::uint16_t;
  struct Pack {
    VFloat even, odd;
    // What the compiler makes by itself is not compiled for this target.
    HWY_INLINE Pack() {}  // NOLINT(modernize-use-equals-default,*-member-init)
    HWY_INLINE Pack(VFloat even_, VFloat odd_) : even(even_), odd(odd_) {}
  };
  using Finisher = FloatFinish<float>;
  using D16 = hn::ScalableTag<std::uint16_t>;
  static constexpr std::size_t kStep = hn::MaxLanes(D16{});
  static constexpr std::size_t kUnroll = 2;

  static HWY_INLINE Pack load(const Element* from) {
    const VBits both = hn::BitCast(DBits{}, hn::LoadU(D16{}, from));
    const VBits upper = hn::Set(DBits{}, 0xffff0000);
    return {hn::BitCast(DFloat{}, hn::ShiftLeft<16>(both)),
            hn::BitCast(DFloat{}, hn::And(both, upper))};
  }
  static HWY_INLINE void store(Pack pack, Element* to) {
    const VBits upper = hn::Set(DBits{}, 0xffff0000);
    const VBits even = hn::ShiftRight<16>(rounded_bfloat16(with_one_nan(pack.even)));
    const VBits odd = hn::And(rounded_bfloat16(with_one_nan(pack.odd)), upper);
    hn::StoreU(hn::BitCast(D16{}, hn::Or(even, odd)), D16{}, to);
  }
};

// The operations and the finish on a pair of vectors.
HWY_INLINE Brains::Pack finished(const FloatFinish<float>& finish, Brains::Pack pack) {
  return {finish(pack.even), finish(pack.odd)};
}
template <class Op>
HWY_INLINE Brains::Pack enter(Brains::Pack pack) {
  return {Op::enter(pack.even), Op::enter(pack.odd)};
}
template <class Op>
HWY_INLINE Brains::Pack combine(Brains::Pack a, Brains::Pack b) {
  return {Op::combine(a.even, b.even), Op::combine(a.odd, b.odd)};
}
template <class Op>
HWY_INLINE Brains::Pack leave(Brains::Pack pack) {
  return {Op::leave(pack.even), Op::leave(pack.odd)};
}

/// Of what is finished elsewhere.
struct NoFinish {
  explicit NoFinish(const Finish&) {}
  [[nodiscard]] HWY_INLINE bool is_identity() const { return true; }
  template <class V>
  HWY_INLINE V operator()(V v) const {
    return v;
  }
};

template <class T>
struct Integers {
  using Element = T;
  using D = hn::ScalableTag<T>;
  using Pack = hn::Vec<D>;
  using Finisher = NoFinish;
  static constexpr std::size_t kStep = hn::MaxLanes(D{});
  static constexpr std::size_t kUnroll = 4;

  static HWY_INLINE Pack load(const Element* from) { return hn::LoadU(D{}, from); }
  static HWY_INLINE void store(Pack pack, Element* to) { hn::StoreU(pack, D{}, to); }
};

/// Divides and postscales integers in float64, truncating after the division.
///
/// The quotient is exact although float64 rounds: a quotient s/d that is no integer is at least 1/d
/// away from one, and its rounding error is at most |s/d| * 2^-53, which is less while |s| < 2^53.
class IntegerFinish {
 public:
  using D = hn::ScalableTag<double>;
  using V = hn::Vec<D>;

  explicit IntegerFinish(const Finish& finish)
      : divisor_(hn::Set(D{}, static_cast<double>(finish.divisor))),
        postscale_(hn::Set(D{}, finish.postscale)),
        divides_(finish.divisor != 1),
        postscales_(finish.postscale != 1.0) {}

  [[nodiscard]] HWY_INLINE bool is_identity() const { return !divides_ && !postscales_; }
  HWY_INLINE V operator()(V v) const {
    if (divides_) v = hn::Trunc(hn::Div(v, divisor_));
    if (postscales_) v = hn::Mul(v, postscale_);
    return v;
  }

 private:
  V divisor_, postscale_;
  bool divides_, postscales_;
};

template <class T>
struct Quotients {
  using Element = T;
  using D = hn::ScalableTag<double>;
  using D32 = hn::Rebind<std::int32_t, D>;
  using DStored = hn::Rebind<T, D>;
  using Pack = hn::Vec<D>;
  using Finisher = IntegerFinish;
  static constexpr std::size_t kStep = hn::MaxLanes(D{});
  static constexpr std::size_t kUnroll = 2;

  static HWY_INLINE Pack load(const Element* from) {
    const auto stored = hn::LoadU(DStored{}, from);
    if constexpr (sizeof(T) == 4)
      return hn::PromoteTo(D{}, stored);
    else
      return hn::PromoteTo(D{}, hn::PromoteTo(D32{}, stored));
  }
  static HWY_INLINE void store(Pack pack, Element* to) {
    const Pack least = hn::Set(D{}, static_cast<double>(std::numeric_limits<T>::min()));
    const Pack most = hn::Set(D{}, static_cast<double>(std::numeric_limits<T>::max()));
    const Pack number = hn::IfThenElseZero(hn::Eq(pack, pack), pack);
    const auto whole = hn::DemoteTo(D32{}, hn::Min(hn::Max(number, least), most));
    if constexpr (sizeof(T) == 4)
      hn::StoreU(whole, D32{}, to);
    else
      hn::StoreU(hn::DemoteTo(DStored{}, whole), DStored{}, to);
  }
};

}  // namespace
}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // HORA_OPS_REDUCE_LANES_INL_H_
