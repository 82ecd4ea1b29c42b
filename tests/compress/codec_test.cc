// What must hold for every codec: bounds, errors, zeros, what is not finite, parts, bad payloads.
#include "compress/codec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tests/compress/codecs_under_test.h"

namespace hora::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The most that an element may lose, given the largest magnitude of its block.
float tolerance(const Codec& codec, float value, float largest) {
  const std::string name = codec.text().substr(0, 4);
  constexpr float kSmallest = std::numeric_limits<float>::min();
  if (name == "none") return 0;
  if (name == "bf16") return std::max(std::abs(value) * 0x1p-8F, kSmallest * 0x1p-8F);
  if (name == "fp16") {
    if (std::abs(value) >= 65520.0F) return kInfinity;
    return std::max(std::abs(value) * 0x1p-11F, 0x1p-25F);
  }
  if (name == "int8") {
    return largest < 127 * kSmallest ? largest : largest / 127 * 0.50001F;
  }
  return largest;  // topk: all or nothing.
}

TEST_CASE("every codec: what comes back is within its tolerance, and the error is the rest") {
  for (const SharedCodec& codec : all_codecs()) {
    for (const std::string& kind : kInputs) {
      for (const std::size_t count : kSizes) {
        INFO(codec->text() << " " << kind << " " << count);
        const std::vector<float> in = input_of(kind, count, 7);
        const RoundTrip trip = round_trip(*codec, in);
        REQUIRE(trip.payload.size() <= codec->bound(count));
        REQUIRE(codec->exact(count).value_or(trip.payload.size()) == trip.payload.size());
        REQUIRE((codec->traits().kind != CodecKind::hop || codec->exact(count)));
        const std::size_t block = codec->traits().block;
        for (std::size_t first = 0; first < count; first += block) {
          const std::size_t end = std::min(count, first + block);
          float largest = 0;
          for (std::size_t i = first; i < end; ++i)
            largest = std::max(largest, std::abs(in[i]));
          for (std::size_t i = first; i < end; ++i) {
            const float limit = tolerance(*codec, in[i], largest);
            if (limit == kInfinity) continue;  // Overflow, shown as such.
            if (std::abs(in[i] - trip.decoded[i]) > limit) FAIL("element " << i << ": " << in[i]);
            if (bits_of(trip.error[i]) != bits_of(in[i] - trip.decoded[i])) FAIL("error of " << i);
          }
        }
      }
    }
  }
}

/// The sum of two runs, encoded at once.
RoundTrip encoded_sum(const Codec& codec, const std::vector<float>& in,
                      const std::vector<float>& added, EncodeNotes& notes) {
  RoundTrip trip;
  trip.payload.resize(codec.bound(in.size()));
  trip.error.resize(in.size());
  trip.payload.resize(codec.encode_sum(in.data(), added.data(), in.size(), trip.payload.data(),
                                       trip.error.data(), notes));
  return trip;
}

TEST_CASE("every codec: a sum is encoded as if it had been added first, whatever came before") {
  for (const SharedCodec& codec : all_codecs()) {
    EncodeNotes notes;  // Kept from input to input: a good guess here, a bad one there.
    for (int round = 0; round < 3; ++round) {
      for (const std::string& kind : kInputs) {
        for (const std::size_t count : kSizes) {
          INFO(codec->text() << " " << kind << " " << count << " round " << round);
          const std::vector<float> in = input_of(kind, count, 7);
          const std::vector<float> added =
              input_of(kind, count, 8 + static_cast<unsigned>(round / 2));
          std::vector<float> sum(count);
          for (std::size_t i = 0; i < count; ++i)
            sum[i] = in[i] + added[i];
          const RoundTrip first = round_trip(*codec, sum);
          const RoundTrip at_once = encoded_sum(*codec, in, added, notes);
          REQUIRE(at_once.payload == first.payload);
          REQUIRE(same_floats(at_once.error, first.error));
          const bool finite = std::all_of(first.error.begin(), first.error.end(),
                                          [](float error) { return std::isfinite(error); });
          REQUIRE(std::exchange(notes.overflow, false) == !finite);
          // In place.
          std::vector<float> both = in;
          std::vector<std::byte> payload(codec->bound(count));
          payload.resize(codec->encode_sum(both.data(), added.data(), count, payload.data(),
                                           both.data(), notes));
          REQUIRE(payload == first.payload);
          REQUIRE(same_floats(both, first.error));
          notes.overflow = false;
        }
      }
    }
  }
}

