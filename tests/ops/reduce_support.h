// What the tests of the reduction kernels share.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "ops/reduce.h"
#include "runtime/base/float16.h"

namespace hora {

inline constexpr DType kDTypes[] = {DType::uint8,   DType::int8,    DType::int16,    DType::int32,
                                    DType::int64,   DType::float16, DType::bfloat16, DType::float32,
                                    DType::float64, DType::boolean, DType::uint16};
static_assert(std::size(kDTypes) == kDTypeCount);
inline constexpr ReduceOp kReduceOps[] = {ReduceOp::average, ReduceOp::sum, ReduceOp::min,
                                          ReduceOp::max, ReduceOp::product};

inline std::uint16_t half(double value) {
  return float16_from_float(static_cast<float>(value));
}
inline std::uint16_t brain(double value) {
  return bfloat16_from_float(static_cast<float>(value));
}

/// Runs `body` with every target of this machine in turn.
template <class Body>
void on_every_target(Body body) {
  for (const std::string& target : reduce_targets()) {
    REQUIRE(force_reduce_target(target));
    INFO("target " << target);
    body();
  }
  REQUIRE(force_reduce_target(""));
}

}  // namespace hora
