// Messages survive the way, any bytes in them too; bytes that are no messages are errors.
#include "runtime/wire.h"

#include <cmath>
#include <random>

#include <catch2/catch.hpp>

#include "runtime/carried.h"

namespace hora {
namespace {

const std::string kNasty = std::string("nul\0 and \xff\xfe invalid \xc3", 20);

Request nasty_request() {
  Request request;
  request.name = kNasty;
  request.kind = Kind::allreduce;
  request.dtype = DType::bfloat16;
  request.op = ReduceOp::product;
  request.prescale = 0.1;
  request.postscale = -0.0;
  request.shape = {3, 0, 1 << 20};
  return request;
}

WorkerMessage worker_message() {
  WorkerMessage message;
  message.seen = 123456789;
  message.flush = true;
  message.hits = {1, 2, 3, 70, 900};
  message.first_dims = {0, 5, 1ll << 40};
  message.inputs.assign(1000, std::byte{7});
  message.requests = {nasty_request(), Request{}};
  message.requests[1].kind = Kind::alltoall;
  message.requests[1].shape = {5, 3};
  message.requests[1].splits = {2, 0, 3};
  message.requests[1].group = kNasty;
  message.requests[1].group_size = 12;
  message.requests[1].refusal = kNasty;
  message.last_words = kNasty;
  return message;
}

RootMessage root_message() {
  RootMessage message;
  WireResponse known;
  known.lane = 1;
  known.slots = {0, 5, 6, 7};
  known.first_dims = {4, 4, 0, 9};
  WireResponse fresh;
  fresh.slots = {9};
  fresh.result.assign(300, std::byte{5});
  fresh.tensors.push_back({std::make_shared<Request>(nasty_request()), 77, {1, 2, 3}});
  WireResponse failing;
  failing.tensors.push_back({std::make_shared<Request>(), kNoSlot, {}});
  failing.error = kNasty;
  failing.error_kind = ErrorKind::invalid_argument;
  message.responses = {known, fresh, failing, known};
  message.notice = kNasty;
  message.stop = Error{ErrorKind::timeout, "too late", Rank{2}};
  return message;
}

void require_same(const WireResponse& a, const WireResponse& b) {
  CHECK(a.lane == b.lane);
  CHECK(a.slots == b.slots);
  CHECK(a.first_dims == b.first_dims);
  CHECK(a.result == b.result);
  CHECK(a.error == b.error);
  CHECK(a.error_kind == b.error_kind);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    CHECK(matches(canonical(*a.tensors[i].request), *b.tensors[i].request));
    CHECK(a.tensors[i].slot == b.tensors[i].slot);
    CHECK(a.tensors[i].first_dims == b.tensors[i].first_dims);
  }
}

/// Decodes broken variants of a valid message: bits flipped, cut, lengthened. None may crash; how
/// many still decode is not the point.
template <class Message>
void torture(const std::vector<std::byte>& valid, int rounds) {
  Message message;
  for (std::size_t cut = 0; cut < valid.size(); ++cut) {
    (void)decode(std::span(valid).first(cut), message).has_value();
  }
  std::mt19937_64 random(valid.size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::byte> bytes = valid;
    for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    if (random() % 8 == 0) bytes.resize(random() % (2 * bytes.size()));
    const auto decoded = decode(bytes, message);
    if (!decoded) REQUIRE(decoded.error().kind == ErrorKind::protocol);
  }
}

}  // namespace

TEST_CASE("wire: a worker's message survives the way, any bytes in it") {
  const WorkerMessage sent = worker_message();
  WorkerMessage got;
  REQUIRE(decode(encode(sent), got));
  CHECK(got.seen == sent.seen);
  CHECK(got.flush);
  CHECK(got.hits == sent.hits);
  CHECK(got.first_dims == sent.first_dims);
  CHECK(got.inputs == sent.inputs);
  REQUIRE(got.requests.size() == 2);
  CHECK(matches(got.requests[0], sent.requests[0]));
  CHECK(got.requests[1] == sent.requests[1]);
  CHECK(got.last_words == kNasty);

  REQUIRE(decode(encode(WorkerMessage{}), got));  // nothing of the last message stays
  CHECK(got.hits.empty());
  CHECK(got.inputs.empty());
  CHECK(got.requests.empty());
  CHECK_FALSE(got.last_words);
  CHECK_FALSE(got.flush);
}

TEST_CASE("wire: the root's message survives the way") {
  const RootMessage sent = root_message();
  RootMessage got;
  REQUIRE(decode(encode(sent), got));
  REQUIRE(got.responses.size() == 4);
  for (std::size_t i = 0; i < 4; ++i)
    require_same(sent.responses[i], got.responses[i]);
  CHECK(got.notice == kNasty);
  REQUIRE(got.stop);
  CHECK(got.stop->kind == ErrorKind::timeout);
  CHECK(got.stop->message == "too late");
  CHECK(got.stop->peer == Rank{2});
  REQUIRE(decode(encode(RootMessage{}), got));
  CHECK(got.empty());
}

TEST_CASE("wire: broken bytes are errors of kind protocol, never a crash") {
  torture<WorkerMessage>(encode(worker_message()), 20000);
  torture<RootMessage>(encode(root_message()), 20000);
  WorkerMessage hits_only;
  hits_only.hits = {1, 5, 6, 7, 9, 11, 13, 15, 17, 19, 21, 300};
  torture<WorkerMessage>(encode(hits_only), 5000);

  WorkerMessage worker;
  RootMessage root;
  CHECK_FALSE(decode(encode(RootMessage{}), worker));
  CHECK_FALSE(decode(encode(WorkerMessage{}), root));
  std::mt19937_64 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random());
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(round % 2 == 0 ? 'W' : 'R');
    (void)decode(bytes, worker).has_value();
    (void)decode(bytes, root).has_value();
  }
}

TEST_CASE("wire: what is carried is bounded") {
  WorkerMessage message;
  message.hits = {1};
  message.inputs.resize(kMaxCarriedBytes);
  WorkerMessage got;
  REQUIRE(decode(encode(message), got));
  message.inputs.resize(kMaxCarriedBytes + 1);
  CHECK_FALSE(decode(encode(message), got));
}

TEST_CASE("wire: what is well-formed but senseless is refused") {
  WorkerMessage message;
  message.requests.resize(1);
  Request& request = message.requests[0];
  WorkerMessage got;
  REQUIRE(decode(encode(message), got));
  const auto refused = [&](auto spoil) {
    request = Request{};
    spoil();
    const auto decoded = decode(encode(message), got);
    return !decoded && decoded.error().kind == ErrorKind::protocol;
  };
  CHECK(refused([&] { request.kind = static_cast<Kind>(99); }));
  CHECK(refused([&] { request.dtype = static_cast<DType>(99); }));
  CHECK(refused([&] { request.op = static_cast<ReduceOp>(99); }));
  CHECK(refused([&] { request.shape = {-1}; }));
  CHECK(refused([&] { request.shape = {1ll << 40, 1ll << 40}; }));
  CHECK(refused([&] { request.shape = {0, 1ll << 62}; }));
  CHECK(refused([&] { request.shape.assign(kMaxDimensions + 1, 1); }));
  CHECK(refused([&] { request.name.assign(kMaxNameBytes + 1, 'x'); }));
}

}  // namespace hora
