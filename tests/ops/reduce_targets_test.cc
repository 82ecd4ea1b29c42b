// Every target writes the bytes that the oracle writes: random calls, all operand counts, all
// 16-bit floats.
#include <algorithm>
#include <bit>
#include <random>
#include <sstream>

#include "tests/ops/reduce_support.h"

namespace hora {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t end) {
  return random() % end;
}

/// "" or where two buffers differ first.
std::string difference(DType dtype, const Bytes& expected, const Bytes& found) {
  const auto [e, f] = std::mismatch(expected.begin(), expected.end(), found.begin());
  if (e == expected.end()) return "";
  const std::size_t size = size_of(dtype);
  const auto offset = static_cast<std::size_t>(e - expected.begin()) / size * size;
  std::uint64_t expected_bits = 0, found_bits = 0;
  std::memcpy(&expected_bits, expected.data() + offset, size);
  std::memcpy(&found_bits, found.data() + offset, size);
  std::ostringstream out;
  out << "at byte " << offset << " expected " << std::hex << expected_bits << ", found "
      << found_bits;
  return out.str();
}

/// The bits of a number near zero: k/64 for |k| <= 1000, truncated for integers.
std::uint64_t small_number(Random& random, DType dtype) {
  const double value = (static_cast<double>(below(random, 2001)) - 1000) / 64;
  switch (dtype) {
    case DType::float16:
      return half(value);
    case DType::bfloat16:
      return brain(value);
    case DType::float32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case DType::float64:
      return std::bit_cast<std::uint64_t>(value);
    default:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
}

/// Elements of a type from any start at element alignment, with bytes after the end that must stay.
class Buffer {
 public:
  Buffer(Random& random, DType dtype, std::size_t count)
      : start_(below(random, 64 / size_of(dtype)) * size_of(dtype)),
        bytes_(count * size_of(dtype) + 192) {
    const std::size_t size = size_of(dtype);
    // Small numbers only, any bits only, or every eighth element any bits.
    const std::size_t wild = std::array<std::size_t, 3>{1000000, 1, 8}[below(random, 3)];
    for (std::size_t at = 0; at + size <= bytes_.size(); at += size) {
      const std::uint64_t bits = below(random, wild) == 0 ? random() : small_number(random, dtype);
      std::memcpy(bytes_.data() + at, &bits, size);
    }
  }
  [[nodiscard]] std::byte* data() { return bytes_.data() + start_; }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }
  void restore(const Bytes& bytes) { std::copy(bytes.begin(), bytes.end(), bytes_.begin()); }

 private:
  std::size_t start_;
  Bytes bytes_;
};

struct Call {
  DType dtype{};
  ReduceOp op{};
  Finish finish;
  std::size_t operands = 1;
  std::size_t count = 0;
  std::size_t out = 0;  ///< Which operand is overwritten; `operands`: none.
};

std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << to_string(call.dtype) << " " << to_string(call.op) << " of " << call.operands
             << " x " << call.count << " into " << call.out << ", divisor " << call.finish.divisor
             << ", postscale " << call.finish.postscale;
}

/// Makes operands, then checks that every target writes what the oracle writes, and nothing else.
void check_call(Random& random, const Call& call) {
  std::vector<Buffer> buffers;
  for (std::size_t k = 0; k <= call.operands; ++k) {
    buffers.emplace_back(random, call.dtype, call.count);
  }
  std::vector<const std::byte*> inputs;
  for (std::size_t k = 0; k < call.operands; ++k)
    inputs.push_back(buffers[k].data());
  Buffer& out = buffers[call.out];
  const Bytes before = out.bytes();
  reduce_scalar(call.dtype, call.op, inputs, out.data(), call.count, call.finish);
  const Bytes expected = out.bytes();
  on_every_target([&] {
    out.restore(before);
    reduce(call.dtype, call.op, inputs, out.data(), call.count, call.finish);
    const std::string problem = difference(call.dtype, expected, out.bytes());
    INFO(call);
    CHECK(problem == "");
  });
}

std::size_t random_count(Random& random) {
  constexpr std::size_t kEnds[] = {3, 70, 700, 9000};
  return below(random, kEnds[below(random, 4)]);
}

Finish random_finish(Random& random, std::size_t operands) {
  const std::int64_t divisors[] = {1, 1, static_cast<std::int64_t>(operands), 7, 64, 33554433};
  constexpr double kScales[] = {1.0, 1.0, 0.5, 1.0 / 3, -2.75, 1e30, 0.0};
  return {divisors[below(random, 6)], kScales[below(random, 7)]};
}

TEST_CASE("reduce: random calls equal the oracle in every byte") {
  constexpr std::uint64_t kFirstSeed = 20240229;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + 3000; ++seed) {
    Random random(seed);
    Call call;
    call.dtype = kDTypes[below(random, std::size(kDTypes))];
    call.op = kReduceOps[below(random, std::size(kReduceOps))];
    call.operands = 1 + below(random, below(random, 10) == 0 ? 40 : 9);
    call.count = random_count(random);
    call.finish = random_finish(random, call.operands);
    call.out = below(random, call.operands + 1);
    INFO("seed " << seed);
    check_call(random, call);
  }
}

TEST_CASE("reduce: every type, operation and number of operands equals the oracle") {
  Random random(7);
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : kReduceOps) {
      for (std::size_t operands = 1; operands <= 9; ++operands) {
        check_call(random, {dtype, op, {}, operands, 261, operands});
        const Finish finish{static_cast<std::int64_t>(operands), 0.75};
        check_call(random, {dtype, op, finish, operands, 261, operands - 1});
      }
    }
  }
}

TEST_CASE("reduce: every 16-bit float with telling partners equals the oracle") {
  // Zeros, denormals, ones, the largest, infinities and NaNs of both formats.
  const std::uint16_t telling[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x03ff, 0x0400,
                                   0x1001, 0x3c00, 0xbc01, 0x3f80, 0xbf81, 0x4000, 0x7bff, 0xfbff,
                                   0x7c00, 0xfc00, 0x7c01, 0xfe00, 0x7f7f, 0x7f80, 0xff80, 0xffff};
  std::vector<std::uint16_t> all(0x10000), partner(all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::uint16_t>(i);
  const std::vector<const std::byte*> inputs{reinterpret_cast<const std::byte*>(all.data()),
                                             reinterpret_cast<const std::byte*>(partner.data())};
  Bytes expected(2 * all.size()), found(expected.size());
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      for (const std::uint16_t value : telling) {
        std::fill(partner.begin(), partner.end(), value);
        // A scale with many digits makes every kind of rounding, also among the denormals.
        const Finish finish{1, (value & 1) != 0 ? 0x1.23456p-9 : 1.0};
        reduce_scalar(dtype, op, inputs, expected.data(), all.size(), finish);
        on_every_target([&] {
          reduce(dtype, op, inputs, found.data(), all.size(), finish);
          const std::string problem = difference(dtype, expected, found);
          INFO(to_string(dtype) << " " << to_string(op) << " with " << value);
          CHECK(problem == "");
        });
      }
    }
  }
}

}  // namespace
}  // namespace hora
