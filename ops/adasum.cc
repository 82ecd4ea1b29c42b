#include "ops/adasum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/base/float_arrays.h"

namespace hora {
namespace {

/// Accumulators of a dot product. Fixed, so that the sum is the same on every processor; several,
/// so that additions need not wait for each other.
constexpr std::size_t kLanes = 8;

/// Part of a squared norm that rounding may have made up.
constexpr double kRoundingNoise = 1e-15;

/// out[k] = in[k]. At most kAdasumBlock elements.
void to_double(DType dtype, const std::byte* in, double* out, std::size_t count) {
  if (dtype == DType::float64) {
    std::memcpy(out, in, count * sizeof(double));
    return;
  }
  std::array<float, kAdasumBlock> floats;
  widen(dtype, in, floats.data(), count);
  std::copy_n(floats.begin(), count, out);
}

void from_double(const double* in, DType dtype, std::byte* out, std::size_t count) {
  if (dtype == DType::float64) {
    std::memcpy(out, in, count * sizeof(double));
    return;
  }
  std::array<float, kAdasumBlock> floats;
  std::transform(in, in + count, floats.begin(), [](double x) { return static_cast<float>(x); });
  narrow(floats.data(), dtype, out, count);
}

double dot(const double* a, const double* b, std::size_t count) {
  std::array<double, kLanes> sums{};
  std::size_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += a[at + lane] * b[at + lane];
  }
  for (std::size_t lane = 0; at < count; ++at, ++lane)
    sums[lane] += a[at] * b[at];
  double sum = 0;
  for (const double part : sums)
    sum += part;
  return sum;
}

/// The tree over ranks begin .. end-1, in terms of the factors of the inputs.
class Tree {
 public:
  Tree(std::span<const double> gram, std::size_t n) : gram_(gram), n_(n), factors_(n, 1.0) {}

  std::vector<double> run() {
    combine(0, n_);
    return factors_;
  }

 private:
  struct Range {
    std::size_t begin, end;
  };

  /// The dot product of two combinations, and the size of the terms that it is the sum of.
  struct Product {
    double value = 0, terms = 0;
  };

  void combine(std::size_t begin, std::size_t end) {
    if (end - begin < 2) return;
    const std::size_t middle = begin + std::bit_floor(end - begin - 1);
    const Range left{begin, middle}, right{middle, end};
    combine(begin, middle);
    combine(middle, end);
    const double together = product(left, right).value;
    // Both factors come from the halves as they are, so neither is applied before both are known.
    const double of_left = factor(together, product(left, left));
    const double of_right = factor(together, product(right, right));
    scale(left, of_left);
    scale(right, of_right);
  }

  [[nodiscard]] Product product(Range a, Range b) const {
    Product product;
    for (std::size_t i = a.begin; i < a.end; ++i) {
      for (std::size_t j = b.begin; j < b.end; ++j) {
        const double term = factors_[i] * factors_[j] * gram_[std::min(i, j) * n_ + std::max(i, j)];
        product.value += term;
        product.terms += std::abs(term);
      }
    }
    return product;
  }

  static double factor(double together, const Product& norm) {
    static const double least = std::sqrt(std::numeric_limits<double>::min());
    const bool is_nothing = norm.value < least || norm.value < kRoundingNoise * norm.terms;
    return is_nothing ? 1.0 : 1.0 - together / (2.0 * norm.value);
  }

  void scale(Range range, double by) {
    for (std::size_t i = range.begin; i < range.end; ++i)
      factors_[i] *= by;
  }

  std::span<const double> gram_;
  std::size_t n_;
  std::vector<double> factors_;
};

}  // namespace

void add_to_gram(DType dtype, std::span<const std::byte* const> inputs, std::size_t count,
                 std::span<double> scratch, std::span<double> gram) {
  const std::size_t n = inputs.size();
  HORA_CHECK(count <= kAdasumBlock && scratch.size() >= n * kAdasumBlock && gram.size() == n * n,
             "a block of adasum fits its scratch");
  for (std::size_t i = 0; i < n; ++i)
    to_double(dtype, inputs[i], &scratch[i * kAdasumBlock], count);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i; j < n; ++j)
      gram[i * n + j] += dot(&scratch[i * kAdasumBlock], &scratch[j * kAdasumBlock], count);
  }
}

std::vector<double> adasum_factors(std::span<const double> gram, std::size_t n) {
  HORA_CHECK(n > 0 && gram.size() == n * n, "a Gram matrix is square");
  return Tree(gram, n).run();
}

void adasum_combine(DType dtype, std::span<const std::byte* const> inputs,
                    std::span<const double> factors, double postscale, std::byte* out,
                    std::size_t count) {
  HORA_CHECK(count <= kAdasumBlock && factors.size() == inputs.size(), "one factor per input");
  std::array<double, kAdasumBlock> sum{};
  std::array<double, kAdasumBlock> values;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    to_double(dtype, inputs[i], values.data(), count);
    for (std::size_t k = 0; k < count; ++k)
      sum[k] += factors[i] * values[k];
  }
  for (std::size_t k = 0; k < count; ++k)
    sum[k] *= postscale;
  from_double(sum.data(), dtype, out, count);
}

}  // namespace hora