TEST_CASE("every codec: a sum that is not finite is noted") {
  for (const SharedCodec& codec : all_codecs()) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{40}, std::size_t{999}}) {
      for (const float bad : {kInfinity, std::nanf("")}) {
        INFO(codec->text() << " " << bad << " at " << at);
        const std::vector<float> in = input_of("normal", 1000, 3);
        std::vector<float> added = input_of("normal", 1000, 4);
        EncodeNotes notes;
        for (int round = 0; round < 3; ++round) {
          encoded_sum(*codec, in, added, notes);
          CHECK(notes.overflow == false);
        }
        added[at] = bad;
        encoded_sum(*codec, in, added, notes);
        // What holds infinity, or is not encoded at all, may lose nothing.
        if (codec->text().starts_with("topk")) CHECK(notes.overflow);
      }
    }
  }
}

TEST_CASE("every codec: zeros, of either sign, stay zeros and leave nothing") {
  for (const SharedCodec& codec : all_codecs()) {
    for (const float zero : {0.0F, -0.0F}) {
      const RoundTrip trip = round_trip(*codec, std::vector<float>(700, zero));
      for (std::size_t i = 0; i < 700; ++i) {
        if (trip.decoded[i] != 0 || trip.error[i] != 0) FAIL(codec->text() << " element " << i);
      }
    }
  }
}

TEST_CASE("every codec: NaN and infinity come out as what is not finite, wherever they were") {
  for (const SharedCodec& codec : all_codecs()) {
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      for (const std::size_t at : {std::size_t{0}, std::size_t{300}, std::size_t{699}}) {
        INFO(codec->text() << " " << bad << " at " << at);
        std::vector<float> in = input_of("normal", 700, 3);
        in[at] = bad;
        const RoundTrip trip = round_trip(*codec, in);
        CHECK_FALSE(std::isfinite(trip.decoded[at]));
        if (std::isnan(bad)) CHECK(std::isnan(trip.decoded[at]));
        // Only the block is touched.
        const std::size_t block = codec->traits().block;
        for (std::size_t i = 0; i < in.size(); ++i) {
          if (i / block != at / block) REQUIRE(std::isfinite(trip.decoded[i]));
        }
      }
    }
  }
}

TEST_CASE("every codec: reads and writes exactly its runs, at either edge of the memory") {
  for (const SharedCodec& codec : all_codecs()) {
    for (const std::size_t count : kSizes) {
      for (const auto side : {Guarded<float>::Side::end, Guarded<float>::Side::begin}) {
        INFO(codec->text() << " " << count);
        const auto byte_side = side == Guarded<float>::Side::end ? Guarded<std::byte>::Side::end
                                                                 : Guarded<std::byte>::Side::begin;
        Guarded<float> in(count, side), error(count, side), out(count, side);
        const std::vector<float> values = input_of("heavy", count, 5);
        std::copy(values.begin(), values.end(), in.data());
        const RoundTrip expected = round_trip(*codec, values);
        Guarded<std::byte> payload(expected.payload.size(), byte_side);
        REQUIRE(codec->encode(in.data(), count, payload.data(), error.data()) == payload.size());
        REQUIRE(std::equal(expected.payload.begin(), expected.payload.end(), payload.data()));
        REQUIRE(codec->decode({payload.data(), payload.size()}, count, out.data()) ==
                payload.size());
        REQUIRE(same_floats({out.data(), count}, expected.decoded));
        REQUIRE(codec->decode_add({payload.data(), payload.size()}, count, out.data()) ==
                payload.size());
        // The errors may take the place of the input.
        REQUIRE(codec->encode(in.data(), count, payload.data(), in.data()) == payload.size());
        REQUIRE(same_floats({in.data(), count}, expected.error));
        REQUIRE(std::equal(expected.payload.begin(), expected.payload.end(), payload.data()));
      }
    }
  }
}

