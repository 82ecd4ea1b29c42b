// What a Request means by itself: names of kinds, sizes, bounds, and its canonical form.
//
// Ranks agree about a tensor when the fields that matter for its kind are the same. Rather than
// teach every comparison (cache lookup, readiness, mismatch) which fields matter, a request is made
// canonical once, when it enters negotiation, and compared whole from then on.
#include "runtime/request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "compress/codec.h"

namespace hora {
namespace {

/// The length of the valid UTF-8 sequence at the front of `bytes`, or 0.
std::size_t utf8_length(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = at(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                                           : 4;
  if (length == 0 || lead > 0xf4 || bytes.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0u) != 0x80u) return 0;
  }
  // Overlong forms, surrogates, and code points beyond U+10FFFF show in the second byte.
  if ((lead == 0xe0 && at(1) < 0xa0) || (lead == 0xed && at(1) > 0x9f)) return 0;
  if ((lead == 0xf0 && at(1) < 0x90) || (lead == 0xf4 && at(1) > 0x8f)) return 0;
  return length;
}

/// No number is negative, and together they are at most `limit`.
bool rows_within(std::span<const std::int64_t> rows, std::int64_t limit) {
  return std::all_of(rows.begin(), rows.end(), [&](std::int64_t count) {
    if (count < 0 || count > limit) return false;
    limit -= count;
    return true;
  });
}

}  // namespace

std::optional<Kind> kind_from(int number) {
  if (number < 0 || number > static_cast<int>(Kind::remove_set)) return std::nullopt;
  return static_cast<Kind>(number);
}

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::allreduce:
      return "ALLREDUCE";
    case Kind::allgather:
      return "ALLGATHER";
    case Kind::broadcast:
      return "BROADCAST";
    case Kind::barrier:
      return "BARRIER";
    case Kind::reducescatter:
      return "REDUCESCATTER";
    case Kind::alltoall:
      return "ALLTOALL";
    case Kind::join:
      return "JOIN";
    case Kind::add_set:
      return "ADD_PROCESS_SET";
    case Kind::remove_set:
      return "REMOVE_PROCESS_SET";
  }
  return "UNKNOWN";
}

std::string title_of(Kind kind) {
  std::string title(to_string(kind));
  std::transform(title.begin() + 1, title.end(), title.begin() + 1, [](char letter) {
    return letter == '_' ? ' ' : static_cast<char>(letter | 0x20);
  });
  return title;
}

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape)
    count *= dimension;
  return count;
}

std::uint64_t byte_count(const Request& request) {
  return static_cast<std::uint64_t>(element_count(request.shape)) * size_of(request.dtype);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string printable(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const auto lead = static_cast<unsigned char>(bytes.front());
    const std::size_t length = lead < 0x20 || lead == 0x7f ? 0 : utf8_length(bytes);
    if (length == 0) {
      text += "\\x";
      text += kDigits[lead >> 4];
      text += kDigits[lead & 15];
      bytes.remove_prefix(1);
    } else {
      text += bytes.substr(0, length);
      bytes.remove_prefix(length);
    }
  }
  return text;
}

std::string name_text(std::string_view name) {
  static constexpr std::size_t kShown = 256;
  return name.size() <= kShown ? printable(name) : printable(name.substr(0, kShown)) + "...";
}

std::string tensor_text(std::string_view name, SetId set) {
  const std::string tensor = "tensor '" + name_text(name) + "'";
  return set == kGlobalSet ? tensor : tensor + " of process set " + std::to_string(set.value);
}

Result<void> check_request(const Request& request) {
  const auto bad = [&](const std::string& what) {
    return fail(ErrorKind::invalid_argument, tensor_text(request.name, request.set) + ": " + what);
  };
  if (!kind_from(static_cast<int>(request.kind))) return bad("unknown collective");
  if (!dtype_from(static_cast<int>(request.dtype))) return bad("unknown data type");
  if (!reduce_op_from(static_cast<int>(request.op))) return bad("unknown reduction operation");
  if (request.name.size() > kMaxNameBytes) {
    return bad("a name has at most " + std::to_string(kMaxNameBytes) + " bytes, this one has " +
               std::to_string(request.name.size()));
  }
  if (request.group.size() > kMaxNameBytes || request.group_size > kMaxGroupSize ||
      request.group_size < 0 || request.group.empty() != (request.group_size == 0)) {
    return bad("a group has a name of 1 to " + std::to_string(kMaxNameBytes) + " bytes and 1 to " +
               std::to_string(kMaxGroupSize) + " tensors, this one has " +
               std::to_string(request.group.size()) + " bytes and " +
               std::to_string(request.group_size) + " tensors");
  }
  if (request.shape.size() > kMaxDimensions) {
    return bad("a shape has at most " + std::to_string(kMaxDimensions) +
               " dimensions, this one has " + std::to_string(request.shape.size()));
  }
  if (request.refusal.size() > kMaxRefusalBytes) {
    return bad("why a call failed is told in at most " + std::to_string(kMaxRefusalBytes) +
               " bytes");
  }
  if (request.members.size() > kMaxMembers) {
    return bad("a process set has at most " + std::to_string(kMaxMembers) + " ranks");
  }
  if (!request.codec.empty()) {
    if (const auto words = canonical_codec(request.codec); !words) {
      return bad(words.error().message);
    }
    // What is lost by a finished result is multiplied back.
    const bool invertible = std::isfinite(request.postscale) && request.postscale != 0;
    if (request.codec.ends_with("+ef") && !invertible) {
      return bad("error feedback needs a postscale factor that is finite and not 0");
    }
  }
  // Dimensions of 0 do not excuse the others: no product of any of them may overflow.
  std::int64_t limit = kMaxTensorBytes / static_cast<std::int64_t>(size_of(request.dtype));
  for (const std::int64_t dimension : request.shape) {
    if (dimension < 0) return bad("negative dimension in shape " + shape_text(request.shape));
    if (dimension > limit) {
      return bad("shape " + shape_text(request.shape) + " has more than 2^48 bytes");
    }
    if (dimension > 0) limit /= dimension;
  }
  if (request.kind == Kind::reducescatter && request.shape.empty()) {
    return bad("Reducescatter does not support scalar inputs");
  }
  if (request.kind == Kind::alltoall) {
    if (request.shape.empty()) return bad("Alltoall does not support scalar inputs");
    if (!rows_within(request.splits, request.shape[0])) {
      return bad(
          "Sum of splits entries is greater than the first dimension of tensor, or an entry "
          "is negative: splits " +
          shape_text(request.splits) + " of shape " + shape_text(request.shape));
    }
  }
  return {};
}

