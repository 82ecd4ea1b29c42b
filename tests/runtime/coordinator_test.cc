// When the root answers, what it fuses, and what it says when ranks disagree.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>

#include "runtime/negotiation.h"
#include "tests/runtime/negotiation_world.h"

namespace hora {
namespace {

NegotiationOptions of_size(int size) {
  NegotiationOptions options;
  options.size = size;
  return options;
}

/// The answer to one tensor that rank r submits as requests[r].
Response answer_to(const std::vector<Request>& requests) {
  NegotiationWorld world(of_size(static_cast<int>(requests.size())));
  for (std::size_t rank = 0; rank < requests.size(); ++rank) {
    world.workers[rank]->submit(requests[rank]);
  }
  world.flush_all();
  auto responses = world.take_heard(0);
  REQUIRE(responses.size() == 1);
  for (std::size_t rank = 1; rank < requests.size(); ++rank) {
    REQUIRE(world.heard[rank].size() == 1);
    REQUIRE(world.heard[rank][0].error == responses[0].error);
    REQUIRE(world.heard[rank][0].error_kind == responses[0].error_kind);
  }
  return responses[0];
}

std::size_t tensors_in(const std::vector<Response>& responses) {
  std::size_t count = 0;
  for (const Response& response : responses)
    count += response.tensors.size();
  return count;
}

/// The 161 gradients of ResNet-50 in the order of its backward pass.
std::vector<Request> resnet50_gradients() {
  std::vector<Request> forward;
  const auto add = [&](std::vector<std::int64_t> shape) {
    forward.push_back(allreduce_of("gradient." + std::to_string(forward.size()), std::move(shape)));
  };
  const auto conv = [&](std::int64_t out, std::int64_t in, std::int64_t kernel) {
    add({out, in, kernel, kernel});
    add({out});
    add({out});
  };
  conv(64, 3, 7);
  std::int64_t in = 64;
  for (const auto& [width, blocks] : {std::pair{64, 3}, {128, 4}, {256, 6}, {512, 3}}) {
    for (int block = 0; block < blocks; ++block) {
      conv(width, in, 1);
      conv(width, width, 3);
      conv(width * 4, width, 1);
      if (block == 0) conv(width * 4, in, 1);
      in = width * 4;
    }
  }
  add({1000, 2048});
  add({1000});
  return {forward.rbegin(), forward.rend()};
}

}  // namespace

TEST_CASE("coordinator: a tensor is answered when the last rank has it, and not before") {
  NegotiationWorld world(of_size(3));
  for (std::size_t rank : {0, 2}) {
    world.workers[rank]->submit(allreduce_of("x"));
    world.workers[rank]->flush();
  }
  world.settle();
  CHECK(world.heard[0].empty());
  CHECK(world.root.missing_ranks() == 1);
  REQUIRE(world.root.waiting().size() == 1);
  CHECK(world.root.waiting()[0].first == "x");
  CHECK(world.root.waiting()[0].second == std::vector<Rank>{Rank{0}, Rank{2}});

  world.workers[1]->submit(allreduce_of("x"));  // without a flush of its own
  world.settle();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    REQUIRE(world.heard[rank].size() == 1);
    CHECK(world.heard[rank][0].tensors[0].request->name == "x");
    CHECK(world.heard[rank][0].tensors[0].request->shape == std::vector<std::int64_t>{4});
  }
  CHECK(world.root.missing_ranks() == 0);
}

TEST_CASE(
    "coordinator: a call that is waited for takes one message of each rank and one of the root") {
  NegotiationWorld world(of_size(4));
  for (int call = 0; call < 3; ++call) {
    world.submit_everywhere(allreduce_of("x", {256}));
    world.workers[call == 0 ? 3 : 1]->flush();  // one caller is enough
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CHECK(world.decide() == 0);
      world.send(rank);
      CHECK(world.up[rank].size() == 1);
      world.hear(rank);
    }
    CHECK(world.decide() == 1);
    for (std::size_t rank = 1; rank < 4; ++rank)
      CHECK(world.deliver(rank));
    world.finish();
    const auto responses = world.take_heard(2);
    REQUIRE(responses.size() == 1);
    CHECK(responses[0].lane == kSmallLane);
  }
  CHECK(world.last_up_bytes <= 8);
  CHECK(world.last_down_bytes <= 8);
}

