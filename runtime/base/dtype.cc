#include "runtime/base/dtype.h"

#include <array>

namespace hora {

namespace {
constexpr std::array<std::string_view, kDTypeCount> kDTypeNames = {
    "uint8",    "int8",    "int16",   "int32", "int64", "float16",
    "bfloat16", "float32", "float64", "bool",  "uint16"};
constexpr std::array<std::string_view, 6> kOpNames = {"average", "sum", "adasum",
                                                      "min",     "max", "product"};
}  // namespace

std::string_view to_string(DType dtype) {
  return kDTypeNames[static_cast<std::size_t>(dtype)];
}

std::string_view to_string(ReduceOp op) {
  return kOpNames[static_cast<std::size_t>(op)];
}

std::optional<DType> dtype_from(int number) {
  if (number < 0 || number >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(number);
}

std::optional<ReduceOp> reduce_op_from(int number) {
  if (number < 0 || number >= static_cast<int>(kOpNames.size())) return std::nullopt;
  return static_cast<ReduceOp>(number);
}

}  // namespace hora
