// bench_hora: Hora's all-reduce without Python, through the Runtime that the bindings use.
//
//   horarun -np P bench_hora [CODEC] BYTES:ITERATIONS,...
//
// With a codec what is timed is another sum: of normally distributed numbers, because zeros are too
// easy for it, and not in place, because they would be worn out.
//
// One name per size, as a training loop has one per gradient: after its first call a tensor is
// known to the coordinator by a bit.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "elastic/control.h"
#include "runtime/base/config.h"
#include "runtime/runtime.h"
#include "tests/bench/driver.h"

namespace {

using hora::Result;

/// The value, or the end of the program.
template <typename T>
T must(Result<T> result, const char* what) {
  if (!result) {
    std::fprintf(stderr, "bench_hora: %s: %s\n", what, result.error().message.c_str());
    std::_Exit(1);
  }
  return std::move(*result);
}

void allreduce(hora::Runtime& runtime, const std::string& name, const std::string& codec,
               const float* input, float* output, std::size_t count) {
  hora::Submission call;
  call.request.kind = hora::Kind::allreduce;
  call.request.name = name;
  call.request.dtype = hora::DType::float32;
  call.request.op = hora::ReduceOp::sum;
  call.request.shape = {static_cast<std::int64_t>(count)};
  call.request.codec = codec;
  call.input = input;
  call.output = output;
  call.caller_waits = true;
  const hora::Handle handle = must(runtime.submit(std::move(call)), "submit");
  const hora::Deadline deadline = hora::Deadline::after(std::chrono::seconds(60));
  const Result<void> outcome = runtime.wait(handle, deadline, [] { return false; });
  if (!outcome) {
    std::fprintf(stderr, "bench_hora: %s\n", outcome.error().message.c_str());
    std::_Exit(1);
  }
}

/// Normally distributed numbers, and their sum with a codec.
class LossySum {
 public:
  LossySum(hora::Runtime& runtime, std::string codec, int rank, std::size_t count)
      : runtime_(runtime), codec_(std::move(codec)), input_(count) {
    std::mt19937 random(static_cast<unsigned>(rank));
    std::normal_distribution<float> normal;
    for (float& number : input_)
      number = normal(random);
  }

  void run(float* output) const {
    const std::string name = "lossy." + std::to_string(input_.size());
    allreduce(runtime_, name, codec_, input_.data(), output, input_.size());
  }

  /// One checked call. The largest hundredth of normally distributed numbers is 8 % of their power,
  /// so what is lost by topk is 96 % of their norm.
  void check(float* output) const {
    std::vector<float> exact(input_.size());
    allreduce(runtime_, "exact." + std::to_string(input_.size()), "", input_.data(), exact.data(),
              exact.size());
    run(output);
    double lost = 0, power = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      lost += std::pow(static_cast<double>(output[i]) - static_cast<double>(exact[i]), 2);
      power += std::pow(static_cast<double>(exact[i]), 2);
    }
    if (std::sqrt(lost / power) > (codec_.starts_with("topk") ? 0.98 : 0.05)) {
      std::fprintf(stderr, "bench_hora: %s is far from the sum\n", codec_.c_str());
      std::_Exit(1);
    }
  }

 private:
  hora::Runtime& runtime_;
  std::string codec_;
  std::vector<float> input_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<hora::bench::Step> steps = hora::bench::steps_of(argc, argv);
  const hora::Lookup lookup = hora::environment();
  const hora::Config config = must(hora::read_config(lookup), "configuration");
  const hora::Placement placement = must(hora::read_placement(lookup), "placement");
  const std::unique_ptr<hora::Runtime> runtime =
      must(hora::Runtime::start(config, placement), "start");
  const std::string codec = argc > 2 ? argv[1] : "";
  const auto exact = [&](float*, std::size_t size) -> hora::bench::Allreduce {
    const std::string name = "bench." + std::to_string(size);
    return [&runtime, name](float* data, std::size_t count) {
      allreduce(*runtime, name, "", data, data, count);
    };
  };
  const auto lossy = [&](float* data, std::size_t size) -> hora::bench::Allreduce {
    const auto sum = std::make_shared<LossySum>(*runtime, codec, placement.rank, size);
    sum->check(data);
    return [sum](float* output, std::size_t) { sum->run(output); };
  };
  hora::bench::run_driver(steps, placement.rank, placement.size, exact,
                          codec.empty() ? hora::bench::Prepare() : lossy);
  runtime->shutdown("");
  return 0;
}