TEST_CASE("coordinator: what nobody waits for is held, and answered when its time is over") {
  NegotiationWorld world(of_size(2));
  world.submit_everywhere(allreduce_of("x"));
  world.settle();
  CHECK(world.heard[0].empty());
  REQUIRE(world.root.next_deadline());
  CHECK(*world.root.next_deadline() == world.now + 50ms);

  world.now += 49ms;
  world.settle();
  CHECK(world.heard[0].empty());
  world.now += 1ms;
  world.settle();
  CHECK(world.heard[1].size() == 1);
  CHECK_FALSE(world.root.next_deadline());
}

TEST_CASE("coordinator: a flush covers what was submitted before it, even if ready later") {
  NegotiationWorld world(of_size(2));
  world.workers[0]->submit(allreduce_of("before"));
  world.workers[0]->flush();
  world.settle();
  world.workers[0]->submit(allreduce_of("after"));
  world.settle();

  world.workers[1]->submit(allreduce_of("after"));
  world.settle();
  CHECK(world.heard[0].empty());  // ready, but nobody waits for it
  world.workers[1]->submit(allreduce_of("before"));
  world.settle();
  // The first one is answered at once, and what is ready comes along in the same buffer.
  REQUIRE(world.heard[0].size() == 1);
  CHECK(world.heard[0][0].tensors.size() == 2);
}

TEST_CASE("coordinator: polling costs one message") {
  NegotiationWorld world(of_size(2));
  world.workers[0]->flush();
  CHECK_FALSE(world.workers[0]->take_message());  // nothing submitted, nothing to hurry
  world.workers[0]->submit(allreduce_of("x"));
  CHECK(world.workers[0]->take_message());
  world.workers[0]->flush();
  CHECK(world.workers[0]->take_message());
  for (int i = 0; i < 100; ++i)
    world.workers[0]->flush();
  CHECK_FALSE(world.workers[0]->take_message());
  world.workers[0]->submit(allreduce_of("y"));
  world.workers[0]->flush();
  CHECK(world.workers[0]->take_message());
}

TEST_CASE("coordinator: at most two buffers of a lane are in flight, the rest fuses meanwhile") {
  NegotiationOptions options = of_size(1);
  options.small_bytes = 0;
  NegotiationWorld world(options);
  const auto submit = [&](int i) {
    world.workers[0]->submit(allreduce_of("t" + std::to_string(i)));
    world.workers[0]->flush();
    world.send(0);
    world.hear(0);
    world.decide();
  };
  for (int i = 0; i < 10; ++i)
    submit(i);
  CHECK(world.heard[0].size() == 2);
  CHECK_FALSE(world.root.next_deadline());  // only a finished buffer changes anything
  world.now += 1s;
  world.finish();
  world.decide();
  REQUIRE(world.heard[0].size() == 3);
  CHECK(world.heard[0][2].tensors.size() == 8);
}

TEST_CASE("coordinator: small and large buffers take their lanes; a full one blocks only itself") {
  NegotiationOptions options = of_size(1);
  NegotiationWorld world(options);
  world.outstanding[kBulkLane] = 2;
  world.workers[0]->submit(allreduce_of("large", {1 << 20}));
  world.workers[0]->submit(of_kind(Kind::broadcast, "large broadcast", {1 << 20}));
  world.workers[0]->submit(of_kind(Kind::barrier, "barrier"));
  Request half = allreduce_of("small");
  half.dtype = DType::float16;
  world.workers[0]->submit(half);
  world.workers[0]->flush();
  world.send(0);
  world.hear(0);
  world.decide();
  std::map<std::string, std::uint16_t> lanes;
  for (const Response& response : world.take_heard(0)) {
    lanes[response.tensors[0].request->name] = response.lane;
  }
  CHECK(lanes == std::map<std::string, std::uint16_t>{{"large broadcast", kBulkLane},
                                                      {"barrier", kSmallLane},
                                                      {"small", kSmallLane}});
  world.finish();
  world.decide();
  CHECK(world.heard[0].at(0).tensors[0].request->name == "large");
}

