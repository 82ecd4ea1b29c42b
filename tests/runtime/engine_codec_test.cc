// Engines that run tensors with codecs: negotiated like all else, near the sum, never unasked.
#include <cmath>

#include "tests/runtime/engine_calls.h"
#include "tests/support/engine_world.h"

namespace hora::test {
namespace {

struct Tensor {
  std::vector<float> input, output;
  Handle handle;
};

/// Every rank submits a tensor of this name; `codecs` by rank.
std::vector<Tensor> submit(EngineWorld& world, const std::string& name, std::int64_t count,
                           const std::vector<std::string>& codecs, ReduceOp op = ReduceOp::sum) {
  std::vector<Tensor> tensors(static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    Tensor& tensor = tensors[r];
    tensor.input = values_of(rank, count);
    tensor.output.assign(static_cast<std::size_t>(count), -1.0F);
    Request request = allreduce_request(name, count, op);
    request.codec = codecs[r % codecs.size()];
    auto handle = world.post(rank, request, tensor.input.data(), tensor.output.data());
    REQUIRE(handle);
    tensor.handle = *handle;
  }
  return tensors;
}

void require_near(const std::vector<Tensor>& tensors, ReduceOp op, double tolerance) {
  const int size = static_cast<int>(tensors.size());
  const auto expected = reduced(op, static_cast<std::int64_t>(tensors[0].input.size()), size);
  for (const Tensor& tensor : tensors) {
    REQUIRE(tensor.handle->done());
    if (!tensor.handle->outcome()) FAIL(tensor.handle->outcome().error().message);
    REQUIRE(tensor.output == tensors[0].output);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::abs(tensor.output[i] - expected[i]) > tolerance) FAIL("element " << i);
    }
  }
}

std::uint64_t payload_bytes(EngineWorld& world) {
  std::uint64_t bytes = 0;
  for (int rank = 0; rank < world.size(); ++rank)
    bytes += world[rank].stats().payload_bytes;
  return bytes;
}

}  // namespace

TEST_CASE("engine: tensors with codecs end near the sum, the same on all ranks") {
  for (int size = 1; size <= 4; ++size) {
    std::mt19937 random(static_cast<unsigned>(size));
    EngineWorld world({.size = size});
    for (const std::string codec : {"int8", "int8+ef", "bf16", "fp16+ef"}) {
      for (const std::int64_t count : {0, 1, 7, 1001, 5000}) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
          INFO(codec << " " << count << " " << to_string(op) << " among " << size);
          const auto tensors = submit(world, codec + std::to_string(count), count, {codec}, op);
          world.run(random);
          require_near(tensors, op, size == 1 ? 0 : 0.4 * size);
        }
      }
    }
  }
}

TEST_CASE("engine: a codec sends less, by what it promises; without one nothing is encoded") {
  const auto sent_with = [](const std::string& codec) {
    std::mt19937 random(1);
    EngineWorld world({.size = 4});
    const auto tensors = submit(world, "x", 20000, {codec});
    world.run(random);
    REQUIRE(tensors[0].handle->done());
    REQUIRE(tensors[0].handle->outcome());
    if (codec.empty()) require_near(tensors, ReduceOp::sum, 0);
    return static_cast<double>(payload_bytes(world));
  };
  const double dense = sent_with("");
  CHECK(sent_with("none") == dense);
  CHECK(sent_with("bf16") / dense == Approx(0.5).epsilon(0.02));
  CHECK(sent_with("int8") / dense == Approx(260.0 / 1024).epsilon(0.02));
  CHECK(sent_with("topk(ratio=0.01)") / dense < 0.1);
}

TEST_CASE("engine: ranks that disagree about the codec get one error that names them") {
  std::mt19937 random(2);
  EngineWorld world({.size = 3});
  const auto tensors = submit(world, "x", 10, {"int8", "int8", "bf16"});
  world.run(random);
  for (const Tensor& tensor : tensors) {
    REQUIRE(tensor.handle->done());
    REQUIRE_FALSE(tensor.handle->outcome());
    CHECK(tensor.handle->outcome().error().message ==
          "Mismatched compression: One rank sent with codec 'int8', but another rank sent with "
          "codec 'bf16'. (tensor 'x': ranks 0,1 submitted codec 'int8', rank 2 submitted codec "
          "'bf16')");
  }
  // The job goes on; the same words in another spelling are the same codec.
  const auto again =
      submit(world, "y", 10, {"topk(ratio=0.25)", "topk( ratio=.25 )", "topk(ratio=0.250)"});
  world.run(random);
  for (const Tensor& tensor : again) {
    REQUIRE(tensor.handle->done());
    if (!tensor.handle->outcome()) FAIL(tensor.handle->outcome().error().message);
  }
}

