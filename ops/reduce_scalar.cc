// The scalar oracle: what `reduce` means, written to be read.
//
// One element at a time: load and widen every operand in order, combine, finish, narrow, store.
// Nothing here is clever, and nothing uses an instruction that the SIMD kernels use, so agreement
// of the two is evidence. It is also the code that runs where there is no SIMD target.
//
// A Number<dtype> says how one element is stored and what it is computed in:
//
//   stored   float16 bfloat16 float32 float64 | int8 .. int64, uint8, uint16     | bool
//   Wide     float   float    float   double  | the same; int64 for an average   | bool
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/reduce.h"
#include "runtime/base/check.h"
#include "runtime/base/float16.h"

namespace hora {
namespace {

template <class T>
T load(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T the_nan_if_nan(T value) {
  return value == value ? value : std::numeric_limits<T>::quiet_NaN();
}

/// Truncates towards zero and saturates; NaN becomes 0.
template <class T>
T integer_from_double(double value) {
  using Limits = std::numeric_limits<T>;
  if (value != value) return 0;
  // -2^63 and 2^63 are doubles, 2^63-1 is not: compare with the power of two, exclusively.
  const double end = std::ldexp(1.0, Limits::digits);
  if (value >= end) return Limits::max();
  if (value <= static_cast<double>(Limits::min())) return Limits::min();
  return static_cast<T>(value);
}

template <class T>
T saturated(std::int64_t value) {
  using Limits = std::numeric_limits<T>;
  if (value > static_cast<std::int64_t>(Limits::max())) return Limits::max();
  if (value < static_cast<std::int64_t>(Limits::min())) return Limits::min();
  return static_cast<T>(value);
}

template <class W>
W finish_floating(W value, const Finish& finish) {
  value = value / static_cast<W>(finish.divisor) * static_cast<W>(finish.postscale);
  return the_nan_if_nan(value);
}

/// T stored, W accumulated in.
template <class T, class W = T>
struct Integer {
  using Wide = W;
  static W load_at(const std::byte* from, std::size_t index) { return load<T>(from, index); }
  static void store_at(std::byte* to, std::size_t index, W value, const Finish& finish) {
    if (finish.is_identity()) return store(to, index, static_cast<T>(value));
    const std::int64_t quotient = static_cast<std::int64_t>(value) / finish.divisor;
    store(to, index,
          finish.postscale == 1.0
              ? saturated<T>(quotient)
              : integer_from_double<T>(static_cast<double>(quotient) * finish.postscale));
  }
};

template <class T>
struct Floating {
  using Wide = T;
  static T load_at(const std::byte* from, std::size_t index) { return load<T>(from, index); }
  static void store_at(std::byte* to, std::size_t index, T value, const Finish& finish) {
    store(to, index, finish_floating(value, finish));
  }
};

/// A 16-bit format given by its two conversions.
template <float (*widen)(std::uint16_t), std::uint16_t (*narrow)(float)>
struct Short {
  using Wide = float;
  static float load_at(const std::byte* from, std::size_t index) {
    return widen(load<std::uint16_t>(from, index));
  }
  static void store_at(std::byte* to, std::size_t index, float value, const Finish& finish) {
    store(to, index, narrow(finish_floating(value, finish)));
  }
};
using Float16 = Short<float_from_float16, float16_from_float>;
using Bfloat16 = Short<float_from_bfloat16, bfloat16_from_float>;

/// Any byte but 0 is true; results are 0 or 1. A Finish means nothing to it.
struct Boolean {
  using Wide = bool;
  static bool load_at(const std::byte* from, std::size_t index) {
    return load<std::uint8_t>(from, index) != 0;
  }
  static void store_at(std::byte* to, std::size_t index, bool value, const Finish&) {
    store(to, index, static_cast<std::uint8_t>(value));
  }
};

struct Sum {
  template <class W>
  W operator()(W a, W b) const {
    if constexpr (std::is_same_v<W, bool>)
      return a || b;
    else if constexpr (std::is_floating_point_v<W>)
      return a + b;
    else
      return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};

struct Product {
  template <class W>
  W operator()(W a, W b) const {
    if constexpr (std::is_same_v<W, bool>)
      return a && b;
    else if constexpr (std::is_floating_point_v<W>)
      return a * b;
    else
      return static_cast<W>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
};

/// NaN if either is; of two zeros the negative one.
struct Min {
  template <class W>
  W operator()(W a, W b) const {
    if constexpr (std::is_floating_point_v<W>) {
      if (a != a || b != b) return std::numeric_limits<W>::quiet_NaN();
      if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
  }
};

/// NaN if either is; of two zeros the positive one.
struct Max {
  template <class W>
  W operator()(W a, W b) const {
    if constexpr (std::is_floating_point_v<W>) {
      if (a != a || b != b) return std::numeric_limits<W>::quiet_NaN();
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
  }
};

using Inputs = std::span<const std::byte* const>;

template <class Number, class Op>
void loop(Inputs inputs, std::byte* out, std::size_t count, const Finish& finish) {
  for (std::size_t i = 0; i < count; ++i) {
    auto wide = Number::load_at(inputs[0], i);
    for (std::size_t k = 1; k < inputs.size(); ++k)
      wide = Op{}(wide, Number::load_at(inputs[k], i));
    Number::store_at(out, i, wide, finish);
  }
}

/// `ForAverage` differs from `Number` where an average needs a wider sum.
template <class Number, class ForAverage = Number>
void choose_op(ReduceOp op, Inputs inputs, std::byte* out, std::size_t count,
               const Finish& finish) {
  switch (op) {
    case ReduceOp::average:
      return loop<ForAverage, Sum>(inputs, out, count, finish);
    case ReduceOp::sum:
      return loop<Number, Sum>(inputs, out, count, finish);
    case ReduceOp::min:
      return loop<Number, Min>(inputs, out, count, finish);
    case ReduceOp::max:
      return loop<Number, Max>(inputs, out, count, finish);
    case ReduceOp::product:
      return loop<Number, Product>(inputs, out, count, finish);
    case ReduceOp::adasum:
      break;
  }
  HORA_CHECK(false, "adasum is not an element-wise reduction");
}

template <class T>
constexpr auto choose_integer = choose_op<Integer<T>, Integer<T, std::int64_t>>;

}  // namespace

void reduce_scalar(DType dtype, ReduceOp op, Inputs inputs, std::byte* out, std::size_t count,
                   const Finish& finish) {
  HORA_CHECK(!inputs.empty(), "a reduction needs an operand");
  HORA_CHECK(finish.divisor > 0, "the divisor counts contributors");
  switch (dtype) {
    case DType::uint8:
      return choose_integer<std::uint8_t>(op, inputs, out, count, finish);
    case DType::int8:
      return choose_integer<std::int8_t>(op, inputs, out, count, finish);
    case DType::int16:
      return choose_integer<std::int16_t>(op, inputs, out, count, finish);
    case DType::int32:
      return choose_integer<std::int32_t>(op, inputs, out, count, finish);
    case DType::int64:
      return choose_integer<std::int64_t>(op, inputs, out, count, finish);
    case DType::uint16:
      return choose_integer<std::uint16_t>(op, inputs, out, count, finish);
    case DType::float16:
      return choose_op<Float16>(op, inputs, out, count, finish);
    case DType::bfloat16:
      return choose_op<Bfloat16>(op, inputs, out, count, finish);
    case DType::float32:
      return choose_op<Floating<float>>(op, inputs, out, count, finish);
    case DType::float64:
      return choose_op<Floating<double>>(op, inputs, out, count, finish);
    case DType::boolean:
      return choose_op<Boolean>(op, inputs, out, count, finish);
  }
}

}  // namespace hora