TEST_CASE("coordinator: gradients that come one by one end in a handful of buffers") {
  const auto gradients = resnet50_gradients();
  REQUIRE(gradients.size() == 161);
  for (int pause_ms = 1; pause_ms <= 3; ++pause_ms) {
    NegotiationWorld world(of_size(2));
    std::vector<Response> responses;
    for (const Request& gradient : gradients) {
      world.submit_everywhere(gradient);
      world.now += std::chrono::milliseconds(pause_ms);
      world.settle();
    }
    world.flush_all();
    responses = world.take_heard(1);
    std::printf("resnet-50, %d ms apart: %zu buffers\n", pause_ms, responses.size());
    CHECK(tensors_in(responses) == 161);
    CHECK(responses.size() <= 16);
  }
}

TEST_CASE("coordinator: gradients that come at once end in total / target buffers") {
  NegotiationWorld world(of_size(4));
  const auto gradients = resnet50_gradients();
  std::uint64_t total = 0;
  for (int step = 0; step < 2; ++step) {
    world.up_bytes = world.down_bytes = 0;
    for (const Request& gradient : gradients) {
      world.submit_everywhere(gradient);
      total += byte_count(gradient);
    }
    world.flush_all();
    const auto responses = world.take_heard(3);
    CHECK(tensors_in(responses) == 161);
    CHECK(responses.size() <= 14);  // 102 MB / 8 MiB = 12.2
    std::printf(
        "resnet-50 at once, step %d: %zu buffers, %zu bytes from each rank, %zu from the root\n",
        step, responses.size(), world.up_bytes / 4, world.down_bytes);
  }
  CHECK(total / 2 == 102228128);
  CHECK(world.up_bytes / 4 <= 40);
  CHECK(world.down_bytes <= 120);
}

TEST_CASE("coordinator: after the first step a tensor costs about a bit, in any order") {
  constexpr std::size_t kTensors = 1000, kSteps = 1000;
  NegotiationWorld world(of_size(4));
  std::vector<std::size_t> order(kTensors);
  for (std::size_t i = 0; i < kTensors; ++i)
    order[i] = i;
  std::mt19937_64 random(7);
  std::size_t worst_up = 0, worst_down = 0, first_up = 0, first_down = 0;
  for (std::size_t step = 0; step < kSteps; ++step) {
    world.up_bytes = world.down_bytes = 0;
    for (auto& worker : world.workers) {
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t i : order)
        worker->submit(allreduce_of("layer." + std::to_string(i)));
    }
    world.flush_all();
    REQUIRE(tensors_in(world.take_heard(2)) == kTensors);
    for (std::size_t rank : {0, 1, 3})
      world.take_heard(rank);
    if (step == 0) {
      first_up = world.up_bytes / 4;
      first_down = world.down_bytes;
    } else {
      worst_up = std::max(worst_up, world.up_bytes / 4);
      worst_down = std::max(worst_down, world.down_bytes);
    }
  }
  std::printf(
      "1000 tensors, random orders: first step %zu up, %zu down; then at most %zu up, %zu down\n",
      first_up, first_down, worst_up, worst_down);
  CHECK(worst_up <= kTensors / 8 + 16);
  CHECK(worst_down <= kTensors / 8 + 16);
}