TEST_CASE("engine: what no codec is for goes as it is") {
  std::mt19937 random(3);
  EngineWorld world({.size = 3});
  const auto tensors = submit(world, "largest", 100, {"int8"}, ReduceOp::max);
  world.run(random);
  require_near(tensors, ReduceOp::max, 0);
}

TEST_CASE("engine: error feedback remembers a tensor by its name, from step to step") {
  // A gradient that int8 rounds away beside a large one comes through after some steps.
  std::mt19937 random(4);
  EngineWorld world({.size = 2});
  const auto sum_of_steps = [&](const std::string& codec) {
    double sum = 0;
    for (int step = 0; step < 100; ++step) {
      std::vector<Tensor> tensors(2);
      for (int rank = 0; rank < 2; ++rank) {
        Tensor& tensor = tensors[static_cast<std::size_t>(rank)];
        tensor.input = {127.0F, 0.1F};
        tensor.output.assign(2, 0.0F);
        Request request = allreduce_request(codec, 2);
        request.codec = codec;
        auto handle = world.post(rank, request, tensor.input.data(), tensor.output.data());
        REQUIRE(handle);
        tensor.handle = *handle;
      }
      world.run(random);
      sum += tensors[0].output[1];
    }
    return sum;
  };
  CHECK(sum_of_steps("int8") == 0);
  CHECK(sum_of_steps("int8+ef") == Approx(20).margin(3));
}

TEST_CASE("engine: process sets run codecs, and keep errors of their own under the same name") {
  // A set whose small element is 0 gets nothing of what others keep for it, whatever they share.
  for (const std::int64_t count : {2, 3000}) {
    std::mt19937 random(5);
    EngineWorldOptions options;
    options.size = 4;
    options.config.process_sets = {{0, 2}, {1, 2, 3}};
    EngineWorld world(options);
    const std::vector<std::vector<int>> ranks = {{0, 1, 2, 3}, {0, 2}, {1, 2, 3}};
    const std::vector<float> small = {0.1F, 0.3F, 0.0F};
    std::vector<double> sums(3);
    for (int step = 0; step < 50; ++step) {
      std::vector<std::vector<Tensor>> tensors(3);
      for (std::size_t set = 0; set < 3; ++set) {
        tensors[set].resize(ranks[set].size());
        for (std::size_t place = 0; place < ranks[set].size(); ++place) {
          Tensor& tensor = tensors[set][place];
          tensor.input.assign(static_cast<std::size_t>(count), small[set]);
          for (std::size_t i = 0; i < tensor.input.size(); i += 256)
            tensor.input[i] = 127;
          tensor.output.assign(tensor.input.size(), -1.0F);
          Request request = allreduce_request("x", count);
          request.set = SetId(static_cast<std::uint32_t>(set));
          request.codec = "int8+ef";
          auto handle =
              world.post(ranks[set][place], request, tensor.input.data(), tensor.output.data());
          REQUIRE(handle);
          tensor.handle = *handle;
        }
      }
      world.run(random);
      for (std::size_t set = 0; set < 3; ++set) {
        for (const Tensor& tensor : tensors[set]) {
          REQUIRE(tensor.handle->done());
          REQUIRE(tensor.handle->outcome());
          REQUIRE(tensor.output == tensors[set][0].output);
        }
        sums[set] += tensors[set][0].output.back();
      }
    }
    // What is not there yet is at most a step of int8 per rank and encoding.
    CHECK(sums[0] == Approx(50 * 4 * 0.1).margin(5));
    CHECK(sums[1] == Approx(50 * 2 * 0.3).margin(5));
    CHECK(sums[2] == 0);
    for (int rank = 0; rank < 4; ++rank)
      CHECK_FALSE(world[rank].busy());
  }
}

