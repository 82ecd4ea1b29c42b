// The reduction kernels: results against numbers written here, from the oracle and
// from every target.
#include "ops/reduce.h"

#include <bit>
#include <cmath>
#include <limits>

#include "tests/ops/reduce_support.h"

namespace hora {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Reduces one element per operand. Every implementation must agree on what is returned.
template <class T>
T reduced(DType dtype, ReduceOp op, const std::vector<T>& values, Finish finish = {}) {
  std::vector<const std::byte*> inputs;
  for (const T& value : values)
    inputs.push_back(reinterpret_cast<const std::byte*>(&value));
  T expected{};
  reduce_scalar(dtype, op, inputs, reinterpret_cast<std::byte*>(&expected), 1, finish);
  on_every_target([&] {
    T result{};
    reduce(dtype, op, inputs, reinterpret_cast<std::byte*>(&result), 1, finish);
    CHECK(std::memcmp(&result, &expected, sizeof(T)) == 0);
  });
  return expected;
}

TEST_CASE("reduce: operands are added strictly in order") {
  CHECK(reduced<float>(DType::float32, ReduceOp::sum, {1e8F, 1.0F, -1e8F}) == 0.0F);
  CHECK(reduced<float>(DType::float32, ReduceOp::sum, {1e8F, -1e8F, 1.0F}) == 1.0F);
  CHECK(reduced<double>(DType::float64, ReduceOp::sum, {1e17, 1.0, -1e17, 3.0}) == 3.0);
}

TEST_CASE("reduce: 16-bit floats round once, after division and postscale") {
  using Values = std::vector<std::uint16_t>;
  // In float16, 2048 + 1 is 2048 again; in bfloat16, so is 256 + 1 with 256.
  CHECK(reduced(DType::float16, ReduceOp::sum, Values{half(2048), half(1), half(1)}) == half(2050));
  CHECK(reduced(DType::bfloat16, ReduceOp::sum, Values{brain(256), brain(1), brain(1)}) ==
        brain(258));
  // The average of four large values does not overflow on the way; their sum does.
  const Values large(4, half(30000));
  CHECK(reduced(DType::float16, ReduceOp::average, large, {4, 1.0}) == half(30000));
  CHECK(reduced(DType::float16, ReduceOp::sum, large) == 0x7c00);
  // Denormals: 3 * 2^-24 / 2 is a tie between 1 and 2.
  CHECK(reduced(DType::float16, ReduceOp::average, Values{1, 2}, {2, 1.0}) == 2);
  CHECK(reduced(DType::bfloat16, ReduceOp::average, Values{brain(1), brain(2), brain(4)},
                {3, 0.5}) == brain(7.0F / 3.0F * 0.5F));
}

TEST_CASE("reduce: a finish divides and then scales, each step rounded in the type") {
  const float sum = 1.1F + 2.3F;
  const float third = sum / 3.0F;
  CHECK(reduced<float>(DType::float32, ReduceOp::average, {1.1F, 2.3F}, {3, 0.7}) == third * 0.7F);
  CHECK(reduced<float>(DType::float32, ReduceOp::max, {1.1F, 2.3F}, {1, 0.7}) == 2.3F * 0.7F);
  CHECK(reduced<double>(DType::float64, ReduceOp::sum, {0.1, 0.2}, {8, 1.0}) == (0.1 + 0.2) / 8);
  CHECK(reduced<float>(DType::float32, ReduceOp::sum, {0x1p-149F, 0x1p-148F}, {2, 1.0}) ==
        0x1p-148F);
}

TEST_CASE("reduce: every NaN result is the one quiet NaN") {
  const float signalling = std::bit_cast<float>(0xff800001U);
  const auto bits = [](ReduceOp op, const std::vector<float>& values) {
    return std::bit_cast<std::uint32_t>(reduced<float>(DType::float32, op, values));
  };
  using Values = std::vector<std::uint16_t>;
  for (const ReduceOp op : kReduceOps) {
    INFO(to_string(op));
    CHECK(bits(op, {signalling, 1.0F}) == kFloat32Nan);
    CHECK(bits(op, {1.0F, signalling}) == kFloat32Nan);
    CHECK(bits(op, {1.0F, signalling, 2.0F, kInfinity}) == kFloat32Nan);
    CHECK(bits(op, {signalling}) == kFloat32Nan);
    CHECK(reduced(DType::float16, op, Values{0xfc01, half(1)}) == kFloat16Nan);
    CHECK(reduced(DType::bfloat16, op, Values{brain(1), 0xff81}) == kBfloat16Nan);
  }
  CHECK(bits(ReduceOp::sum, {kInfinity, -kInfinity}) == kFloat32Nan);
  CHECK(bits(ReduceOp::product, {kInfinity, 0.0F}) == kFloat32Nan);
  const double result = reduced<double>(DType::float64, ReduceOp::min, {-std::nan("5"), 1.0});
  CHECK(std::bit_cast<std::uint64_t>(result) == 0x7ff8000000000000);
}

TEST_CASE("reduce: -0 is less than +0") {
  const auto negative = [](ReduceOp op, double a, double b) {
    return std::signbit(reduced<double>(DType::float64, op, {a, b}));
  };
  CHECK(negative(ReduceOp::min, 0.0, -0.0));
  CHECK(negative(ReduceOp::min, -0.0, 0.0));
  CHECK_FALSE(negative(ReduceOp::min, 0.0, 0.0));
  CHECK_FALSE(negative(ReduceOp::max, 0.0, -0.0));
  CHECK_FALSE(negative(ReduceOp::max, -0.0, 0.0));
  CHECK(negative(ReduceOp::max, -0.0, -0.0));
  CHECK_FALSE(negative(ReduceOp::sum, 0.0, -0.0));
  CHECK(negative(ReduceOp::sum, -0.0, -0.0));
}

TEST_CASE("reduce: min and max find it at every place") {
  for (std::size_t place = 0; place < 5; ++place) {
    std::vector<float> values(5, 1.5F);
    values[place] = -kInfinity;
    CHECK(reduced(DType::float32, ReduceOp::min, values) == -kInfinity);
    values[place] = 2.0F;
    CHECK(reduced(DType::float32, ReduceOp::max, values) == 2.0F);
  }
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::min, {3, -128, 127}) == -128);
  CHECK(reduced<std::uint8_t>(DType::uint8, ReduceOp::max, {3, 128, 127}) == 128);
  CHECK(reduced<std::int64_t>(DType::int64, ReduceOp::min, {1, INT64_MIN}) == INT64_MIN);
}

