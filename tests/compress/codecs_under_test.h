// What the tests of all codecs share: the codecs, inputs of many kinds, and memory with guards.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/mman.h>

#include "compress/codec.h"

namespace hora::testing {

using SharedCodec = std::shared_ptr<const Codec>;

inline SharedCodec codec_of(std::string_view text) {
  auto made = make_codec(text);
  REQUIRE(made);
  return *made;
}

/// Every row of the registry, with the values of its example.
inline std::vector<SharedCodec> all_codecs() {
  std::vector<SharedCodec> all;
  for (const CodecRow& row : codecs()) {
    std::string text(row.name);
    if (!row.example.empty()) text += "(" + std::string(row.example) + ")";
    all.push_back(codec_of(text));
  }
  return all;
}

/// Sizes around vectors, words, columns, blocks and stretches.
inline const std::vector<std::size_t> kSizes = {0,   1,   2,   3,   4,    5,    7,    8,    9,
                                                31,  32,  33,  63,  64,   65,   255,  256,  257,
                                                300, 511, 512, 513, 2047, 2048, 2049, 4095, 65537};

/// Memory whose end, or beginning, lies at a page that nobody may touch.
template <class T>
class Guarded {
 public:
  enum class Side { end, begin };

  explicit Guarded(std::size_t count, Side side = Side::end) : count_(count) {
    const std::size_t bytes = count * sizeof(T);
    const std::size_t inside = (bytes + kPage - 1) / kPage * kPage;
    total_ = inside + 2 * kPage;
    void* memory = ::mmap(nullptr, total_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    if (inside > 0) REQUIRE(::mprotect(memory_ + kPage, inside, PROT_READ | PROT_WRITE) == 0);
    const std::size_t skipped = side == Side::end ? inside - bytes : 0;
    data_ = reinterpret_cast<T*>(memory_ + kPage + skipped);
    if (bytes > 0) std::memset(static_cast<void*>(data_), 0xff, bytes);  // Poison.
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { ::munmap(memory_, total_); }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_[i]; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t count_;
  std::size_t total_ = 0;
  std::byte* memory_ = nullptr;
  T* data_ = nullptr;
};

/// Inputs by kind; heavy: long tails, and a scale that wanders.
inline const std::vector<std::string> kInputs = {"normal", "heavy", "tiny",
                                                 "huge",   "whole", "zero"};

inline std::vector<float> input_of(const std::string& kind, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> heavy(4.0F);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (kind == "normal") values[i] = normal(random);
    if (kind == "heavy") values[i] = heavy(random) * std::ldexp(1.0F, static_cast<int>(i / 97 % 9));
    if (kind == "tiny") values[i] = normal(random) * 0x1p-130F;
    if (kind == "huge") values[i] = std::clamp(normal(random), -2.5F, 2.5F) * 0x1p126F;
    if (kind == "whole") values[i] = static_cast<float>(static_cast<int>(random() % 17) - 8);
  }
  return values;
}

/// What is decoded from what is encoded.
struct RoundTrip {
  std::vector<std::byte> payload;
  std::vector<float> decoded, error;
};

inline RoundTrip round_trip(const Codec& codec, const std::vector<float>& in) {
  RoundTrip trip;
  trip.payload.resize(codec.bound(in.size()));
  trip.error.resize(in.size());
  trip.decoded.resize(in.size());
  trip.payload.resize(codec.encode(in.data(), in.size(), trip.payload.data(), trip.error.data()));
  const auto read = codec.decode(trip.payload, in.size(), trip.decoded.data());
  REQUIRE(read == trip.payload.size());
  return trip;
}

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

/// Bit by bit, all NaN alike.
inline bool same_floats(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (bits_of(a[i]) != bits_of(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

}  // namespace hora::testing
