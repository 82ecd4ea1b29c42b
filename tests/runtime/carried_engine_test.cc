// Small all-reduces through whole engines: carried by negotiation they give the same bytes as over
// the links, for every type, operation, scale and number of ranks.
#include <cstring>

#include "runtime/base/float16.h"
#include "tests/runtime/engine_calls.h"

namespace hora::test {
namespace {

using Bytes = std::vector<std::byte>;

/// Any bits, and among them what is special: NaN, infinities, denormals, negative zero.
Bytes random_bytes(const Request& request, std::mt19937_64& random) {
  Bytes bytes(byte_count(request));
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

/// One tensor of all ranks of a set: what everybody gives and gets.
struct SmallCall {
  Request request;
  std::vector<std::int32_t> ranks;
  std::vector<Bytes> inputs;

  /// Runs it on all ranks; the outputs.
  std::vector<Bytes> run(EngineWorld& world, std::mt19937& random, bool in_place) const {
    std::vector<Bytes> given = inputs, outputs = inputs;
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      std::byte* const output = outputs[i].data();
      auto handle = world.post(ranks[i], request, in_place ? output : given[i].data(), output);
      REQUIRE(handle);
      handles.push_back(*handle);
    }
    world.run(random);
    for (const Handle& handle : handles) {
      REQUIRE(handle->done());
      REQUIRE(handle->outcome());
    }
    REQUIRE(given == inputs);
    return outputs;
  }
};

std::uint64_t segments(EngineWorld& world) {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < world.size(); ++rank)
    sum += world[rank].stats().segments;
  return sum;
}

EngineWorldOptions options_of(int size, std::uint64_t carry_bytes = 4096) {
  EngineWorldOptions options;
  options.size = size;
  options.config.carry_bytes = carry_bytes;
  return options;
}

}  // namespace

TEST_CASE("carried: the same bytes as over the links: any type, operation, scale and size") {
  std::mt19937 steps(1);
  for (int size = 1; size <= 8; ++size) {
    EngineWorldOptions options = options_of(size);
    if (size > 2) options.config.process_sets = {{1, size - 1}};
    EngineWorld world(options);
    std::mt19937_64 random(static_cast<std::uint64_t>(size));
    for (int type = 0; type < kDTypeCount; ++type) {
      for (const ReduceOp op :
           {ReduceOp::average, ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
        SmallCall call;
        call.request = allreduce_request("t" + std::to_string(type) + std::string(to_string(op)),
                                         static_cast<std::int64_t>(1 + random() % 70), op);
        call.request.dtype = *dtype_from(type);
        if (random() % 2 == 0) call.request.prescale = 0.3;
        if (random() % 2 == 0) call.request.postscale = -1.7;
        if (size > 2 && random() % 3 == 0) call.request.set = SetId(1);
        call.ranks = {1, size - 1};
        if (call.request.set == kGlobalSet) {
          call.ranks.clear();
          for (int rank = 0; rank < size; ++rank)
            call.ranks.push_back(rank);
        }
        for (std::size_t i = 0; i < call.ranks.size(); ++i)
          call.inputs.push_back(random_bytes(call.request, random));
        INFO(size << " ranks, " << call.request.name << ", set " << call.request.set.value);

        const auto ordinary = call.run(world, steps, false);  // Nobody knows it yet.
        const std::uint64_t before = segments(world);
        const auto carried = call.run(world, steps, random() % 2 == 0);
        REQUIRE(segments(world) == before);
        REQUIRE(carried == ordinary);
        for (const Bytes& output : carried)
          REQUIRE(output == carried[0]);
      }
    }
  }
}

TEST_CASE("carried: an average of float16 does not overflow on the way") {
  EngineWorld world(options_of(4));
  std::mt19937 steps(2);
  SmallCall call;
  call.request = allreduce_request("x", 5, ReduceOp::average);
  call.request.dtype = DType::float16;
  call.ranks = {0, 1, 2, 3};
  const std::uint16_t large = float16_from_float(60000);
  Bytes input(10);
  for (std::size_t at = 0; at < input.size(); at += 2)
    std::memcpy(input.data() + at, &large, 2);
  call.inputs.assign(4, input);
  for (int i = 0; i < 2; ++i)
    CHECK(call.run(world, steps, false) == call.inputs);
}

TEST_CASE("carried: never where it is switched off or an algorithm is asked for") {
  EngineWorldOptions off = options_of(3, 0), forced = options_of(3);
  forced.config.algorithm = "ring";
  for (const EngineWorldOptions& options : {off, forced}) {
    EngineWorld world(options);
    std::mt19937 steps(3);
    SmallCall call{allreduce_request("x", 3), {0, 1, 2}, std::vector<Bytes>(3, Bytes(12))};
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t before = segments(world);
      call.run(world, steps, false);
      CHECK(segments(world) == before + 3);
    }
  }
}

TEST_CASE("carried: beside larger tensors and barriers, in any order of steps") {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const int size = 1 + static_cast<int>(seed % 5);
    EngineWorld world(options_of(size));
    Calls calls;
    for (int round = 0; round < 4; ++round) {
      for (int rank = 0; rank < size; ++rank) {
        calls.allreduce(world, rank, "small", 9, ReduceOp::average);
        if (random() % 2 == 0) world.step(rank);
        calls.allreduce(world, rank, "async", 5, ReduceOp::sum, false);
        calls.allreduce(world, rank, "large", 3000);
        calls.barrier(world, rank, "barrier");
        if (random() % 2 == 0) world.step(rank);
        calls.allreduce(world, rank, "last", 1, ReduceOp::max);
      }
      world.run(random);
      for (const auto& call : calls.all) {
        REQUIRE(call->handle->done());
        REQUIRE(call->handle->outcome());
      }
    }
    for (std::size_t i = 0; i < calls.all.size(); ++i) {
      const int rank = static_cast<int>(i / 5) % size;
      calls.all[i]->check(rank, size);
    }
  }
}

TEST_CASE("carried: a rank that leaves fails the call, and the inputs are what they were") {
  EngineWorld world(options_of(3));
  std::mt19937 steps(4);
  const SmallCall known{allreduce_request("x", 3), {0, 1, 2}, std::vector<Bytes>(3, Bytes(12))};
  known.run(world, steps, true);
  std::vector<Bytes> buffers(2, Bytes(12, std::byte{42}));
  std::vector<Handle> handles;
  for (int rank : {0, 1}) {
    std::byte* const buffer = buffers[static_cast<std::size_t>(rank)].data();
    handles.push_back(*world.post(rank, known.request, buffer, buffer));
  }
  world.run(steps);
  world.leave(2);
  world.run(steps);
  world.advance(1s);
  world.run(steps);
  for (const Handle& handle : handles) {
    REQUIRE(handle->done());
    CHECK_FALSE(handle->outcome());
  }
  CHECK(buffers == std::vector<Bytes>(2, Bytes(12, std::byte{42})));
}

}  // namespace hora::test