TEST_CASE(
    "coordinator: tensors submitted one by one in random orders still cost a few bytes each") {
  constexpr std::size_t kTensors = 200;
  NegotiationWorld world(of_size(4));
  std::vector<std::size_t> order(kTensors);
  for (std::size_t i = 0; i < kTensors; ++i)
    order[i] = i;
  std::mt19937_64 random(11);
  for (int step = 0; step < 3; ++step) {
    world.up_bytes = world.down_bytes = 0;
    std::vector<std::vector<std::size_t>> orders(4, order);
    for (auto& of_rank : orders)
      std::shuffle(of_rank.begin(), of_rank.end(), random);
    for (std::size_t i = 0; i < kTensors; ++i) {
      for (std::size_t rank = 0; rank < 4; ++rank) {
        world.workers[rank]->submit(allreduce_of("layer." + std::to_string(orders[rank][i])));
        world.send(rank);
        world.hear(rank);
      }
    }
    world.flush_all();
    REQUIRE(tensors_in(world.take_heard(1)) == kTensors);
  }
  std::printf("200 tensors one by one: %zu bytes up per rank, %zu down\n", world.up_bytes / 4,
              world.down_bytes);
  CHECK(world.up_bytes / 4 <= kTensors * 6 + 16);
  CHECK(world.down_bytes <= kTensors + 64);
}

TEST_CASE("mismatch: the error names tensor, ranks and values on all ranks, and the job goes on") {
  NegotiationWorld world(of_size(4));
  for (int round = 0; round < 2; ++round) {  // unknown tensors, then known ones
    world.submit_everywhere(allreduce_of("x", {17, 17}));
    world.submit_everywhere(allreduce_of("y"));
    world.flush_all();
    for (std::size_t rank = 0; rank < 4; ++rank)
      world.take_heard(rank);

    for (std::size_t rank = 0; rank < 4; ++rank) {
      const std::int64_t side = rank == 2 ? 18 : 17;
      world.workers[rank]->submit(allreduce_of("x", {side, side}));
    }
    world.submit_everywhere(allreduce_of("y"));
    world.flush_all();
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto responses = world.take_heard(rank);
      REQUIRE(responses.size() == 2);
      CHECK(responses[0].error ==
            "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [17, 17], but "
            "another rank sent a tensor of shape [18, 18]. (tensor 'x': ranks 0,1,3 submitted "
            "float32[17, 17], rank 2 submitted float32[18, 18])");
      CHECK(responses[0].error_kind == ErrorKind::mismatch);
      CHECK(responses[1].error.empty());
      CHECK(responses[1].tensors[0].request->name == "y");
    }
  }
}

TEST_CASE("mismatch: kinds, types, operations, scales, roots, and shapes of allgathers") {
  const auto with = [](auto change) {
    Request request = allreduce_of("x", {2, 3});
    change(request);
    return request;
  };
  const Request plain = allreduce_of("x", {2, 3});
  CHECK(answer_to({plain, with([](Request& r) { r.kind = Kind::allgather; })}).error ==
        "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER. "
        "(tensor 'x': rank 0 submitted ALLREDUCE float32[2, 3], rank 1 submitted ALLGATHER "
        "float32[2, 3])");
  CHECK(answer_to({plain, plain, plain, with([](Request& r) { r.dtype = DType::int32; })}).error ==
        "Mismatched data types: One rank had type float32, but another rank had type int32. "
        "(tensor 'x': ranks 0-2 submitted float32[2, 3], rank 3 submitted int32[2, 3])");
  CHECK(answer_to({plain, with([](Request& r) { r.op = ReduceOp::max; })}).error ==
        "Mismatched reduction operation: One rank requested sum, but another rank requested max. "
        "(tensor 'x': rank 0 submitted sum, rank 1 submitted max)");
  CHECK(answer_to({plain, with([](Request& r) { r.postscale = 0.5; })}).error ==
        "Mismatched prescale and/or postscale factors: One rank sent prescale 1, postscale 1, but "
        "another rank sent prescale 1, postscale 0.5. (tensor 'x': rank 0 submitted prescale 1, "
        "postscale 1, rank 1 submitted prescale 1, postscale 0.5)");

  Request first = of_kind(Kind::broadcast, "b", {2});
  Request second = first;
  second.root = 1;
  CHECK(
      answer_to({first, second}).error ==
      "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank specified "
      "root rank 1. (tensor 'b': rank 0 submitted root rank 0, rank 1 submitted root rank 1)");

  const auto gather = [](std::vector<std::int64_t> shape) {
    return of_kind(Kind::allgather, "g", std::move(shape));
  };
  CHECK(
      answer_to({gather({1, 5}), gather({9, 6})}).error ==
      "Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal to 5, but "
      "another rank sent a tensor with dimension 1 equal to 6. (tensor 'g': rank 0 submitted "
      "float32[1, 5], rank 1 submitted float32[9, 6])");
  CHECK(
      answer_to({gather({1, 5}), gather({1, 5, 2})}).error ==
      "Mismatched ALLGATHER tensor shapes: One rank sent a tensor of rank 2, but another rank sent "
      "a tensor of rank 3. (tensor 'g': rank 0 submitted float32[1, 5], rank 1 submitted "
      "float32[1, 5, 2])");
  CHECK(answer_to({gather({}), gather({})}).error ==
        "Rank zero tried to ALLGATHER a rank-zero tensor. (tensor 'g', on all ranks)");

  Request outside = first;
  outside.root = 2;
  const Response invalid = answer_to({outside, outside});
  CHECK(invalid.error_kind == ErrorKind::invalid_argument);
  CHECK(invalid.error ==
        "broadcast received invalid root rank 2 for provided process set: it has ranks 0,1. "
        "(tensor 'b', on all ranks)");
}

