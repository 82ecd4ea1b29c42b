// What lies between reduce.cc and its kernels. Include before anything of Highway.
//
// One function per family of types; each dispatches to the best target by itself.
#pragma once

#include "ops/reduce.h"
#include "runtime/base/simd_targets.h"

namespace hora {

/// `reduce` for float16, bfloat16, float32, float64 on the best target.
void reduce_floating(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                     std::byte* out, std::size_t count, const Finish& finish);
/// `reduce` for integers and bool on the best target.
void reduce_integer(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::byte* out, std::size_t count, const Finish& finish);

}  // namespace hora
