// The operations on vectors, per instruction set.
//
// An operation is three functions: `enter` prepares an operand, `combine` joins it to the partial
// result, `leave` undoes what `enter` did.
#if defined(HORA_OPS_REDUCE_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HORA_OPS_REDUCE_OPS_INL_H_
#undef HORA_OPS_REDUCE_OPS_INL_H_
#else
#define HORA_OPS_REDUCE_OPS_INL_H_
#endif

#include <hwy/highway.h>

// Without vectors the oracle runs instead.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace hora::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

struct AsIs {
  template <class V>
  static HWY_INLINE V enter(V v) {
    return v;
  }
  template <class V>
  static HWY_INLINE V leave(V v) {
    return v;
  }
};

struct Sum : AsIs {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Add(a, b);
  }
};

struct FloatProduct : AsIs {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Mul(a, b);
  }
};

/// x86's minimum returns its second operand if one is NaN or both are zeros. So of min(a, b) and
/// min(b, a) one has each operand, and their union has the NaN (a NaN with more bits set stays one)
/// and the sign of -0. In every other case the two are equal. The minimum that Highway takes on ARM
/// (fminnm) knows the sign of -0, but prefers a number to a NaN; a sum does not.
struct FloatMin : AsIs {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
#if HWY_ARCH_ARM
    const auto both_are_numbers = hn::And(hn::Eq(a, a), hn::Eq(b, b));
    return hn::IfThenElse(both_are_numbers, hn::Min(a, b), hn::Add(a, b));
#else
    return hn::Or(hn::Min(a, b), hn::Min(b, a));
#endif
  }
};

/// max(a, b) = -min(-a, -b): a union cannot find the +0 of two zeros, but it can find the -0.
struct FloatMax {
  template <class V>
  static HWY_INLINE V enter(V v) {
    return hn::Neg(v);
  }
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return FloatMin::combine(a, b);
  }
  template <class V>
  static HWY_INLINE V leave(V v) {
    return hn::Neg(v);
  }
};

struct IntegerMin : AsIs {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Min(a, b);
  }
};

struct IntegerMax : AsIs {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Max(a, b);
  }
};

/// Of unsigned lanes: a product modulo 2^n does not know signs.
struct IntegerProduct : AsIs {
  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    using D = hn::DFromV<V>;
    if constexpr (sizeof(hn::TFromD<D>) > 1) {
      return hn::Mul(a, b);
    } else {
      // No processor multiplies bytes: take the low bytes of two products of 16-bit lanes.
      const hn::RepartitionToWide<D> wide;
      const auto a2 = hn::BitCast(wide, a);
      const auto b2 = hn::BitCast(wide, b);
      const auto even = hn::And(hn::Mul(a2, b2), hn::Set(wide, 0xff));
      const auto odd = hn::Mul(hn::ShiftRight<8>(a2), hn::ShiftRight<8>(b2));
      return hn::BitCast(D{}, hn::Or(even, hn::ShiftLeft<8>(odd)));
    }
  }
};

/// Of bytes: true if any is not 0. The largest tells.
struct Any : IntegerMax {
  template <class V>
  static HWY_INLINE V leave(V v) {
    return hn::Min(v, hn::Set(hn::DFromV<V>{}, 1));
  }
};

/// Of bytes: true if none is 0. The smallest tells.
struct All : IntegerMin {
  template <class V>
  static HWY_INLINE V leave(V v) {
    return hn::Min(v, hn::Set(hn::DFromV<V>{}, 1));
  }
};

// The operations and the finish on a Pack that is a single vector. bfloat16 brings its own for two.
template <class Op, class V>
HWY_INLINE V enter(V v) {
  return Op::enter(v);
}
template <class Op, class V>
HWY_INLINE V combine(V a, V b) {
  return Op::combine(a, b);
}
template <class Op, class V>
HWY_INLINE V leave(V v) {
  return Op::leave(v);
}
template <class Finisher, class V>
HWY_INLINE V finished(const Finisher& finish, V v) {
  return finish(v);
}

}  // namespace
}  // namespace hora::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // HORA_OPS_REDUCE_OPS_INL_H_