TEST_CASE("mismatch: what a kind does not use does not matter") {
  Request a = of_kind(Kind::broadcast, "b", {2});
  Request b = a;
  b.op = ReduceOp::max;
  b.prescale = 3;
  CHECK(answer_to({a, b}).error.empty());
  Request nan = allreduce_of("x");
  nan.prescale = std::nan("");
  CHECK(answer_to({nan, nan}).error.empty());
}

TEST_CASE("allgather: the first dimension is each rank's own, and changing it stays cheap") {
  NegotiationWorld world(of_size(3));
  for (std::int64_t round = 0; round < 5; ++round) {
    world.up_bytes = world.down_bytes = 0;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      world.workers[static_cast<std::size_t>(rank)]->submit(
          of_kind(Kind::allgather, "g", {round * 100 + rank, 7}));
    }
    world.settle();
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      const auto responses = world.take_heard(static_cast<std::size_t>(rank));
      REQUIRE(responses.size() == 1);
      CHECK(responses[0].tensors[0].request->shape == std::vector<std::int64_t>{0, 7});
      CHECK(responses[0].tensors[0].first_dims ==
            std::vector<std::int64_t>{round * 100, round * 100 + 1, round * 100 + 2});
    }
  }
  CHECK(world.up_bytes <= 3 * 8);
  CHECK(world.down_bytes <= 12);
}

TEST_CASE("alltoall: the splits are each rank's own, all ranks learn all, and it stays cheap") {
  NegotiationWorld world(of_size(3));
  const auto splits_of = [](std::int64_t round, std::int64_t rank) {
    return std::vector<std::int64_t>{round, rank, 5 * round + rank};
  };
  for (std::int64_t round = 0; round < 5; ++round) {
    world.up_bytes = world.down_bytes = 0;
    std::vector<std::int64_t> matrix;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      Request request = of_kind(Kind::alltoall, "a", {100, 7});
      request.splits = splits_of(round, rank);
      matrix.insert(matrix.end(), request.splits.begin(), request.splits.end());
      world.workers[static_cast<std::size_t>(rank)]->submit(request);
    }
    world.settle();
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      const auto responses = world.take_heard(static_cast<std::size_t>(rank));
      REQUIRE(responses.size() == 1);
      CHECK(responses[0].kind == Kind::alltoall);
      CHECK(responses[0].tensors[0].first_dims == matrix);
    }
  }
  CHECK(world.up_bytes <= 3 * 10);
  CHECK(world.down_bytes <= 18);
}