TEST_CASE("every codec: asking for errors changes no byte, and adding is decoding and adding") {
  for (const SharedCodec& codec : all_codecs()) {
    for (const std::size_t count : kSizes) {
      INFO(codec->text() << " " << count);
      const std::vector<float> in = input_of("normal", count, 11);
      const RoundTrip trip = round_trip(*codec, in);
      std::vector<std::byte> bare(codec->bound(count));
      bare.resize(codec->encode(in.data(), count, bare.data(), nullptr));
      REQUIRE(bare == trip.payload);
      std::vector<float> sum = input_of("heavy", count, 12);
      std::vector<float> expected = sum;
      for (std::size_t i = 0; i < count; ++i)
        expected[i] += trip.decoded[i];
      REQUIRE(codec->decode_add(trip.payload, count, sum.data()) == trip.payload.size());
      REQUIRE(same_floats(sum, expected));
    }
  }
}

TEST_CASE("hop codecs: a run encoded in parts that begin on blocks is the run encoded whole") {
  for (const SharedCodec& codec : all_codecs()) {
    if (codec->traits().kind != CodecKind::hop) continue;
    const std::vector<float> in = input_of("heavy", 5000, 13);
    const RoundTrip whole = round_trip(*codec, in);
    for (const std::size_t part : {std::size_t{256}, std::size_t{1024}, kCodecStretch}) {
      std::vector<std::byte> payload(codec->bound(in.size()));
      std::size_t at = 0;
      for (std::size_t i = 0; i < in.size(); i += part) {
        at += codec->encode(in.data() + i, std::min(part, in.size() - i), payload.data() + at,
                            nullptr);
      }
      payload.resize(at);
      CHECK(payload == whole.payload);
    }
  }
}

TEST_CASE("every codec: the bound holds for runs that begin on blocks, together") {
  std::mt19937 random(17);
  for (const SharedCodec& codec : all_codecs()) {
    for (int round = 0; round < 50; ++round) {
      const std::size_t blocks = 1 + random() % 40;
      std::size_t used = 0;
      for (std::size_t b = 0; b < blocks;) {
        const std::size_t span = std::min<std::size_t>(blocks - b, 1 + random() % 4);
        const std::size_t count = span * 256 - (random() % 2 == 0 ? 0 : random() % 256);
        used += round_trip(*codec, input_of("normal", count, round)).payload.size();
        b += span;
      }
      CHECK(used <= codec->bound(blocks * 256));
    }
  }
}

TEST_CASE("every codec: a payload that ends too early is no payload") {
  for (const SharedCodec& codec : all_codecs()) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{255}, std::size_t{600}}) {
      const RoundTrip trip = round_trip(*codec, input_of("normal", count, 19));
      std::vector<float> out(count);
      for (std::size_t end = 0; end < trip.payload.size(); ++end) {
        const std::span<const std::byte> cut(trip.payload.data(), end);
        if (codec->decode(cut, count, out.data())) FAIL(codec->text() << " took " << end);
        if (codec->decode_add(cut, count, out.data())) FAIL(codec->text() << " took " << end);
      }
    }
  }
}

TEST_CASE("every codec: bytes of anybody are refused or decoded, within bounds") {
  std::mt19937 random(23);
  for (const SharedCodec& codec : all_codecs()) {
    for (int round = 0; round < 2000; ++round) {
      const std::size_t count = random() % 300;
      Guarded<std::byte> payload(random() % (codec->bound(count) + 8));
      for (std::size_t i = 0; i < payload.size(); ++i)
        payload[i] = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
      Guarded<float> out(count);
      const auto read = codec->decode({payload.data(), payload.size()}, count, out.data());
      if (read && *read > payload.size()) FAIL(codec->text() << " read beyond the end");
    }
  }
}

TEST_CASE("hop codecs: repeated with the error kept, what was sent adds up to what was given") {
  for (const SharedCodec& codec : all_codecs()) {
    const std::size_t count = 700;
    std::vector<float> residual(count, 0.0F);
    std::vector<double> given(count), sent(count);
    for (unsigned step = 0; step < 100; ++step) {
      std::vector<float> in = input_of("normal", count, step);
      for (std::size_t i = 0; i < count; ++i) {
        given[i] += in[i];
        in[i] += residual[i];
      }
      const RoundTrip trip = round_trip(*codec, in);
      residual = trip.error;
      for (std::size_t i = 0; i < count; ++i)
        sent[i] += trip.decoded[i];
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (std::abs(given[i] - sent[i] - residual[i]) > 1e-4) FAIL(codec->text() << " loses " << i);
    }
  }
}

}  // namespace
}  // namespace hora::testing
