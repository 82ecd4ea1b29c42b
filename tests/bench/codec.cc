// How fast are the codecs? Elements per second, hot (128 KB of float32, the size of a segment) and
// cold (64 MB), beside memcpy and beside the plain addition of two operands. Reports; asserts
// nothing.
//
//   bench_codec [milliseconds per measurement, default 100]
#include "compress/codec.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "ops/reduce.h"
#include "tests/bench/samples.h"

namespace hora {
namespace {

/// 10^9 elements per second in the fastest tenth of the calls.
template <class Call>
double giga_elements(std::size_t count, double budget_s, const Call& call) {
  const auto calls = static_cast<int>(std::max<std::size_t>(1, (std::size_t{1} << 20) / count));
  return static_cast<double>(count) / bench::fast_call_seconds(calls, budget_s, call) / 1e9;
}

struct Arrays {
  explicit Arrays(std::size_t count) : in(count), other(count), out(count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : in)
      value = normal(random);
    other = in;
  }
  std::vector<float> in, other, out;
};

void report_codec(const Codec& codec, Arrays& arrays, double budget_s) {
  const std::size_t count = arrays.in.size();
  std::vector<std::byte> payload(codec.bound(count));
  const auto run_length = codec.traits().kind == CodecKind::gather ? std::size_t{32768} : count;
  const auto for_runs = [&](const auto& visit) {
    for (std::size_t i = 0; i < count; i += run_length)
      visit(i, std::min(run_length, count - i));
  };
  std::size_t used = 0;
  const auto encode = [&](float* error) {
    used = 0;
    for_runs([&](std::size_t i, std::size_t n) {
      used += codec.encode(arrays.in.data() + i, n, payload.data() + used,
                           error == nullptr ? nullptr : error + i);
    });
  };
  EncodeNotes notes;
  const auto encode_sum = [&] {
    used = 0;
    for_runs([&](std::size_t i, std::size_t n) {
      used += codec.encode_sum(arrays.in.data() + i, arrays.other.data() + i, n,
                               payload.data() + used, arrays.out.data() + i, notes);
    });
  };
  const auto decode = [&](bool adds) {
    std::size_t at = 0;
    for_runs([&](std::size_t i, std::size_t n) {
      const std::span<const std::byte> rest(payload.data() + at, used - at);
      float* const to = arrays.out.data() + i;
      const auto read = adds ? codec.decode_add(rest, n, to) : codec.decode(rest, n, to);
      if (!read) std::abort();
      at += *read;
    });
  };
  const double bare = giga_elements(count, budget_s, [&] { encode(nullptr); });
  const double with_error = giga_elements(count, budget_s, [&] { encode(arrays.out.data()); });
  const double sum = giga_elements(count, budget_s, encode_sum);
  const double plain = giga_elements(count, budget_s, [&] { decode(false); });
  const double added = giga_elements(count, budget_s, [&] { decode(true); });
  std::printf("%-18s %6zu KB %10.2f %12.2f %12.2f %10.2f %12.2f %9.2f\n", codec.text().c_str(),
              count * sizeof(float) >> 10, bare, with_error, sum, plain, added,
              static_cast<double>(used) / static_cast<double>(count));
  std::fflush(stdout);
}

void report_plain(Arrays& arrays, double budget_s) {
  const std::size_t count = arrays.in.size();
  const double copy = giga_elements(count, budget_s, [&] {
    std::memcpy(arrays.out.data(), arrays.in.data(), count * sizeof(float));
  });
  const std::byte* const operands[] = {reinterpret_cast<const std::byte*>(arrays.in.data()),
                                       reinterpret_cast<const std::byte*>(arrays.other.data())};
  const double add = giga_elements(count, budget_s, [&] {
    reduce(DType::float32, ReduceOp::sum, operands, reinterpret_cast<std::byte*>(arrays.out.data()),
           count, Finish{});
  });
  std::printf("%-18s %6zu KB   memcpy %.2f (%.1f GB/s read)   a + b %.2f\n", "float32",
              count * sizeof(float) >> 10, copy, copy * sizeof(float), add);
}

}  // namespace
}  // namespace hora

int main(int argc, char** argv) {
  using namespace hora;
  const double budget_s = (argc > 1 ? std::atof(argv[1]) : 100) / 1000;
  std::printf("10^9 elements/s%15s %10s %12s %12s %10s %12s %9s\n", "", "encode", "and error",
              "of a sum", "decode", "decode-add", "bytes/el.");
  for (const std::size_t count : {std::size_t{32} << 10, std::size_t{16} << 20}) {
    Arrays arrays(count);
    report_plain(arrays, budget_s);
    for (const CodecRow& row : codecs()) {
      const auto codec = make_codec(row.name);
      if (!codec) std::abort();
      report_codec(**codec, arrays, budget_s);
    }
  }
}