TEST_CASE("mismatch: shapes of an alltoall but for its rows; everything of a reducescatter") {
  const auto blocks = [](std::vector<std::int64_t> shape, std::vector<std::int64_t> splits) {
    Request request = of_kind(Kind::alltoall, "a", std::move(shape));
    request.splits = std::move(splits);
    return request;
  };
  CHECK(answer_to({blocks({4, 2}, {1, 3}), blocks({9, 2}, {0, 0})}).error.empty());
  CHECK(answer_to({blocks({4, 5}, {1, 3}), blocks({9, 6}, {0, 2})}).error ==
        "Mismatched ALLTOALL tensor shapes: One rank sent a tensor with dimension 1 equal to 5, "
        "but another rank sent a tensor with dimension 1 equal to 6. (tensor 'a': rank 0 submitted "
        "float32[4, 5], rank 1 submitted float32[2, 6])");
  CHECK(answer_to({allreduce_of("a", {4}), blocks({4}, {1, 3})}).error ==
        "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLTOALL. "
        "(tensor 'a': rank 0 submitted ALLREDUCE float32[4], rank 1 submitted ALLTOALL "
        "float32[4])");

  const Request part = of_kind(Kind::reducescatter, "r", {5, 2});
  CHECK(answer_to({part, part}).error.empty());
  CHECK(answer_to({part, of_kind(Kind::reducescatter, "r", {6, 2})}).error ==
        "Mismatched REDUCESCATTER tensor shapes: One rank sent a tensor of shape [5, 2], but "
        "another rank sent a tensor of shape [6, 2]. (tensor 'r': rank 0 submitted float32[5, 2], "
        "rank 1 submitted float32[6, 2])");
  Request average = part;
  average.op = ReduceOp::average;
  CHECK(answer_to({part, average}).error ==
        "Mismatched reduction operation: One rank requested sum, but another rank requested "
        "average. (tensor 'r': rank 0 submitted sum, rank 1 submitted average)");
  Request scaled = part;
  scaled.prescale = 2;
  CHECK_THAT(answer_to({part, scaled}).error,
             Catch::Matchers::StartsWith("Mismatched prescale and/or postscale factors"));
}

TEST_CASE("cache: a shape that changes on all ranks replaces what was known") {
  NegotiationWorld world(of_size(2));
  for (const std::int64_t side : {17, 17, 18, 18, 17}) {
    world.submit_everywhere(allreduce_of("x", {side, side}));
    world.flush_all();
    const auto responses = world.take_heard(1);
    REQUIRE(responses.size() == 1);
    CHECK(responses[0].error.empty());
    CHECK(responses[0].tensors[0].request->shape == std::vector<std::int64_t>{side, side});
  }
}

TEST_CASE(
    "shutdown: the last words of a rank reach all ranks, and nothing is answered after them") {
  NegotiationWorld world(of_size(3));
  world.workers[0]->submit(allreduce_of("x"));
  world.workers[2]->shutdown("ValueError: bad batch");
  world.settle();
  for (const auto& stop : world.stops) {
    REQUIRE(stop);
    CHECK(stop->kind == ErrorKind::shutdown);
    CHECK(stop->peer == Rank{2});
    CHECK(stop->message ==
          "Hora has been shut down. This was caused by an exception on one of the ranks or an "
          "attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished "
          "execution. (rank 2 left: ValueError: bad batch)");
  }
  world.workers[1]->submit(allreduce_of("x"));
  CHECK_FALSE(world.workers[1]->take_message());
  CHECK_FALSE(world.root.next_deadline());
}

TEST_CASE("coordinator: a rank that breaks the rules is an error, not a crash") {
  NegotiationOptions options = of_size(2);
  Coordinator root(options);
  WorkerNegotiator worker(Rank{0}, options);
  worker.submit(allreduce_of("x"));
  const auto message = worker.take_message();
  REQUIRE(message);
  CHECK(root.on_message(Rank{0}, *message, TimePoint{}));
  const auto twice = root.on_message(Rank{0}, *message, TimePoint{});
  REQUIRE_FALSE(twice);
  CHECK(twice.error().kind == ErrorKind::protocol);
  CHECK(twice.error().message ==
        "negotiation: rank 0 submitted 'x' twice without an answer in between");

  Request splits = of_kind(Kind::alltoall, "a", {9});
  splits.splits = {1, 2, 3};
  worker.submit(splits);
  const auto other_size = root.on_message(Rank{0}, *worker.take_message(), TimePoint{});
  REQUIRE_FALSE(other_size);
  CHECK(other_size.error().message ==
        "negotiation: rank 0 splits a tensor for another number of ranks");
}

}  // namespace hora
