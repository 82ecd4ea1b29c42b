// Small tensors that travel with their bits: who sends what, when the root reduces, and when the
// tensors go the ordinary way.
#include "runtime/carried.h"

#include <cstring>

#include "runtime/wire.h"
#include "tests/runtime/negotiation_world.h"

namespace hora {
namespace {

using Floats = std::vector<float>;

NegotiationOptions carrying(int size, std::uint64_t carry_bytes = 4096) {
  NegotiationOptions options;
  options.size = size;
  options.carry_bytes = carry_bytes;
  return options;
}

Floats floats_in(const std::vector<std::byte>& bytes) {
  Floats floats(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

const std::byte* bytes_of(const Floats& floats) {
  return reinterpret_cast<const std::byte*>(floats.data());
}

/// A world in which tensors of four floats are known; rank r gives {r + 1, ...}.
class CarryWorld : public NegotiationWorld {
 public:
  explicit CarryWorld(const NegotiationOptions& options, const std::vector<std::string>& names)
      : NegotiationWorld(options) {
    for (int rank = 0; rank < options.size; ++rank)
      inputs.emplace_back(4, static_cast<float>(rank + 1));
    for (const std::string& name : names)
      submit_everywhere(allreduce_of(name));
    flush_all();
    for (std::size_t rank = 0; rank < workers.size(); ++rank)
      take_heard(rank);
  }

  void give(std::size_t rank, const std::string& name) {
    workers[rank]->submit(allreduce_of(name), bytes_of(inputs[rank]));
  }

  /// All ranks hear the same; by response whether it has a result.
  std::vector<Response> heard_by_all() {
    std::vector<Response> first = take_heard(0);
    for (std::size_t rank = 1; rank < workers.size(); ++rank) {
      const std::vector<Response> other = take_heard(rank);
      REQUIRE(other.size() == first.size());
      for (std::size_t i = 0; i < first.size(); ++i)
        REQUIRE(other[i].result == first[i].result);
    }
    return first;
  }

  std::vector<Floats> inputs;  // By rank.
};

}  // namespace

TEST_CASE("carried: plain all-reduces of up to 64 KB can be, and nothing else") {
  Request request = allreduce_of("x", {256});
  CHECK(carriable_bytes(request) == 1024);
  request.op = ReduceOp::average;
  CHECK(carriable_bytes(request) == 1024);
  for (const Kind kind : {Kind::allgather, Kind::broadcast, Kind::barrier, Kind::reducescatter,
                          Kind::alltoall, Kind::join, Kind::add_set}) {
    CHECK(carriable_bytes(of_kind(kind, "x", {256})) == 0);
  }
  request.op = ReduceOp::adasum;
  CHECK(carriable_bytes(request) == 0);
  request.op = ReduceOp::sum;
  request.codec = "int8";
  CHECK(carriable_bytes(request) == 0);
  CHECK(carriable_bytes(allreduce_of("x", {16384})) == kMaxCarriedBytes);
  CHECK(carriable_bytes(allreduce_of("x", {16385})) == 0);
  CHECK(carriable_bytes(allreduce_of("x", {0})) == 0);
}

TEST_CASE("carried: inputs are merged in the order of ranks, whatever order they came in") {
  Request request = allreduce_of("x", {3});
  request.prescale = 2;
  request.op = ReduceOp::average;
  const Floats big{1e8f, 3, -4}, small{1, 5, 0}, minus{-1e8f, 1, 1};
  CarriedInputs inputs;
  const auto put = [&](int place, const Floats& floats) {
    inputs.put(place, 3, {bytes_of(floats), 12});
  };
  put(2, minus);
  put(0, big);
  CHECK(inputs.count() == 2);
  put(1, small);
  CHECK(inputs.count() == 3);
  CHECK(floats_in(inputs.reduce(request)) == Floats{0, 6, -2});  // The small one is lost in 1e8.
  CHECK(inputs.kept_bytes() > 0);
  inputs.clear();
  CHECK(inputs.count() == 0);
  CHECK(inputs.kept_bytes() == 0);
}

TEST_CASE("carried: a known tensor that is waited for comes back reduced, in one round") {
  CarryWorld world(carrying(3), {"x"});
  for (std::size_t rank : {2, 0, 1}) {
    world.give(rank, "x");
    world.workers[rank]->flush();
    CHECK(world.decide() == 0);
    world.send(rank);
    world.hear(rank);
  }
  world.outstanding = {2, 2};  // It takes no lane.
  CHECK(world.decide() == 1);
  for (std::size_t rank : {1, 2})
    world.deliver(rank);
  const auto responses = world.heard_by_all();
  REQUIRE(responses.size() == 1);
  CHECK(floats_in(responses[0].result) == Floats(4, 6));
  CHECK(responses[0].tensors[0].request->name == "x");
  CHECK(world.last_up_bytes <= 24);
}

TEST_CASE("carried: one rank that does not send its input makes it an ordinary tensor") {
  CarryWorld world(carrying(3), {"x"});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    SECTION("rank " + std::to_string(rank)) {
      for (std::size_t other = 0; other < 3; ++other) {
        if (other == rank) {
          world.workers[other]->submit(allreduce_of("x"));
        } else {
          world.give(other, "x");
        }
      }
      world.flush_all();
      const auto responses = world.heard_by_all();
      REQUIRE(responses.size() == 1);
      CHECK(responses[0].result.empty());
      CHECK(responses[0].error.empty());
    }
  }
}

TEST_CASE("carried: what nobody waits for is not") {
  CarryWorld world(carrying(2), {"x"});
  for (std::size_t rank : {0, 1}) {
    world.give(rank, "x");
    world.send(rank);
    CHECK(world.last_up_bytes <= 8);
  }
  world.flush_all();
  CHECK(world.heard_by_all().at(0).result.empty());
}

TEST_CASE("carried: tensors that are many bytes together are fused instead") {
  std::vector<std::string> names;
  for (int i = 0; i < 161; ++i)
    names.push_back("t" + std::to_string(i));
  CarryWorld world(carrying(2, 16 * 10), names);
  const auto answers = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t rank : {0, 1})
        world.give(rank, names[i]);
    }
    world.flush_all();
    return world.heard_by_all();
  };
  const auto few = answers(10);
  REQUIRE(few.size() == 10);
  for (const Response& response : few)
    CHECK(floats_in(response.result) == Floats(4, 3));
  for (const std::size_t count : {std::size_t{11}, names.size()}) {
    const auto many = answers(count);
    REQUIRE(many.size() == 1);
    CHECK(many[0].tensors.size() == count);
    CHECK(many[0].result.empty());
    CHECK(world.last_up_bytes <= 8);
  }
}

