// int8 in particular: layout, scale, symmetric codes, special blocks.
#include <limits>

#include "tests/compress/codecs_under_test.h"

namespace hora::testing {
namespace {

float scale_of(const std::vector<std::byte>& payload, std::size_t block = 0) {
  float scale = 0;
  std::memcpy(&scale, payload.data() + block * 260, sizeof scale);
  return scale;
}

TEST_CASE("int8: 260 bytes per block of 256, words for the rest") {
  const SharedCodec codec = codec_of("int8");
  for (const auto& [count, bytes] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 0}, {1, 8}, {4, 8}, {5, 12}, {255, 260}, {256, 260}, {257, 268}, {1024, 1040}}) {
    CHECK(round_trip(*codec, input_of("normal", count, 1)).payload.size() == bytes);
    CHECK(codec->bound(count) >= bytes);
  }
}

TEST_CASE("int8: codes lie in columns, and both ends are exact") {
  const SharedCodec codec = codec_of("int8");
  std::vector<float> in(256);
  for (std::size_t i = 0; i < 256; ++i)
    in[i] = static_cast<float>(static_cast<int>(i) - 128);
  in[0] = -127;
  const RoundTrip trip = round_trip(*codec, in);
  CHECK(scale_of(trip.payload) == 1.0F);
  for (std::size_t i = 0; i < 256; ++i) {
    const std::byte code = trip.payload[4 + i % 64 * 4 + i / 64];
    REQUIRE(static_cast<std::int8_t>(code) == static_cast<int>(in[i]));
  }
  CHECK(trip.decoded == in);
}

TEST_CASE("int8: rounds to nearest even, the same for either sign") {
  const SharedCodec codec = codec_of("int8");
  const RoundTrip trip = round_trip(*codec, {127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, -127});
  CHECK(trip.decoded == std::vector<float>{127, 0, 2, 2, 0, -2, -2, -127});
}

TEST_CASE("int8: a block with a number that is not finite is NaN, and its neighbours are not") {
  const SharedCodec codec = codec_of("int8");
  std::vector<float> in = input_of("normal", 800, 2);
  in[300] = std::numeric_limits<float>::infinity();
  const RoundTrip trip = round_trip(*codec, in);
  CHECK(std::isnan(scale_of(trip.payload, 1)));
  for (std::size_t i = 0; i < 800; ++i)
    REQUIRE(std::isnan(trip.decoded[i]) == (i / 256 == 1));
  // The one NaN, so that the bytes of a result depend on no processor.
  CHECK(bits_of(trip.decoded[256]) == 0x7fc00000);
}

TEST_CASE("int8: a block too small to be divided is left to the residual") {
  const SharedCodec codec = codec_of("int8");
  constexpr float kSmallest = std::numeric_limits<float>::min();
  for (const float value : {0x1p-149F, kSmallest, kSmallest * 126.9F}) {
    const RoundTrip trip = round_trip(*codec, {value, -value, 0});
    CHECK(scale_of(trip.payload) == 0);
    CHECK(trip.decoded == std::vector<float>{0, 0, 0});
    CHECK(trip.error == std::vector<float>{value, -value, 0});
  }
  const RoundTrip trip = round_trip(*codec, {kSmallest * 127, 0});
  CHECK(trip.decoded[0] == kSmallest * 127);
}

TEST_CASE("int8: the largest numbers that there are do not overflow") {
  const SharedCodec codec = codec_of("int8");
  constexpr float kLargest = std::numeric_limits<float>::max();
  const RoundTrip trip = round_trip(*codec, {kLargest, -kLargest, kLargest / 2, 1.0F});
  for (const float value : trip.decoded)
    CHECK(std::isfinite(value));
  CHECK(trip.decoded[0] == Approx(kLargest));
  CHECK(trip.decoded[3] == 0);
}

TEST_CASE("int8: noise of 1.4e-4 on a heavy-tailed input, as blocks of 256 promise") {
  const std::vector<float> in = input_of("heavy", 1 << 18, 3);
  const RoundTrip trip = round_trip(*codec_of("int8"), in);
  double energy = 0;
  double lost = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    energy += static_cast<double>(in[i]) * in[i];
    lost += static_cast<double>(trip.error[i]) * trip.error[i];
  }
  CHECK(lost / energy < 3e-4);
  CHECK(lost / energy > 3e-5);
}

}  // namespace
}  // namespace hora::testing
