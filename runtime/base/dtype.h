// DType and ReduceOp: what a tensor is made of, and what may be done to it.
//
// The numeric values are part of the wire format and of the Python binding: append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hora {

enum class DType : std::uint8_t {
  uint8 = 0,
  int8 = 1,
  int16 = 2,
  int32 = 3,
  int64 = 4,
  float16 = 5,
  bfloat16 = 6,
  float32 = 7,
  float64 = 8,
  boolean = 9,  ///< One byte, 0 or 1. Sum is logical or, product is logical and.
  uint16 = 10,
};
inline constexpr int kDTypeCount = 11;

/// Horovod's numbers: Average 0, Sum 1, Adasum 2, Min 3, Max 4, Product 5.
enum class ReduceOp : std::uint8_t {
  average = 0,
  sum = 1,
  adasum = 2,
  min = 3,
  max = 4,
  product = 5
};

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::uint8:
    case DType::int8:
    case DType::boolean:
      return 1;
    case DType::int16:
    case DType::uint16:
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::int32:
    case DType::float32:
      return 4;
    case DType::int64:
    case DType::float64:
      return 8;
  }
  return 0;
}

/// True for the four floating-point types.
constexpr bool is_floating(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 ||
         dtype == DType::float64;
}

/// "float32", "bool", ...: NumPy's and PyTorch's names.
std::string_view to_string(DType dtype);
/// "average", "sum", ...
std::string_view to_string(ReduceOp op);
/// The number as a DType, or nothing when no DType has it.
std::optional<DType> dtype_from(int number);
/// The number as a ReduceOp, or nothing.
std::optional<ReduceOp> reduce_op_from(int number);

}  // namespace hora
