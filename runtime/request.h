// Request and Response: what negotiation is about.
//
// A Request says "this rank has this tensor ready for this collective". When all ranks have said so
// and agree, the root's Coordinator answers with a Response, the same on all ranks and in the same
// order; it carries all that is needed to run the collective. A Response may hold several tensors:
// they are fused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

enum class Kind : std::uint8_t { allreduce = 0, allgather = 1, broadcast = 2, barrier = 3 };
/// "ALLREDUCE", ...: Horovod's spelling, for messages and the timeline.
std::string_view to_string(Kind kind);

struct Request {
  Kind kind{};
  std::string name;  ///< Any bytes; unique among the tensors in flight.
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 0;  ///< Broadcast.
  double prescale = 1.0, postscale = 1.0;
  std::vector<std::int64_t> shape;

  friend bool operator==(const Request&, const Request&) = default;
};

/// Elements of a shape; 1 for a 0-dim tensor.
std::int64_t element_count(const std::vector<std::int64_t>& shape);
/// "[3, 4]"
std::string shape_text(const std::vector<std::int64_t>& shape);

/// One tensor of a response.
struct ResponseTensor {
  std::string name;
  std::vector<std::int64_t> shape;  ///< Allgather: the first dimension is this rank's own business.
  std::vector<std::int64_t> first_dims;  ///< Allgather: by rank.
};

struct Response {
  Kind kind{};
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 0;
  double prescale = 1.0, postscale = 1.0;
  std::uint16_t lane = 0;
  std::vector<ResponseTensor> tensors;  ///< In the common order; one unless fused.
  std::string error;                    ///< Not empty: fail these tensors with this text.
  ErrorKind error_kind = ErrorKind::mismatch;
};

}  // namespace hora
