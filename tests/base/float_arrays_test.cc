// Arrays of floats against float16.h, one element at a time, on every target.
#include "runtime/base/float_arrays.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <catch2/catch.hpp>
#include <hwy/targets.h>

#include "runtime/base/float16.h"

namespace hora {
namespace {

/// body() once on every target that this machine has.
template <class Body>
void on_every_target(const Body& body) {
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    INFO("target " << hwy::TargetName(left & -left));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

/// Any bits at all, so also NaN, infinity and denormals; a third of them near 1.
std::vector<float> wild_floats(std::mt19937& random, std::size_t count) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = random() % 3 == 0 ? static_cast<float>(random() % 1000) / 256
                              : std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  }
  return values;
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST_CASE("float arrays: narrow and widen as the scalar functions do, on every target") {
  std::mt19937 random(1);
  for (const std::size_t count : {0, 1, 7, 8, 9, 16, 31, 1000, 65536}) {
    const std::vector<float> values = wild_floats(random, count);
    std::vector<std::uint16_t> any(count);
    for (std::uint16_t& bits : any)
      bits = static_cast<std::uint16_t>(random());
    on_every_target([&] {
      std::vector<std::uint16_t> half(count + 1, 0xabcd), brain(count + 1, 0xabcd);
      narrow(values.data(), DType::float16, reinterpret_cast<std::byte*>(half.data()), count);
      narrow(values.data(), DType::bfloat16, reinterpret_cast<std::byte*>(brain.data()), count);
      std::vector<float> wide(count + 1, -1), wider(count + 1, -1);
      widen(DType::float16, reinterpret_cast<const std::byte*>(any.data()), wide.data(), count);
      widen(DType::bfloat16, reinterpret_cast<const std::byte*>(any.data()), wider.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        if (half[i] != float16_from_float(values[i])) FAIL("float16 " << values[i]);
        if (brain[i] != bfloat16_from_float(values[i])) FAIL("bfloat16 " << values[i]);
        if (!same(wide[i], float_from_float16(any[i]))) FAIL("from float16 " << any[i]);
        if (!same(wider[i], float_from_bfloat16(any[i]))) FAIL("from bfloat16 " << any[i]);
      }
      CHECK(half[count] == 0xabcd);
      CHECK(brain[count] == 0xabcd);
      CHECK(wide[count] == -1);
      CHECK(wider[count] == -1);
    });
  }
}

TEST_CASE("float arrays: float32 is copied, float64 is rounded once") {
  const std::vector<double> doubles = {1.0, 1 + 0x1p-24, 1e300, -0.0, 0x1p-149};
  std::vector<float> floats(doubles.size());
  widen(DType::float64, reinterpret_cast<const std::byte*>(doubles.data()), floats.data(), 5);
  CHECK(floats[0] == 1.0F);
  CHECK(floats[1] == 1.0F);
  CHECK(floats[2] == std::numeric_limits<float>::infinity());
  CHECK(same(floats[3], -0.0F));
  CHECK(floats[4] == 0x1p-149F);
  std::vector<float> copy(5);
  widen(DType::float32, reinterpret_cast<const std::byte*>(floats.data()), copy.data(), 5);
  CHECK(copy == floats);
  std::vector<double> back(5);
  narrow(copy.data(), DType::float64, reinterpret_cast<std::byte*>(back.data()), 5);
  CHECK(back[4] == 0x1p-149);
}

TEST_CASE("float arrays: one number that is not finite is found anywhere") {
  on_every_target([] {
    for (const std::size_t count : {1, 5, 8, 17, 300}) {
      std::vector<float> values(count, std::numeric_limits<float>::max());
      CHECK(all_finite(values.data(), count));
      for (std::size_t i = 0; i < count; ++i) {
        for (const float bad : {std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(), std::nanf("")}) {
          values[i] = bad;
          if (all_finite(values.data(), count)) FAIL("missed " << bad << " at " << i);
        }
        values[i] = -0.0F;
      }
    }
    CHECK(all_finite(nullptr, 0));
  });
}

TEST_CASE("float arrays: a copy has every bit, wherever it lies, and says whether all are finite") {
  std::mt19937 random(7);
  for (const std::size_t count : {0, 1, 15, 16, 17, 1000, 16383, 16384, 16385, 40001}) {
    std::vector<float> values(count);
    for (float& value : values)
      value = static_cast<float>(random() % 1000) - 500;
    for (const std::size_t shift : {0, 1, 7, 15}) {
      on_every_target([&] {
        std::vector<float> out(count + 32, -1);
        CHECK(copy_floats(values.data(), out.data() + shift, count));
        for (std::size_t i = 0; i < out.size(); ++i) {
          const bool inside = i >= shift && i < shift + count;
          if (!same(out[i], inside ? values[i - shift] : -1)) FAIL(count << " at " << i);
        }
      });
    }
    for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
      if (at >= count) continue;
      std::vector<float> bad = values, out(count);
      bad[at] = std::bit_cast<float>(0xffc01234u);
      on_every_target([&] {
        CHECK_FALSE(copy_floats(bad.data(), out.data(), count));
        CHECK(same(out[at], bad[at]));
      });
    }
  }
}

}  // namespace
}  // namespace hora
