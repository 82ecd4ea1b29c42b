// topk in particular: exactly the largest, ties by index, zeros never, sizes that vary.
#include <algorithm>
#include <limits>
#include <numeric>

#include <hwy/targets.h>

#include "tests/compress/codecs_under_test.h"

namespace hora::testing {
namespace {

std::uint32_t entries_of(const std::vector<std::byte>& payload) {
  std::uint32_t entries = 0;
  std::memcpy(&entries, payload.data(), sizeof entries);
  return entries;
}

/// The indices that sorting selects.
std::vector<std::size_t> selected_by_sorting(const std::vector<float>& in, std::size_t k) {
  std::vector<std::size_t> order(in.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return (bits_of(in[a]) & 0x7fffffff) > (bits_of(in[b]) & 0x7fffffff);
  });
  order.resize(k);
  std::erase_if(order, [&](std::size_t i) { return in[i] == 0; });
  return order;
}

TEST_CASE("topk: keeps exactly what sorting keeps, at its full value, on every instruction set") {
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    for (const char* ratio : {"0.001", "0.01", "0.1", "0.5"}) {
      const SharedCodec codec = codec_of("topk(ratio=" + std::string(ratio) + ")");
      for (const std::string& kind : kInputs) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{100},
                                        std::size_t{257}, std::size_t{5000}}) {
          INFO(codec->text() << " " << kind << " " << count);
          const std::vector<float> in = input_of(kind, count, 41);
          const auto k =
              static_cast<std::size_t>(std::ceil(std::stod(ratio) * static_cast<double>(count)));
          std::vector<float> expected(count, 0.0F);
          for (const std::size_t i : selected_by_sorting(in, k))
            expected[i] = in[i];
          const RoundTrip trip = round_trip(*codec, in);
          REQUIRE(trip.decoded == expected);
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("topk: with the guess of the run before, exactly the largest on every instruction set") {
  // Runs that are alike, that shrink and grow a hundredfold, that are all candidates, or none.
  for (std::int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    for (const char* ratio : {"0.001", "0.01", "0.3"}) {
      const SharedCodec codec = codec_of("topk(ratio=" + std::string(ratio) + ")");
      EncodeNotes notes;
      std::mt19937 random(53);
      for (int run = 0; run < 40; ++run) {
        const std::size_t count = run % 8 == 7 ? 1 + random() % 100 : 32768 - random() % 3;
        const std::string& kind = kInputs[run < 10 ? 0 : random() % kInputs.size()];
        INFO(hwy::TargetName(left & -left)
             << " " << codec->text() << " run " << run << " " << kind);
        std::vector<float> in = input_of(kind, count, static_cast<unsigned>(run));
        if (run % 5 == 4 && kind != "huge") {
          for (float& value : in)
            value *= 100;
        }
        const std::vector<float> added(count, run % 3 == 2 ? 0.25F : 0.0F);
        std::vector<float> error(count);
        std::vector<float> sum(count), expected(count, 0.0F), decoded(count);
        for (std::size_t i = 0; i < count; ++i)
          sum[i] = in[i] + added[i];
        const auto k =
            static_cast<std::size_t>(std::ceil(std::stod(ratio) * static_cast<double>(count)));
        for (const std::size_t i : selected_by_sorting(sum, k))
          expected[i] = sum[i];
        std::vector<std::byte> payload(codec->bound(count));
        payload.resize(
            codec->encode_sum(in.data(), added.data(), count, payload.data(), error.data(), notes));
        REQUIRE(codec->decode(payload, count, decoded.data()) == payload.size());
        REQUIRE(decoded == expected);
        for (std::size_t i = 0; i < count; ++i) {
          if (error[i] != sum[i] - decoded[i]) FAIL("error of " << i);
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_CASE("topk: of equal magnitudes the first are kept, exactly k of them") {
  const SharedCodec codec = codec_of("topk(ratio=0.1)");
  std::vector<float> in(100);
  for (std::size_t i = 0; i < 100; ++i)
    in[i] = i % 2 == 0 ? 3.0F : -3.0F;
  const RoundTrip trip = round_trip(*codec, in);
  CHECK(entries_of(trip.payload) == 10);
  for (std::size_t i = 0; i < 100; ++i)
    CHECK(trip.decoded[i] == (i < 10 ? in[i] : 0.0F));
}

TEST_CASE("topk: a run of zeros has no entries, one of a few has a few") {
  const SharedCodec codec = codec_of("topk(ratio=0.1)");
  CHECK(round_trip(*codec, std::vector<float>(1000)).payload.size() == 4);
  std::vector<float> in(1000);
  in[3] = 1;
  in[999] = -2;
  const RoundTrip trip = round_trip(*codec, in);
  CHECK(trip.payload.size() == 4 + 2 * 8);
  CHECK(trip.decoded == in);
}

TEST_CASE("topk: NaN and infinity are selected before any number") {
  const SharedCodec codec = codec_of("topk(ratio=0.002)");
  std::vector<float> in = input_of("huge", 1000, 43);
  in[500] = -std::numeric_limits<float>::infinity();
  in[700] = std::nanf("");
  const RoundTrip trip = round_trip(*codec, in);
  CHECK(trip.decoded[500] == in[500]);
  CHECK(std::isnan(trip.decoded[700]));
}

TEST_CASE("topk: indices out of range or out of order are refused") {
  const SharedCodec codec = codec_of("topk(ratio=0.02)");
  const std::vector<float> in = input_of("normal", 100, 47);
  const RoundTrip trip = round_trip(*codec, in);
  REQUIRE(entries_of(trip.payload) == 2);
  std::vector<float> out(100);
  const auto refused = [&](std::uint32_t first, std::uint32_t second) {
    std::vector<std::byte> payload = trip.payload;
    std::memcpy(payload.data() + 4, &first, 4);
    std::memcpy(payload.data() + 8, &second, 4);
    return !codec->decode(payload, 100, out.data());
  };
  CHECK_FALSE(refused(3, 99));
  CHECK(refused(3, 100));
  CHECK(refused(3, 3));
  CHECK(refused(4, 3));
  CHECK(refused(0, 0xffffffff));
  std::vector<std::byte> many = trip.payload;
  const std::uint32_t entries = 0x20000000;
  std::memcpy(many.data(), &entries, sizeof entries);
  CHECK_FALSE(codec->decode(many, 100, out.data()));
}

}  // namespace
}  // namespace hora::testing