TEST_CASE("engine: with a codec a joined rank gives zeros, whatever it has kept from before") {
  for (const std::string codec : {"bf16", "int8+ef", "topk(ratio=0.25)+ef"}) {
    for (const std::int64_t count : {5, 4000}) {
      INFO(codec << " of " << count);
      std::mt19937 random(6);
      EngineWorld world({.size = 3});
      // Every input is the same, so what is sent now or was kept before is a multiple of it.
      const auto step_among = [&](int there) {
        std::vector<Tensor> tensors(static_cast<std::size_t>(there));
        for (int rank = 0; rank < there; ++rank) {
          Tensor& tensor = tensors[static_cast<std::size_t>(rank)];
          tensor.input = values_of(rank, count);
          tensor.output.assign(tensor.input.size(), -1.0F);
          Request request = allreduce_request("x", count);
          request.codec = codec;
          auto handle = world.post(rank, request, tensor.input.data(), tensor.output.data());
          REQUIRE(handle);
          tensor.handle = *handle;
        }
        world.run(random);
        for (const Tensor& tensor : tensors) {
          REQUIRE(tensor.handle->done());
          if (!tensor.handle->outcome()) FAIL(tensor.handle->outcome().error().message);
          REQUIRE(tensor.output == tensors[0].output);
        }
        return tensors[0].output;
      };
      step_among(3);
      Request join;
      join.kind = Kind::join;
      join.name = "join";
      const auto joined = world.post(2, join, nullptr, nullptr);
      REQUIRE(joined);
      std::vector<double> sums(static_cast<std::size_t>(count));
      for (int step = 0; step < 20; ++step) {
        const std::vector<float> output = step_among(2);
        for (std::size_t i = 0; i < sums.size(); ++i)
          sums[i] += output[i];
      }
      const std::vector<float> expected = reduced(ReduceOp::sum, count, 2);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        // Kept before and after: at most some steps' worth, of 20.
        if (std::abs(sums[i] / 20 - expected[i]) > 0.3 * expected[i]) FAIL("element " << i);
      }
      for (const int rank : {0, 1})
        REQUIRE(world.post(rank, join, nullptr, nullptr));
      world.run(random);
      REQUIRE((*joined)->done());
      CHECK(step_among(3).size() == static_cast<std::size_t>(count));
    }
  }
}

TEST_CASE("engine: the tensors of a group carry their codecs") {
  std::mt19937 random(7);
  EngineWorld world({.size = 3});
  const std::vector<std::string> codecs = {"int8+ef", "", "bf16", "int8+ef"};
  const auto payload_of_group = [&](bool encoded) {
    const std::uint64_t before = payload_bytes(world);
    std::vector<std::vector<Tensor>> members(codecs.size(), std::vector<Tensor>(3));
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<Submission> submissions;
      for (std::size_t m = 0; m < codecs.size(); ++m) {
        Tensor& tensor = members[m][static_cast<std::size_t>(rank)];
        tensor.input = values_of(rank, 3000);
        tensor.output.assign(3000, -1.0F);
        Request request = allreduce_request("member" + std::to_string(m), 3000);
        request.group = "g";
        request.group_size = static_cast<std::int32_t>(codecs.size());
        if (encoded) request.codec = codecs[m];
        submissions.push_back({request, tensor.input.data(), tensor.output.data(), true});
      }
      auto handles = world[rank].post_group(std::move(submissions));
      REQUIRE(handles);
      for (std::size_t m = 0; m < codecs.size(); ++m)
        members[m][static_cast<std::size_t>(rank)].handle = (*handles)[m];
    }
    world.run(random);
    for (std::size_t m = 0; m < codecs.size(); ++m)
      require_near(members[m], ReduceOp::sum, encoded && !codecs[m].empty() ? 1.2 : 0);
    return static_cast<double>(payload_bytes(world) - before);
  };
  const double dense = payload_of_group(false);
  CHECK(payload_of_group(true) / dense == Approx((1 + 0.5 + 2 * 0.254) / 4).epsilon(0.05));
}

TEST_CASE("engine: a codec whose blocks do not fit the slots is an error that says what to raise") {
  std::mt19937 random(8);
  EngineWorld world({.size = 3});
  const auto tensors = submit(world, "x", 5, {"topk(ratio=0.5)"});
  world.run(random);
  for (const Tensor& tensor : tensors) {
    REQUIRE(tensor.handle->done());
    REQUIRE_FALSE(tensor.handle->outcome());
    CHECK(tensor.handle->outcome().error().kind == ErrorKind::resource);
    CHECK(tensor.handle->outcome().error().message ==
          "codec 'topk(ratio=0.5)' among 3 ranks needs larger slots than 4096 bytes; raise "
          "HORA_ARENA_BYTES on all ranks, or lower HORA_WINDOW");
  }
  const auto again = submit(world, "x", 5, {"int8"});
  world.run(random);
  require_near(again, ReduceOp::sum, 1.2);
}

}  // namespace hora::test
