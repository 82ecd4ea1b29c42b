// Request and Response: what negotiation is about.
//
// A Request says "this rank has this tensor ready for this collective". When all ranks of its
// process set have said so and agree, the root's Coordinator answers with a Response, the same on
// all ranks and in the same order; it carries all that is needed to run the collective, also by a
// rank that has joined and never had the tensor. A Response may hold several tensors: they are
// fused.
//
// Three kinds move no tensors: they change what the ranks agree about. add_set and remove_set are
// called by all ranks; join says that a rank has no more tensors until all have joined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/process_set.h"

namespace hora {

/// Part of the wire format and of the Python binding: append, never renumber.
enum class Kind : std::uint8_t {
  allreduce = 0,
  allgather = 1,
  broadcast = 2,
  barrier = 3,
  reducescatter = 4,
  alltoall = 5,
  join = 6,
  add_set = 7,
  remove_set = 8,
};
/// The number as a Kind, or nothing.
std::optional<Kind> kind_from(int number);
/// "ALLREDUCE", ...: Horovod's spelling, for messages and the timeline.
std::string_view to_string(Kind kind);
/// "Allreduce", ...: for the front of a sentence.
std::string title_of(Kind kind);
/// True for the kinds that add: operation and scales count.
constexpr bool reduces(Kind kind) {
  return kind == Kind::allreduce || kind == Kind::reducescatter;
}

struct Request {
  Kind kind{};
  std::string name;  ///< Any bytes; unique among the tensors in flight of a process set.
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 0;  ///< Broadcast: a rank. Answer to a join: the rank that joined last.
  double prescale = 1.0, postscale = 1.0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> splits;   ///< Alltoall: rows for each rank, at most shape[0] together.
  SetId set{};                        ///< Whose ranks run it; remove_set: which is removed.
  std::vector<std::int32_t> members;  ///< add_set: its ranks, in any order.
  std::string group;            ///< Negotiated as a whole with those of this name; empty: alone.
  std::int32_t group_size = 0;  ///< Tensors of the group.
  std::string codec{};    ///< Allreduce: the words of a codec (compress/codec.h); empty: none.
  std::string refusal{};  ///< Not empty: no tensor, but why this rank has none; see below.

  friend bool operator==(const Request&, const Request&) = default;
};

/// Of every join: a rank joins once, so it needs no other.
inline constexpr std::string_view kJoinName = "join.noname";

/// Bounds of one request, so that every message has one.
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::size_t kMaxDimensions = 64;
inline constexpr std::size_t kMaxMembers = std::size_t{1} << 16;
inline constexpr std::int32_t kMaxGroupSize = 1 << 20;
inline constexpr std::size_t kMaxRefusalBytes = 2048;
/// More than an address space has; sums over all ranks still fit 64 bits.
inline constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 48;

/// Runs over tensors or meets the others, as opposed to changing what ranks agree about.
constexpr bool is_collective(Kind kind) {
  return kind <= Kind::alltoall;
}
/// The set whose ranks must submit the request before it is answered.
constexpr SetId members_of(const Request& request) {
  return is_collective(request.kind) ? request.set : SetId{};
}

/// Elements of a shape; 1 for a 0-dim tensor. The shape has passed `check_request`.
std::int64_t element_count(const std::vector<std::int64_t>& shape);
/// Bytes of the whole tensor of this rank.
std::uint64_t byte_count(const Request& request);
/// "[3, 4]"
std::string shape_text(const std::vector<std::int64_t>& shape);
/// Bytes as text that a terminal and a UTF-8 decoder take: what is neither valid UTF-8 nor
/// printable becomes \xNN.
std::string printable(std::string_view bytes);
/// A tensor's name for a message to people: printable, and cut if it is long.
std::string name_text(std::string_view name);
/// "tensor 'x'", "tensor 'x' of process set 2".
std::string tensor_text(std::string_view name, SetId set);

/// What a rank says in place of a call that has failed before it began, on this rank alone: a wrong
/// argument. The others' calls then fail with `why` instead of waiting for it. `size` of its set.
Request refusal_of(const Request& call, int size, std::string_view why);

/// What one rank can know alone: known numbers, name and dimensions within bounds, sizes that do
/// not overflow. Error invalid_argument.
Result<void> check_request(const Request& request);

// First dimensions are a rank's own business where it gives rows: to all (allgather, one number) or
// to each rank (alltoall, the splits). They may change from call to call, so they travel beside the
// canonical request, and the response tells all ranks those of all: by rank, or by giver, then by
// taker.

/// How many first dimensions one of `size` ranks of a set says for itself.
std::size_t own_dims(Kind kind, int size);
/// What the rank says: of an allgather the first dimension, of an alltoall the splits.
std::vector<std::int64_t> first_dims_of(const Request& request);
/// May these be the first dimensions of one rank, for the bounds above?
bool first_dims_fit(const Request& canonical, std::span<const std::int64_t> first_dims);

/// The words of a codec in canonical form, empty for "none". Error invalid_argument: no codec has
/// them; the message says why.
Result<std::string> canonical_codec(std::string_view words);

/// The request without what its kind does not use: a barrier has no shape, a broadcast no scale;
/// and without first dimensions that are the rank's own: they are 0, and there are no splits. A
/// codec is for sums and averages of floating-point tensors; others go as they are. Two ranks agree
/// about a tensor iff their canonical requests match.
Request canonical(Request request);
/// A canonical request with a rank's first dimensions put back. Of an alltoall only the rows that
/// go somewhere count in the shape.
Request restored(Request canonical, std::span<const std::int64_t> first_dims);
/// Same in every field, scales bit by bit (so that a NaN equals itself). Both canonical.
bool matches(const Request& a, const Request& b);

/// A canonical request that nobody changes any more: caches and responses share it.
using SharedRequest = std::shared_ptr<const Request>;

/// What one rank asked for.
struct Submitted {
  std::int32_t rank = 0;
  Request request;
};

/// One tensor of a response.
struct ResponseTensor {
  SharedRequest request;  ///< Canonical; own first dimensions are 0.
  /// Allgather: by place in the set; alltoall: by giver, then by taker.
  std::vector<std::int64_t> first_dims;
};

struct Response {
  Kind kind{};
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 0;
  double prescale = 1.0, postscale = 1.0;
  std::string codec{};
  std::uint16_t lane = 0;
  SharedSet set;  ///< Whose ranks run it; add_set, remove_set: the one concerned.
  std::vector<ResponseTensor> tensors;  ///< In the common order; one unless fused.
  std::string error;                    ///< Not empty: fail these tensors with this text.
  ErrorKind error_kind = ErrorKind::mismatch;
  std::vector<std::byte> result{};  ///< Not empty: of the one tensor, already reduced (carried.h).
};

}  // namespace hora
