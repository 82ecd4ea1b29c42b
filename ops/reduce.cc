// The way into the reduction kernels: checks the call, then hands it to the family of its type.
// Which instruction set runs is Highway's dispatch table's business; the functions at the end let
// tests see and force it.
#include "ops/reduce.h"

#include <array>
#include <cstring>

#include "ops/reduce_kernels.h"
#include "runtime/base/check.h"
// Highway must see the targets that reduce_kernels.h leaves out.
#include <hwy/highway.h>

namespace hora {
namespace {

/// Exactness of integer averages ends here; no World has as many ranks.
constexpr std::size_t kMostInputs = 1 << 20;

/// What this machine can run of what was compiled, as Highway's bits. Asked once, before
/// anything forces less.
std::int64_t runnable_targets() {
  static const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets;
}

}  // namespace

void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out,
            std::size_t count, const Finish& finish) {
  HORA_CHECK(!inputs.empty() && inputs.size() <= kMostInputs, "operands of a reduction");
  HORA_CHECK(finish.divisor > 0, "the divisor counts contributors");
  HORA_CHECK(op != ReduceOp::adasum, "adasum is not an element-wise reduction");
  const auto run = is_floating(dtype) ? reduce_floating : reduce_integer;
  run(dtype, op, inputs, out, count, finish);
}

void scale(DType dtype, const std::byte* in, std::byte* out, std::size_t count, double factor) {
  if (factor == 1.0 || dtype == DType::boolean) {
    if (in != out && count != 0) std::memcpy(out, in, count * size_of(dtype));
    return;
  }
  // A sum of one.
  const std::array<const std::byte*, 1> inputs{in};
  reduce(dtype, ReduceOp::sum, inputs, out, count, Finish{1, factor});
}

std::vector<std::string> reduce_targets() {
  std::vector<std::string> names;
  // Highway gives better targets lower bits.
  for (std::int64_t left = runnable_targets(); left != 0; left &= left - 1) {
    names.emplace_back(hwy::TargetName(left & -left));
  }
  return names;
}

bool force_reduce_target(const std::string& name) {
  std::int64_t wanted = 0;
  for (std::int64_t left = runnable_targets(); left != 0; left &= left - 1) {
    if (name == hwy::TargetName(left & -left)) wanted = left & -left;
  }
  if (wanted == 0 && !name.empty()) return false;
  hwy::SetSupportedTargetsForTest(wanted);  // 0: all
  return true;
}

}  // namespace hora
