// See kept_response.h. The tensors travel as in a RootMessage that names none by its slot; in front
// of it stand the numbers that negotiation does not know.
#include "runtime/kept_response.h"

#include <algorithm>
#include <utility>

#include "runtime/slot_set.h"
#include "runtime/wire.h"

namespace hora {

Ending ending_of(const KeptResponse& kept) {
  if (kept.failed) return Ending::shut;
  switch (kept.response.kind) {
    case Kind::allreduce:
    case Kind::broadcast:
    case Kind::barrier:
      return Ending::halves;
    case Kind::allgather:
      return Ending::whole;
    case Kind::reducescatter:
    case Kind::alltoall:
    case Kind::join:
    case Kind::add_set:
    case Kind::remove_set:
      return Ending::shut;
  }
  return Ending::shut;
}

std::vector<std::byte> encode(const KeptResponse& kept) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.varint(kept.segment_bytes);
  out.varint(kept.failed ? 1 : 0);
  out.varint(static_cast<std::uint64_t>(kept.response.root));
  out.varint(kept.ranks.size());
  for (const std::int32_t rank : kept.ranks)
    out.varint(static_cast<std::uint64_t>(rank));
  RootMessage message;
  WireResponse& response = message.responses.emplace_back();
  response.lane = static_cast<std::uint8_t>(kept.response.lane);
  for (const ResponseTensor& tensor : kept.response.tensors)
    response.tensors.push_back({tensor.request, kNoSlot, tensor.first_dims});
  out.bytes(encode(message));
  return bytes;
}

Result<KeptResponse> decode_kept(std::span<const std::byte> bytes) {
  const auto malformed = [] {
    return fail(ErrorKind::protocol, "a malformed response in the plan of a World");
  };
  ByteReader in(bytes);
  KeptResponse kept;
  std::uint64_t failed = 0, root = 0, count = 0;
  if (!in.varint(kept.segment_bytes) || !in.varint(failed) || !in.varint(root) ||
      !in.varint(count)) {
    return malformed();
  }
  kept.failed = failed != 0;
  if (kept.segment_bytes == 0 || root > 1u << 20 || count > bytes.size()) return malformed();
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rank = 0;
    if (!in.varint(rank) || rank > 1u << 20) return malformed();
    kept.ranks.push_back(static_cast<std::int32_t>(rank));
  }
  RootMessage message;
  HORA_TRY(decode(in.rest(), message));
  if (message.responses.size() != 1 || message.responses[0].tensors.empty()) return malformed();
  WireResponse& from = message.responses[0];
  const Request& first = *from.tensors.front().request;
  kept.response.kind = first.kind;
  kept.response.dtype = first.dtype;
  kept.response.op = first.op;
  kept.response.root = static_cast<std::int32_t>(root);
  kept.response.prescale = first.prescale;
  kept.response.postscale = first.postscale;
  kept.response.codec = first.codec;
  kept.response.lane = from.lane;
  for (NewTensor& tensor : from.tensors)
    kept.response.tensors.push_back({std::move(tensor.request), std::move(tensor.first_dims)});
  return kept;
}

Response without_lost(const KeptResponse& kept, const std::vector<std::int32_t>& members) {
  Response response = kept.response;
  if (response.kind != Kind::allgather) return response;
  std::vector<std::int64_t> left;
  const std::vector<std::int64_t>& dims = response.tensors.front().first_dims;
  for (std::size_t i = 0; i < kept.ranks.size() && i < dims.size(); ++i) {
    if (std::find(members.begin(), members.end(), kept.ranks[i]) != members.end()) {
      left.push_back(dims[i]);
    }
  }
  response.tensors.front().first_dims = std::move(left);
  return response;
}

}  // namespace hora