TEST_CASE("carried: with a joined rank tensors go the ordinary way") {
  CarryWorld world(carrying(3), {"x"});
  Request join = of_kind(Kind::join, std::string(kJoinName));
  world.give(0, "x");
  world.give(1, "x");
  world.workers[2]->submit(join);
  world.flush_all();
  const auto responses = world.heard_by_all();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].result.empty());
}

TEST_CASE("carried: ranks that disagree are told so") {
  CarryWorld world(carrying(2), {"x", "y"});
  world.give(0, "x");
  world.workers[1]->submit(allreduce_of("x", {2, 2}), bytes_of(world.inputs[1]));
  world.flush_all();
  const auto responses = world.heard_by_all();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].error.find("'x'") != std::string::npos);
  CHECK(responses[0].result.empty());
}

TEST_CASE("carried: a process set without the root") {
  NegotiationOptions options = carrying(3);
  options.sets = {{1, 2}};
  CarryWorld world(options, {});
  Request request = allreduce_of("x");
  request.set = SetId(1);
  for (int call = 0; call < 2; ++call) {
    for (std::size_t rank : {1, 2})
      world.workers[rank]->submit(request, bytes_of(world.inputs[rank]));
    world.flush_all();
    const auto responses = world.heard_by_all();
    REQUIRE(responses.size() == 1);
    CHECK(floats_in(responses[0].result) == (call == 0 ? Floats{} : Floats(4, 5)));
  }
}

