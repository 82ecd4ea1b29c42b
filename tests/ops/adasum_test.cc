// Adasum: the arithmetic against the definition, one pair at a time, in float64.
#include "ops/adasum.h"

#include <algorithm>
#include <random>

#include <catch2/catch.hpp>

#include "runtime/base/float_arrays.h"
#include "tests/support/adasum_oracle.h"

namespace hora::test {
namespace {

std::vector<double> factors_of(const std::vector<Vector>& inputs) {
  std::vector<double> gram(inputs.size() * inputs.size());
  std::vector<double> scratch(inputs.size() * kAdasumBlock);
  for (std::size_t at = 0; at < inputs.front().size(); at += kAdasumBlock) {
    std::vector<const std::byte*> parts;
    for (const Vector& input : inputs)
      parts.push_back(reinterpret_cast<const std::byte*>(&input[at]));
    add_to_gram(DType::float64, parts, std::min(kAdasumBlock, inputs.front().size() - at), scratch,
                gram);
  }
  return adasum_factors(gram, inputs.size());
}

Vector combined(const std::vector<Vector>& inputs) {
  const std::vector<double> factors = factors_of(inputs);
  Vector sum(inputs.front().size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t k = 0; k < sum.size(); ++k)
      sum[k] += factors[i] * inputs[i][k];
  }
  return sum;
}

std::vector<Vector> random_inputs(std::size_t n, std::size_t count) {
  std::mt19937_64 random(n * 1000 + count);
  std::normal_distribution<double> normal;
  std::vector<Vector> inputs(n, Vector(count));
  for (Vector& input : inputs) {
    for (double& value : input)
      value = normal(random);
  }
  return inputs;
}

void check_near(const Vector& found, const Vector& expected) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] != Approx(expected[i]).epsilon(1e-9).margin(1e-12)) {
      FAIL_CHECK("element " << i << ": " << found[i] << " instead of " << expected[i]);
    }
  }
}

}  // namespace

TEST_CASE("adasum: any number of inputs, as the definition says") {
  for (std::size_t n = 1; n <= 9; ++n) {
    for (const std::size_t count : {1, 7, 1024, 3001}) {
      INFO(n << " inputs of " << count);
      const auto inputs = random_inputs(n, count);
      check_near(combined(inputs), adasum_of(inputs, 0, n));
    }
  }
}

TEST_CASE("adasum: orthogonal inputs add, equal ones average, nothing changes nothing") {
  for (std::size_t n = 1; n <= 8; ++n) {
    std::vector<Vector> inputs(n, Vector(n));
    for (std::size_t i = 0; i < n; ++i)
      inputs[i][i] = static_cast<double>(i + 1);
    Vector sum(n);
    for (std::size_t i = 0; i < n; ++i)
      sum[i] = static_cast<double>(i + 1);
    CHECK(combined(inputs) == sum);

    const std::vector<Vector> equal(n, random_inputs(1, 50).front());
    check_near(combined(equal), equal.front());

    CHECK(combined(std::vector<Vector>(n, Vector(5))) == Vector(5));
    std::vector<Vector> one(n, Vector(5));
    one.back() = {1, -2, 3, 0, 5};
    CHECK(combined(one) == one.back());
  }
}

TEST_CASE("adasum: what cancels has no direction") {
  // The first two leave rounding noise at most; the third must come out as it is.
  const Vector a = random_inputs(1, 100).front(), other = random_inputs(2, 100).back();
  Vector opposite(a);
  for (double& value : opposite)
    value = -value;
  check_near(combined({a, opposite, other}), other);
}

TEST_CASE("adasum: tiny and huge numbers neither vanish nor overflow") {
  const Vector tiny(10, 1e-150), huge(10, 1e100);
  check_near(combined({tiny, tiny}), tiny);
  check_near(combined({huge, huge}), huge);
  const Vector least(10, 1e-200);  // Its norm is 0: two of them add.
  CHECK(combined({least, least}) == Vector(10, 2e-200));
}

TEST_CASE("adasum: a combination is rounded once to the type of its inputs") {
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    const std::size_t count = 777;
    std::vector<std::vector<std::byte>> encoded;
    std::vector<const std::byte*> inputs;
    std::vector<std::vector<float>> values;
    for (const Vector& input : random_inputs(3, count)) {
      const std::vector<float> floats(input.begin(), input.end());
      auto& bytes = encoded.emplace_back(count * size_of(dtype));
      narrow(floats.data(), dtype, bytes.data(), count);
      widen(dtype, bytes.data(), values.emplace_back(count).data(), count);
    }
    for (const auto& bytes : encoded)
      inputs.push_back(bytes.data());
    const Vector factors = {0.5, -1.25, 3};
    std::vector<float> sums(count);
    for (std::size_t k = 0; k < count; ++k) {
      double sum = 0;
      for (std::size_t i = 0; i < 3; ++i)
        sum += factors[i] * static_cast<double>(values[i][k]);
      sums[k] = static_cast<float>(sum * 2.0);
    }
    std::vector<std::byte> expected(count * size_of(dtype));
    narrow(sums.data(), dtype, expected.data(), count);
    adasum_combine(dtype, inputs, factors, 2.0, encoded[0].data(), count);
    CHECK(encoded[0] == expected);
  }
}

}  // namespace hora::test
