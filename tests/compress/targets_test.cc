// Every instruction set writes the bytes that the scalar oracle writes.
#include <functional>

#include <hwy/targets.h>

#include "compress/scalar.h"
#include "tests/compress/codecs_under_test.h"

namespace hora::testing {
namespace {

using Encode = void (*)(const float*, std::size_t, std::byte*, float*);
using Decode = void (*)(const std::byte*, std::size_t, float*);

struct Oracle {
  const char* codec;
  Encode encode;
  Decode decode_add;
};
constexpr Oracle kOracles[] = {
    {"int8", encode_int8_scalar, decode_add_int8_scalar},
    {"fp16", encode_fp16_scalar, decode_add_fp16_scalar},
    {"bf16", encode_bf16_scalar, decode_add_bf16_scalar},
};

/// Runs of all lengths: ordinary numbers, with a part that may be anything.
std::vector<float> wild_input(std::mt19937& random) {
  static const std::vector<std::string> kinds = {"normal", "heavy", "tiny", "huge", "whole"};
  std::vector<float> in =
      input_of(kinds[random() % kinds.size()], random() % 1500, static_cast<unsigned>(random()));
  const std::size_t wild = std::vector<std::size_t>{1000000, 400, 3}[random() % 3];
  for (float& value : in) {
    if (random() % wild == 0) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  }
  return in;
}

TEST_CASE("targets: codecs write what their oracles write, on every instruction set") {
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    for (const Oracle& oracle : kOracles) {
      const SharedCodec codec = codec_of(oracle.codec);
      std::mt19937 random(29);
      for (int round = 0; round < 400; ++round) {
        INFO(hwy::TargetName(left & -left) << " " << oracle.codec << " round " << round);
        const std::vector<float> in = wild_input(random);
        const RoundTrip trip = round_trip(*codec, in);
        std::vector<std::byte> payload(codec->bound(in.size()));
        std::vector<float> error(in.size());
        oracle.encode(in.data(), in.size(), payload.data(), error.data());
        payload.resize(trip.payload.size());
        REQUIRE(payload == trip.payload);
        REQUIRE(same_floats(error, trip.error));

        std::vector<float> sum = input_of("normal", in.size(), 31);
        std::vector<float> expected = sum;
        REQUIRE(codec->decode_add(trip.payload, in.size(), sum.data()));
        oracle.decode_add(payload.data(), in.size(), expected.data());
        REQUIRE(same_floats(sum, expected));
        std::fill(expected.begin(), expected.end(), 0.0F);
        oracle.decode_add(payload.data(), in.size(), expected.data());
        for (std::size_t i = 0; i < in.size(); ++i) {
          if (trip.decoded[i] != expected[i] && !std::isnan(expected[i])) FAIL("element " << i);
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("targets: int8 decodes as its oracle does, bit by bit") {
  const SharedCodec codec = codec_of("int8");
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    std::mt19937 random(37);
    for (int round = 0; round < 200; ++round) {
      const RoundTrip trip = round_trip(*codec, wild_input(random));
      std::vector<float> expected(trip.decoded.size());
      decode_int8_scalar(trip.payload.data(), expected.size(), expected.data());
      REQUIRE(std::ranges::equal(expected, trip.decoded, std::equal_to<>{}, bits_of, bits_of));
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace
}  // namespace hora::testing
