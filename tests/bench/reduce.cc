// How fast are the reduction kernels? Source bytes per second, hot (128 KB operands, the size of a
// segment) and cold (64 MB operands), for `reduce` on each target, against the loop that anyone
// would write and the compiler's vectorizer. Reports; asserts nothing.
//
//   bench_reduce [milliseconds per measurement, default 100]
#include "ops/reduce.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/base/float16.h"
#include "tests/bench/samples.h"

namespace hora {
namespace {

using Inputs = std::span<const std::byte* const>;

/// The loop that anyone would write, with the number of operands known.
template <class T, T (*add)(T, T), std::size_t... k>
void plain_loop_over(Inputs inputs, std::byte* out, std::size_t count,
                     std::index_sequence<0, k...>) {
  const T* in[] = {reinterpret_cast<const T*>(inputs[0]), reinterpret_cast<const T*>(inputs[k])...};
  auto* __restrict to = reinterpret_cast<T*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    T sum = in[0][i];
    ((sum = add(sum, in[k][i])), ...);
    to[i] = sum;
  }
}

template <class T, T (*add)(T, T)>
void plain_loop(Inputs inputs, std::byte* out, std::size_t count) {
  const auto run = [&]<std::size_t n>(std::integral_constant<std::size_t, n>) {
    plain_loop_over<T, add>(inputs, out, count, std::make_index_sequence<n>{});
  };
  switch (inputs.size()) {
    case 2:
      return run(std::integral_constant<std::size_t, 2>{});
    case 3:
      return run(std::integral_constant<std::size_t, 3>{});
    case 4:
      return run(std::integral_constant<std::size_t, 4>{});
    case 5:
      return run(std::integral_constant<std::size_t, 5>{});
    default:
      return run(std::integral_constant<std::size_t, 8>{});
  }
}

float add_float(float a, float b) {
  return a + b;
}
std::int8_t add_int8(std::int8_t a, std::int8_t b) {
  return static_cast<std::int8_t>(a + b);
}
std::uint16_t add_float16(std::uint16_t a, std::uint16_t b) {
  return float16_from_float(float_from_float16(a) + float_from_float16(b));
}
std::uint16_t add_bfloat16(std::uint16_t a, std::uint16_t b) {
  return bfloat16_from_float(float_from_bfloat16(a) + float_from_bfloat16(b));
}

void run_plain_loop(DType dtype, Inputs inputs, std::byte* out, std::size_t count) {
  switch (dtype) {
    case DType::float32:
      return plain_loop<float, add_float>(inputs, out, count);
    case DType::float16:
      return plain_loop<std::uint16_t, add_float16>(inputs, out, count);
    case DType::bfloat16:
      return plain_loop<std::uint16_t, add_bfloat16>(inputs, out, count);
    default:
      return plain_loop<std::int8_t, add_int8>(inputs, out, count);
  }
}

/// Operands and result of `bytes` each, page-aligned and touched, as slots of shared memory are.
class Operands {
 public:
  Operands(std::size_t operands, std::size_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, (operands + 1) * bytes))) {
    if (memory_ == nullptr) std::abort();
    // Every byte 1: a small number in each of the types.
    std::memset(memory_.get(), 1, (operands + 1) * bytes);
    for (std::size_t k = 0; k < operands; ++k)
      inputs_.push_back(memory_.get() + (k + 1) * bytes);
  }
  [[nodiscard]] Inputs inputs() const { return inputs_; }
  [[nodiscard]] std::byte* out() { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::vector<const std::byte*> inputs_;
};

/// GB of operands per second in the fastest tenth of the calls: the machine has other things to do.
template <class Call>
double gigabytes_per_second(std::size_t source_bytes, double budget_s, Call call) {
  // Long enough that reading the clock is nothing.
  const auto calls =
      static_cast<int>(std::max<std::size_t>(1, (std::size_t{4} << 20) / source_bytes));
  return static_cast<double>(source_bytes) / bench::fast_call_seconds(calls, budget_s, call) / 1e9;
}

void report(DType dtype, std::size_t operands, std::size_t bytes, const Finish& finish,
            double budget_s) {
  Operands memory(operands, bytes);
  const std::size_t count = bytes / size_of(dtype);
  const std::size_t source_bytes = operands * bytes;
  const bool averages = !finish.is_identity();
  std::printf("%-9s %zu x %5zu KB %-8s", std::string(to_string(dtype)).c_str(), operands,
              bytes >> 10, averages ? "average" : "sum");
  const ReduceOp op = averages ? ReduceOp::average : ReduceOp::sum;
  for (const std::string& target : reduce_targets()) {
    force_reduce_target(target);
    const double speed = gigabytes_per_second(source_bytes, budget_s, [&] {
      reduce(dtype, op, memory.inputs(), memory.out(), count, finish);
    });
    std::printf(" %8.2f", speed);
  }
  force_reduce_target("");
  if (!averages) {
    const double speed = gigabytes_per_second(source_bytes, budget_s, [&] {
      run_plain_loop(dtype, memory.inputs(), memory.out(), count);
    });
    std::printf(" %10.2f", speed);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace hora

int main(int argc, char** argv) {
  using namespace hora;
  const double budget_s = (argc > 1 ? std::atof(argv[1]) : 100) / 1000;
  std::printf("GB/s of operands%21s", "");
  for (const std::string& target : reduce_targets())
    std::printf(" %8s", target.c_str());
  std::printf(" %10s\n", "plain loop");
  for (const std::size_t bytes : {std::size_t{128} << 10, std::size_t{64} << 20}) {
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::int8}) {
      for (const std::size_t operands : {2, 3, 4, 5, 8}) {
        report(dtype, operands, bytes, Finish{}, budget_s);
      }
      report(dtype, 4, bytes, Finish{4, 1.0}, budget_s);
      report(dtype, 3, bytes, Finish{3, 1.0}, budget_s);
    }
  }
}