TEST_CASE("reduce: integer sums and products wrap in their type") {
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::sum, {100, 100}) == -56);
  CHECK(reduced<std::int32_t>(DType::int32, ReduceOp::sum, {INT32_MAX, 1}) == INT32_MIN);
  CHECK(reduced<std::uint8_t>(DType::uint8, ReduceOp::product, {17, 16}) == 16);
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::product, {-3, 5, 7}) == -105);
  CHECK(reduced<std::int64_t>(DType::int64, ReduceOp::product, {INT64_MAX, -3}) == INT64_MIN + 3);
}

TEST_CASE("reduce: integer averages do not wrap on the way, and truncate towards zero") {
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::average, {127, 127, 126}, {3, 1}) == 126);
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::average, {-128, -127}, {2, 1}) == -127);
  CHECK(reduced<std::uint16_t>(DType::uint16, ReduceOp::average, {65535, 65534}, {2, 1}) == 65534);
  CHECK(reduced<std::int32_t>(DType::int32, ReduceOp::average, {INT32_MAX, INT32_MAX}, {2, 1}) ==
        INT32_MAX);
  // 49 * (1 / 49.) is less than 1: a product with the reciprocal would be 0.
  CHECK(reduced(DType::int32, ReduceOp::average, std::vector<std::int32_t>(49, 1), {49, 1}) == 1);
  const std::int64_t big = (std::int64_t{1} << 61) + 1;
  CHECK(reduced<std::int64_t>(DType::int64, ReduceOp::average, {big, big, big}, {3, 1}) == big);
  CHECK(reduced<std::int64_t>(DType::int64, ReduceOp::average, {-big, -big, 1}, {3, 1}) ==
        (1 - 2 * big) / 3);
}

TEST_CASE("reduce: the partial sum of an integer average wraps") {
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::average, {100, 100}) == -56);
}