std::size_t own_dims(Kind kind, int size) {
  if (kind == Kind::allgather) return 1;
  return kind == Kind::alltoall ? static_cast<std::size_t>(size) : 0;
}

std::vector<std::int64_t> first_dims_of(const Request& request) {
  if (request.kind == Kind::allgather) return {request.shape.empty() ? 0 : request.shape[0]};
  if (request.kind == Kind::alltoall) return request.splits;
  return {};
}

bool first_dims_fit(const Request& canonical, std::span<const std::int64_t> first_dims) {
  std::int64_t limit = kMaxTensorBytes / static_cast<std::int64_t>(size_of(canonical.dtype));
  for (std::size_t i = 1; i < canonical.shape.size(); ++i) {
    if (canonical.shape[i] > 0) limit /= canonical.shape[i];
  }
  return rows_within(first_dims, limit);
}

Result<std::string> canonical_codec(std::string_view words) {
  const auto codec = make_codec(words);
  if (!codec) return fail(codec.error());
  return (*codec)->traits().kind == CodecKind::summed ? std::string() : (*codec)->text();
}

Request canonical(Request request) {
  const bool sums = request.op == ReduceOp::sum || request.op == ReduceOp::average;
  if (request.kind != Kind::allreduce || !sums || !is_floating(request.dtype)) {
    request.codec.clear();
  }
  if (!request.codec.empty()) {
    request.codec = canonical_codec(request.codec).value_or(std::move(request.codec));
  }
  if (!reduces(request.kind)) {
    request.op = ReduceOp::sum;
    request.prescale = request.postscale = 1.0;
  }
  if (request.kind != Kind::broadcast && request.kind != Kind::join) request.root = 0;
  const bool has_own = request.kind == Kind::allgather || request.kind == Kind::alltoall;
  if (has_own && !request.shape.empty()) request.shape[0] = 0;
  request.splits.clear();
  if (request.kind == Kind::barrier || !is_collective(request.kind)) {
    request.dtype = DType::uint8;
    request.shape.clear();
    request.group.clear();
    request.group_size = 0;
  }
  if (request.kind == Kind::join) request.name = kJoinName;
  if (request.kind == Kind::join || request.kind == Kind::add_set) request.set = kGlobalSet;
  if (request.kind == Kind::add_set) {
    std::sort(request.members.begin(), request.members.end());
  } else {
    request.members.clear();
  }
  return request;
}

Request refusal_of(const Request& call, int size, std::string_view why) {
  Request refusal;
  refusal.kind = call.kind;
  refusal.name = call.name;
  refusal.set = call.set;
  refusal.group = call.group;
  refusal.group_size = call.group_size;
  refusal.dtype = DType::uint8;
  refusal.shape = {0};
  if (call.kind == Kind::alltoall) refusal.splits.resize(static_cast<std::size_t>(size));
  refusal.refusal = why.empty() ? "unknown" : printable(why).substr(0, kMaxRefusalBytes);
  return refusal;
}

Request restored(Request canonical, std::span<const std::int64_t> first_dims) {
  if (first_dims.empty() || canonical.shape.empty()) return canonical;
  canonical.shape[0] = std::accumulate(first_dims.begin(), first_dims.end(), std::int64_t{0});
  if (canonical.kind == Kind::alltoall) {
    canonical.splits.assign(first_dims.begin(), first_dims.end());
  }
  return canonical;
}

bool matches(const Request& a, const Request& b) {
  const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         bits(a.prescale) == bits(b.prescale) && bits(a.postscale) == bits(b.postscale) &&
         a.shape == b.shape && a.set == b.set && a.members == b.members && a.name == b.name &&
         a.group_size == b.group_size && a.group == b.group && a.codec == b.codec &&
         a.refusal == b.refusal;
}

}  // namespace hora
