// The way into the reduction kernels.
#include "ops/reduce.h"

#include <array>
#include <cstring>

#include "runtime/base/check.h"

namespace hora {

void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
            std::size_t count, const Finish& finish) {
  reduce_scalar(dtype, op, inputs, out, count, finish);
}

void scale(DType dtype, const std::byte* in, std::byte* out, std::size_t count, double factor) {
  if (factor == 1.0 || dtype == DType::boolean) {
    if (in != out) std::memcpy(out, in, count * size_of(dtype));
    return;
  }
  const std::array<const std::byte*, 1> inputs{in};
  reduce_scalar(dtype, ReduceOp::sum, inputs, out, count, Finish{1, factor});
}

std::vector<std::string> reduce_targets() {
  return {"SCALAR"};
}

bool force_reduce_target(const std::string& name) {
  return name.empty() || name == "SCALAR";
}

}  // namespace hora