TEST_CASE("reduce: finished integers beyond their type saturate, and NaN is 0") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::average, {100, 100}, {1, 2.0}) == 127);
  CHECK(reduced<std::int8_t>(DType::int8, ReduceOp::sum, {100, 100}, {1, 2.0}) == -112);
  CHECK(reduced<std::uint8_t>(DType::uint8, ReduceOp::max, {9, 7}, {1, -1.0}) == 0);
  CHECK(reduced<std::int32_t>(DType::int32, ReduceOp::sum, {-1, -1}, {1, 1e300}) == INT32_MIN);
  CHECK(reduced<std::int32_t>(DType::int32, ReduceOp::sum, {5, 5}, {1, nan}) == 0);
  CHECK(reduced<std::int64_t>(DType::int64, ReduceOp::sum, {INT64_MAX, 0}, {1, 2.0}) == INT64_MAX);
  CHECK(reduced<std::int64_t>(DType::int64, ReduceOp::sum, {5, 5}, {1, nan}) == 0);
  // The quotient is truncated before it is scaled.
  CHECK(reduced<std::int16_t>(DType::int16, ReduceOp::average, {3, 4}, {2, 10.0}) == 30);
}

TEST_CASE("reduce: bool sums are or, products are and, and neither is divided") {
  using Values = std::vector<std::uint8_t>;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max}) {
    CHECK(reduced(DType::boolean, op, Values{0, 0, 0}, {3, 1}) == 0);
    CHECK(reduced(DType::boolean, op, Values{0, 1, 0}, {3, 0.1}) == 1);
    CHECK(reduced(DType::boolean, op, Values{1, 2, 255}, {3, 1}) == 1);
  }
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::product}) {
    CHECK(reduced(DType::boolean, op, Values{1, 1, 0}) == 0);
    CHECK(reduced(DType::boolean, op, Values{2, 4, 255}) == 1);
  }
}

/// `value` scaled in place on every target.
template <class T>
T scaled(DType dtype, T value, double factor) {
  std::vector<T> results;
  on_every_target([&] {
    T result = value;
    auto* bytes = reinterpret_cast<std::byte*>(&result);
    scale(dtype, bytes, bytes, 1, factor);
    results.push_back(result);
    CHECK(std::memcmp(&result, results.data(), sizeof(T)) == 0);
  });
  return results.front();
}

TEST_CASE("scale: each type is scaled in its own arithmetic") {
  CHECK(scaled<float>(DType::float32, 1.1F, 0.1) == 1.1F * 0.1F);
  CHECK(scaled<double>(DType::float64, 1.1, 0.1) == 1.1 * 0.1);
  CHECK(scaled<std::uint16_t>(DType::float16, half(3), 0.25) == half(0.75));
  CHECK(scaled<std::uint16_t>(DType::float16, half(60000), 2.0) == 0x7c00);
  CHECK(scaled<std::uint16_t>(DType::bfloat16, brain(3), 0.5) == brain(1.5));
  CHECK(scaled<std::int32_t>(DType::int32, -7, 0.5) == -3);
  CHECK(scaled<std::int64_t>(DType::int64, 7, 0.5) == 3);
  CHECK(scaled<std::int8_t>(DType::int8, 100, 2.0) == 127);
  CHECK(scaled<std::uint8_t>(DType::boolean, 1, 0.25) == 1);
}

TEST_CASE("scale: a factor of one is a copy") {
  const std::int64_t odd = (std::int64_t{1} << 53) + 1;
  CHECK(scaled<std::int64_t>(DType::int64, odd, 1.0) == odd);
  const std::vector<std::byte> in(33, std::byte{0xff});
  std::vector<std::byte> out(33);
  scale(DType::float32, in.data(), out.data(), 8, 1.0);
  CHECK(std::memcmp(in.data(), out.data(), 32) == 0);
  CHECK(out[32] == std::byte{0});
}

TEST_CASE("targets: forcing one does not hide the others, and an unknown name is refused") {
  const std::vector<std::string> targets = reduce_targets();
  REQUIRE_FALSE(targets.empty());
  CHECK_FALSE(force_reduce_target("PDP11"));
  REQUIRE(force_reduce_target(targets.back()));
  CHECK(reduce_targets() == targets);
  CHECK(force_reduce_target(""));
}

}  // namespace
}  // namespace hora
