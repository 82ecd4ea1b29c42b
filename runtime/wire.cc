#include "runtime/wire.h"

#include <cstring>
#include <utility>

#include "wire_generated.h"
#include <flatbuffers/flatbuffers.h>

#include "runtime/base/check.h"
#include "runtime/carried.h"

namespace hora {
namespace {

constexpr std::uint8_t kWorkerTag = 'W', kRootTag = 'R';
// Flags of a WorkerMessage, and of a RootMessage where they apply.
constexpr std::uint8_t kHasBody = 1, kFlush = 2, kLeaves = 4, kHasHits = 8, kHasStop = 4;
// Parts of a slot section; in a worker's flags, and in the head of a response beside its lane.
constexpr std::uint8_t kBitmap = 16, kHasDims = 32, kHasNew = 64, kCarries = 128;
constexpr std::uint8_t kLaneMask = 7;
// A FlatBuffer of ours: body -> responses -> tensors -> request -> vectors.
constexpr flatbuffers::uoffset_t kMaxDepth = 8, kMaxTables = 1 << 20;

using Builder = flatbuffers::FlatBufferBuilder;
using Bytes = flatbuffers::Vector<std::uint8_t>;

tl::unexpected<Error> malformed(const char* what) {
  return fail(ErrorKind::protocol, std::string("malformed negotiation message: ") + what);
}

// ---- the slot section, shared by both messages

std::uint8_t encode_hits(std::span<const Slot> slots, std::span<const std::int64_t> first_dims,
                         ByteWriter& out) {
  std::uint8_t flags = encode_slots(slots, out) == SlotForm::bitmap ? kBitmap : std::uint8_t{0};
  if (!first_dims.empty()) {
    flags |= kHasDims;
    out.varint(first_dims.size());
    for (const std::int64_t dimension : first_dims) {
      out.varint(static_cast<std::uint64_t>(dimension));
    }
  }
  return flags;
}

bool decode_hits(std::uint8_t flags, ByteReader& in, std::vector<Slot>& slots,
                 std::vector<std::int64_t>& first_dims) {
  const SlotForm form = (flags & kBitmap) != 0 ? SlotForm::bitmap : SlotForm::list;
  if (!decode_slots(form, in, slots)) return false;
  if ((flags & kHasDims) == 0) return true;
  std::uint64_t count = 0;
  if (!in.varint(count) || count > in.rest().size()) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t dimension = 0;
    if (!in.varint(dimension) || dimension > INT64_MAX) return false;
    first_dims.push_back(static_cast<std::int64_t>(dimension));
  }
  return true;
}

// ---- the bytes of carried tensors

std::uint8_t encode_carried(std::span<const std::byte> bytes, ByteWriter& out) {
  if (bytes.empty()) return 0;
  out.varint(bytes.size());
  out.bytes(bytes);
  return kCarries;
}

bool decode_carried(std::uint8_t flags, ByteReader& in, std::vector<std::byte>& carried) {
  if ((flags & kCarries) == 0) return true;
  std::uint64_t count = 0;
  std::span<const std::byte> bytes;
  if (!in.varint(count) || count == 0 || count > kMaxCarriedBytes) return false;
  if (!in.bytes(static_cast<std::size_t>(count), bytes)) return false;
  carried.assign(bytes.begin(), bytes.end());
  return true;
}

// ---- FlatBuffers

flatbuffers::Offset<Bytes> put_bytes(Builder& builder, std::string_view text) {
  return builder.CreateVector(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

std::string to_text(const Bytes* bytes) {
  if (bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

template <class Number>
std::vector<Number> to_numbers(const flatbuffers::Vector<Number>* numbers) {
  if (numbers == nullptr) return {};
  // The verifier leaves the alignment of a vector's elements open. Both machines are little-endian.
  std::vector<Number> values(numbers->size());
  if (!values.empty()) {
    std::memcpy(values.data(), numbers->Data(), sizeof(Number) * values.size());
  }
  return values;
}

flatbuffers::Offset<wire::Request> put_request(Builder& builder, const Request& request) {
  const auto name = put_bytes(builder, request.name);
  const auto shape = builder.CreateVector(request.shape);
  const auto splits = request.splits.empty() ? 0 : builder.CreateVector(request.splits);
  const auto members = request.members.empty() ? 0 : builder.CreateVector(request.members);
  const auto group = request.group.empty() ? 0 : put_bytes(builder, request.group);
  const auto codec = request.codec.empty() ? 0 : put_bytes(builder, request.codec);
  const auto refusal = request.refusal.empty() ? 0 : put_bytes(builder, request.refusal);
  return wire::CreateRequest(builder, name, shape, request.prescale, request.postscale,
                             request.root, static_cast<std::uint8_t>(request.kind),
                             static_cast<std::uint8_t>(request.dtype),
                             static_cast<std::uint8_t>(request.op), splits, request.set.value,
                             members, group, request.group_size, codec, refusal);
}

Result<Request> to_request(const wire::Request* from) {
  if (from == nullptr) return malformed("no request");
  // The numbers are checked before they become enumerators that somebody switches over.
  Request request;
  const auto dtype = dtype_from(from->dtype());
  const auto op = reduce_op_from(from->op());
  const auto kind = kind_from(from->kind());
  if (!dtype || !op || !kind) return malformed("unknown kind, data type or operation");
  request.kind = *kind;
  request.dtype = *dtype;
  request.op = *op;
  request.name = to_text(from->name());
  request.shape = to_numbers(from->shape());
  request.splits = to_numbers(from->splits());
  request.group = to_text(from->group());
  request.group_size = from->group_size();
  request.refusal = to_text(from->refusal());
  request.root = from->root();
  request.prescale = from->prescale();
  request.postscale = from->postscale();
  request.set = SetId(from->set());
  request.members = to_numbers(from->members());
  request.codec = to_text(from->codec());
  if (auto checked = check_request(request); !checked) {
    return malformed(checked.error().message.c_str());
  }
  return request;
}

std::optional<ErrorKind> error_kind_from(std::uint8_t number) {
  if (number > static_cast<std::uint8_t>(ErrorKind::system)) return std::nullopt;
  return static_cast<ErrorKind>(number);
}

/// The verified body at the end of a message. `aligned` keeps its memory.
template <class Body>
const Body* verified_body(std::span<const std::byte> bytes, std::vector<std::uint64_t>& aligned) {
  if (bytes.empty()) return nullptr;
  aligned.resize((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto* data = reinterpret_cast<const std::uint8_t*>(aligned.data());
  flatbuffers::Verifier verifier(data, bytes.size(), kMaxDepth, kMaxTables);
  return verifier.VerifyBuffer<Body>(nullptr) ? flatbuffers::GetRoot<Body>(data) : nullptr;
}

void append_body(Builder& builder, ByteWriter& out) {
  out.bytes(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
}

std::vector<std::byte> checked(std::vector<std::byte> bytes) {
  HORA_CHECK(bytes.size() <= kMaxMessageBytes, "a negotiation message outgrew its bound");
  return bytes;
}

flatbuffers::Offset<wire::NewTensors> put_new_tensors(Builder& builder,
                                                      const WireResponse& response) {
  std::vector<flatbuffers::Offset<wire::NewTensor>> tensors;
  for (const NewTensor& tensor : response.tensors) {
    const auto request = put_request(builder, *tensor.request);
    const auto first_dims = builder.CreateVector(tensor.first_dims);
    tensors.push_back(wire::CreateNewTensor(builder, request, tensor.slot, first_dims));
  }
  const auto list = builder.CreateVector(tensors);
  const auto error = put_bytes(builder, response.error);
  return wire::CreateNewTensors(builder, list, error,
                                static_cast<std::uint8_t>(response.error_kind));
}

void append_root_body(const RootMessage& message, ByteWriter& out) {
  Builder builder(1024);
  std::vector<flatbuffers::Offset<wire::NewTensors>> responses;
  for (const WireResponse& response : message.responses) {
    if (!response.tensors.empty()) responses.push_back(put_new_tensors(builder, response));
  }
  const auto list = builder.CreateVector(responses);
  const auto notice = put_bytes(builder, message.notice);
  const Error none{};
  const Error& stop = message.stop ? *message.stop : none;
  const auto text = put_bytes(builder, stop.message);
  builder.Finish(wire::CreateRootBody(builder, list, notice, text,
                                      static_cast<std::uint8_t>(stop.kind),
                                      stop.peer ? stop.peer->value : -1));
  append_body(builder, out);
}

Result<void> take_new_tensors(const wire::NewTensors* from, WireResponse& response) {
  if (from == nullptr || from->tensors() == nullptr || from->tensors()->size() == 0) {
    return malformed("no new tensors where the head has some");
  }
  const auto kind = error_kind_from(from->error_kind());
  if (!kind) return malformed("unknown kind of error");
  response.error = to_text(from->error());
  response.error_kind = *kind;
  for (const wire::NewTensor* tensor : *from->tensors()) {
    auto request = to_request(tensor->request());
    if (!request) return fail(std::move(request.error()));
    NewTensor& added = response.tensors.emplace_back();
    added.request = std::make_shared<const Request>(canonical(std::move(*request)));
    added.slot = tensor->slot();
    added.first_dims = to_numbers(tensor->first_dims());
    if (added.slot != kNoSlot && added.slot >= kMaxSlots) return malformed("slot out of range");
    for (const std::int64_t dimension : added.first_dims) {
      if (dimension < 0) return malformed("negative first dimension");
    }
  }
  return {};
}

Result<void> take_stop(const wire::RootBody& body, RootMessage& message) {
  const auto kind = error_kind_from(body.stop_kind());
  if (!kind) return malformed("unknown kind of error");
  message.stop = Error{*kind, to_text(body.stop()), std::nullopt};
  if (body.stop_peer() >= 0) message.stop->peer = Rank{body.stop_peer()};
  return {};
}

}  // namespace

std::vector<std::byte> encode(const WorkerMessage& message) {
  std::vector<std::byte> bytes;
  bytes.reserve(32);
  ByteWriter out(bytes);
  const bool body = !message.requests.empty() || message.last_words;
  std::uint8_t flags = body ? kHasBody : std::uint8_t{0};
  if (message.flush) flags |= kFlush;
  if (message.last_words) flags |= kLeaves;
  out.byte(kWorkerTag);
  out.byte(0);
  out.varint(message.seen);
  if (!message.hits.empty()) {
    flags |= kHasHits;
    flags |= encode_hits(message.hits, message.first_dims, out);
  }
  flags |= encode_carried(message.inputs, out);
  out.at(1) = static_cast<std::byte>(flags);
  if (body) {
    Builder builder(1024);
    std::vector<flatbuffers::Offset<wire::Request>> requests;
    for (const Request& request : message.requests) {
      requests.push_back(put_request(builder, request));
    }
    const auto list = builder.CreateVector(requests);
    const auto last_words = put_bytes(builder, message.last_words ? *message.last_words : "");
    builder.Finish(wire::CreateWorkerBody(builder, list, last_words));
    append_body(builder, out);
  }
  return checked(std::move(bytes));
}

Result<void> decode(std::span<const std::byte> bytes, WorkerMessage& message) {
  message.hits.clear();
  message.first_dims.clear();
  message.inputs.clear();
  message.requests.clear();
  message.last_words.reset();
  ByteReader in(bytes);
  std::uint8_t tag = 0;
  std::uint8_t flags = 0;
  if (bytes.size() > kMaxMessageBytes) return malformed("too long");
  if (!in.byte(tag) || tag != kWorkerTag || !in.byte(flags) || !in.varint(message.seen)) {
    return malformed("not a worker's");
  }
  message.flush = (flags & kFlush) != 0;
  if ((flags & kHasHits) != 0 && !decode_hits(flags, in, message.hits, message.first_dims)) {
    return malformed("bad set of slots");
  }
  if (!decode_carried(flags, in, message.inputs)) return malformed("bad inputs");
  if ((flags & kHasBody) == 0) {
    return in.rest().empty() ? Result<void>{} : malformed("bytes after the end");
  }
  std::vector<std::uint64_t> aligned;
  const auto* body = verified_body<wire::WorkerBody>(in.rest(), aligned);
  if (body == nullptr) return malformed("bad FlatBuffer");
  if (body->requests() != nullptr) {
    message.requests.reserve(body->requests()->size());
    for (const wire::Request* from : *body->requests()) {
      auto request = to_request(from);
      if (!request) return fail(std::move(request.error()));
      message.requests.push_back(std::move(*request));
    }
  }
  if ((flags & kLeaves) != 0) message.last_words = to_text(body->last_words());
  return {};
}

std::vector<std::byte> encode(const RootMessage& message) {
  std::vector<std::byte> bytes;
  bytes.reserve(32);
  ByteWriter out(bytes);
  bool body = !message.notice.empty() || message.stop;
  out.byte(kRootTag);
  out.byte(0);
  out.varint(message.responses.size());
  for (const WireResponse& response : message.responses) {
    HORA_CHECK(response.lane <= kLaneMask, "a lane fits the head of a response");
    const std::size_t head = out.size();
    std::uint8_t flags = response.lane;
    out.byte(0);
    if (!response.slots.empty()) {
      flags |= kHasHits;
      flags |= encode_hits(response.slots, response.first_dims, out);
    }
    flags |= encode_carried(response.result, out);
    if (!response.tensors.empty()) {
      flags |= kHasNew;
      body = true;
    }
    out.at(head) = static_cast<std::byte>(flags);
  }
  out.at(1) = static_cast<std::byte>((body ? kHasBody : 0) | (message.stop ? kHasStop : 0));
  if (body) append_root_body(message, out);
  return checked(std::move(bytes));
}

Result<void> decode(std::span<const std::byte> bytes, RootMessage& message) {
  message.responses.clear();
  message.notice.clear();
  message.stop.reset();
  ByteReader in(bytes);
  std::uint8_t tag = 0;
  std::uint8_t flags = 0;
  std::uint64_t count = 0;
  if (bytes.size() > kMaxMessageBytes) return malformed("too long");
  if (!in.byte(tag) || tag != kRootTag || !in.byte(flags) || !in.varint(count)) {
    return malformed("not the root's");
  }
  std::vector<std::size_t> with_new;
  std::size_t slots = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    WireResponse& response = message.responses.emplace_back();
    std::uint8_t head = 0;
    if (!in.byte(head)) return malformed("fewer responses than it says");
    response.lane = head & kLaneMask;
    if ((head & kHasHits) != 0 && !decode_hits(head, in, response.slots, response.first_dims)) {
      return malformed("bad set of slots");
    }
    if (!decode_carried(head, in, response.result)) return malformed("bad result");
    if ((head & kHasNew) != 0) with_new.push_back(message.responses.size() - 1);
    if ((slots += response.slots.size()) > kMaxSlots) return malformed("too many slots");
  }
  if ((flags & kHasBody) == 0) {
    if (!with_new.empty() || (flags & kHasStop) != 0) return malformed("no body");
    return in.rest().empty() ? Result<void>{} : malformed("bytes after the end");
  }
  std::vector<std::uint64_t> aligned;
  const auto* body = verified_body<wire::RootBody>(in.rest(), aligned);
  if (body == nullptr) return malformed("bad FlatBuffer");
  const std::size_t bodies = body->responses() == nullptr ? 0 : body->responses()->size();
  if (bodies != with_new.size()) return malformed("responses and bodies do not match");
  for (std::size_t i = 0; i < bodies; ++i) {
    const auto* from = body->responses()->Get(static_cast<flatbuffers::uoffset_t>(i));
    HORA_TRY(take_new_tensors(from, message.responses[with_new[i]]));
  }
  message.notice = to_text(body->notice());
  return (flags & kHasStop) != 0 ? take_stop(*body, message) : Result<void>{};
}

}  // namespace hora
