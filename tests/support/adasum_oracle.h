// The definition of Adasum, one pair at a time, in float64: what the tests compare with.
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

namespace hora::test {

using Vector = std::vector<double>;

inline double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += a[i] * b[i];
  return sum;
}

inline Vector adasum_of_two(const Vector& a, const Vector& b) {
  const double together = dot(a, b);
  const double norm_a = dot(a, a), norm_b = dot(b, b);
  const double of_a = norm_a == 0 ? 1 : 1 - together / (2 * norm_a);
  const double of_b = norm_b == 0 ? 1 : 1 - together / (2 * norm_b);
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    sum[i] = of_a * a[i] + of_b * b[i];
  return sum;
}

/// The tree over inputs begin .. end-1: its left part has the largest power of two below their
/// number.
inline Vector adasum_of(const std::vector<Vector>& inputs, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return inputs[begin];
  const std::size_t middle = begin + std::bit_floor(end - begin - 1);
  return adasum_of_two(adasum_of(inputs, begin, middle), adasum_of(inputs, middle, end));
}

}  // namespace hora::test