TEST_CASE("carried: a group is answered as a whole") {
  CarryWorld world(carrying(2), {});
  const auto give = [&](std::size_t rank, const std::string& name) {
    Request request = allreduce_of(name);
    request.group = "g";
    request.group_size = 2;
    world.workers[rank]->submit(request, bytes_of(world.inputs[rank]));
    world.workers[rank]->flush();
    world.settle();
  };
  for (int call = 0; call < 2; ++call) {
    give(0, "a");
    give(1, "a");
    give(0, "b");
    CHECK(world.heard[0].empty());
    give(1, "b");
    const auto responses = world.heard_by_all();
    REQUIRE(responses.size() == (call == 0 ? 1 : 2));
    for (const Response& response : responses)
      CHECK(floats_in(response.result) == (call == 0 ? Floats{} : Floats(4, 3)));
  }
}

TEST_CASE("carried: what the root keeps is bounded") {
  CarryWorld world(carrying(2, kMaxCarriedBytes), {});
  const std::size_t most = 2 * kMostKeptBytes / (2 * kMaxCarriedBytes);
  const auto count = static_cast<std::int64_t>(kMaxCarriedBytes / sizeof(float));
  const Floats input(kMaxCarriedBytes / sizeof(float), 1);
  std::size_t carried = 0;
  for (int call = 0; call < 2; ++call) {
    for (std::size_t rank : {0, 1}) {
      for (std::size_t i = 0; i < most; ++i) {
        const Request request = allreduce_of("t" + std::to_string(i), {count});
        world.workers[rank]->submit(request, bytes_of(input));
        world.workers[rank]->flush();
        world.settle();
      }
    }
    for (const Response& response : world.heard_by_all())
      carried += response.result.empty() ? 0 : 1;
  }
  CHECK(carried == most / 2);
}

TEST_CASE("carried: inputs that are too few or too many are a broken message") {
  const auto refused = [](std::size_t bytes, Kind kind) {
    Coordinator root(carrying(1));
    WorkerNegotiator worker(Rank(0), carrying(1));
    worker.submit(of_kind(kind, "x", {4}));
    worker.flush();
    REQUIRE(root.on_message(Rank(0), *worker.take_message(), TimePoint{}));
    const std::array<std::uint32_t, kLanes> outstanding{};
    REQUIRE(worker.on_root_message(*root.take_message(TimePoint{}, outstanding)));
    WorkerMessage message;
    message.seen = 1;
    message.hits = {0};
    message.inputs.resize(bytes);
    if (kind == Kind::allgather) message.first_dims = {4};
    const auto accepted = root.on_message(Rank(0), encode(message), TimePoint{});
    return !accepted && accepted.error().kind == ErrorKind::protocol;
  };
  CHECK_FALSE(refused(0, Kind::allreduce));
  CHECK_FALSE(refused(16, Kind::allreduce));
  CHECK(refused(15, Kind::allreduce));
  CHECK(refused(17, Kind::allreduce));
  CHECK(refused(16, Kind::allgather));
}

TEST_CASE("carried: a result of another size is a broken message") {
  const auto taken = [](std::size_t bytes) {
    WorkerNegotiator worker(Rank(0), carrying(2));
    RootMessage message;
    WireResponse& response = message.responses.emplace_back();
    response.tensors.push_back({std::make_shared<Request>(allreduce_of("x", {4})), 0, {}});
    response.result.resize(bytes);
    return worker.on_root_message(encode(message)).has_value();
  };
  CHECK(taken(0));
  CHECK(taken(16));
  CHECK_FALSE(taken(12));
  CHECK_FALSE(taken(20));
}

}  // namespace hora
