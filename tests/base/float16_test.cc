// Conversions of the two 16-bit formats: every float16, every tie between two of
// them, and the edges.
#include "runtime/base/float16.h"

#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

namespace hora {
namespace {

TEST_CASE("float16: every value survives a round trip, every NaN becomes the one NaN") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool nan = (bits & 0x7fff) > 0x7c00;
    const auto there = float_from_float16(static_cast<std::uint16_t>(bits));
    if (float16_from_float(there) != (nan ? kFloat16Nan : bits)) FAIL("float16 " << bits);
    if (nan != std::isnan(there)) FAIL("float16 " << bits);
  }
  CHECK(float_from_float16(0x3c00) == 1.0F);
  CHECK(float_from_float16(0xc000) == -2.0F);
  CHECK(float_from_float16(0x03ff) == 1023 * 0x1p-24F);
  CHECK(float_from_float16(0x7bff) == 65504.0F);
  CHECK(float_from_float16(0xfc00) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("float16: between two values the nearer wins, and the even one a tie") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fff) >= 0x7bff) continue;
    const float here = float_from_float16(static_cast<std::uint16_t>(bits));
    const float next = float_from_float16(static_cast<std::uint16_t>(bits + 1));
    const float middle = (here + next) / 2;
    if (float16_from_float(middle) != bits + (bits & 1)) FAIL("the tie above " << bits);
    if (float16_from_float(std::nextafter(middle, here)) != bits) FAIL("below it " << bits);
    if (float16_from_float(std::nextafter(middle, next)) != bits + 1) FAIL("above it " << bits);
  }
}

TEST_CASE("float16: what is too large is infinity, what is too small zero") {
  CHECK(float16_from_float(std::nextafter(65520.0F, 0.0F)) == 0x7bff);
  CHECK(float16_from_float(65520.0F) == 0x7c00);
  CHECK(float16_from_float(-1e30F) == 0xfc00);
  CHECK(float16_from_float(0x1p-24F) == 0x0001);
  CHECK(float16_from_float(std::nextafter(0x1p-25F, 1.0F)) == 0x0001);
  CHECK(float16_from_float(0x1p-25F) == 0x0000);
  CHECK(float16_from_float(-0x1p-149F) == 0x8000);
}

TEST_CASE("bfloat16: rounds to nearest even, and NaN stays NaN") {
  const auto brain = [](std::uint32_t bits) {
    return bfloat16_from_float(std::bit_cast<float>(bits));
  };
  CHECK(float_from_bfloat16(0x4049) == 3.140625F);
  CHECK(brain(0x3f800000) == 0x3f80);
  CHECK(brain(0x3f808000) == 0x3f80);
  CHECK(brain(0x3f808001) == 0x3f81);
  CHECK(brain(0x3f818000) == 0x3f82);
  CHECK(brain(0x7f7fffff) == 0x7f80);
  CHECK(brain(0x80000001) == 0x8000);
  // Truncated, the first of these NaNs would be infinity; rounded like a number, the
  // second would be 0.
  CHECK(brain(0x7f800001) == kBfloat16Nan);
  CHECK(brain(0xffffffff) == kBfloat16Nan);
}

}  // namespace
}  // namespace hora
