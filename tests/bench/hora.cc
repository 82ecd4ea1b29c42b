// bench_hora: Hora's all-reduce without Python, through the Runtime that the bindings use.
//
//   horarun -np P bench_hora BYTES:ITERATIONS,...
//
// One name per size, as a training loop has one per gradient: after its first call a tensor is
// known to the coordinator by a bit.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

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

void allreduce(hora::Runtime& runtime, const std::string& name, float* data, std::size_t count) {
  hora::Submission call;
  call.request.kind = hora::Kind::allreduce;
  call.request.name = name;
  call.request.dtype = hora::DType::float32;
  call.request.op = hora::ReduceOp::sum;
  call.request.shape = {static_cast<std::int64_t>(count)};
  call.input = data;
  call.output = data;
  call.caller_waits = true;
  const hora::Handle handle = must(runtime.submit(std::move(call)), "submit");
  const hora::Deadline deadline = hora::Deadline::after(std::chrono::seconds(60));
  const Result<void> outcome = runtime.wait(handle, deadline, [] { return false; });
  if (!outcome) {
    std::fprintf(stderr, "bench_hora: %s\n", outcome.error().message.c_str());
    std::_Exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<hora::bench::Step> steps = hora::bench::steps_of(argc, argv);
  const hora::Lookup lookup = hora::environment();
  const hora::Config config = must(hora::read_config(lookup), "configuration");
  const hora::Placement placement = must(hora::read_placement(lookup), "placement");
  const std::unique_ptr<hora::Runtime> runtime =
      must(hora::Runtime::start(config, placement), "start");
  hora::bench::run_driver(steps, placement.rank, placement.size,
                          [&](float*, std::size_t size) -> hora::bench::Allreduce {
                            const std::string name = "bench." + std::to_string(size);
                            return [&runtime, name](float* data, std::size_t count) {
                              allreduce(*runtime, name, data, count);
                            };
                          });
  runtime->shutdown("");
  return 0;
}
