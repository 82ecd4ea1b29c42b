// Any interleaving: what must hold whatever the order in which ranks submit and messages arrive.
//
// Elements of rank r's tensors are r + 1 and the round, so that what was carried shows whose it was
// and of which round.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "runtime/base/float16.h"
#include "tests/runtime/negotiation_world.h"

namespace hora {
namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t limit) {
  return random() % limit;
}

/// What a rank calls a tensor in a round: the same on all ranks, but for planned mismatches.
Request tensor_of(std::uint64_t seed, std::size_t index, std::size_t round, std::size_t rank,
                  std::size_t size) {
  Random random(seed * 1000003 + index);
  Request request = allreduce_of("tensor " + std::to_string(index));
  request.kind = *kind_from(below(random, 8) < 5 ? 0 : static_cast<int>(below(random, 6)));
  request.dtype = below(random, 2) == 0 ? DType::float32 : DType::float16;
  request.shape.clear();
  if (request.kind != Kind::barrier) {
    request.shape = {static_cast<std::int64_t>(below(random, 100)), 3};
  }
  // Some tensors change their shape in some rounds, on all ranks or on one.
  const std::size_t habit = below(random, 6);
  if (habit == 0 && round % 2 == 1 && !request.shape.empty()) request.shape[1] = 5;
  if (habit == 1 && round % 3 == 1 && rank == 1 && !request.shape.empty()) request.shape[1] = 7;
  if (request.kind == Kind::allgather) {
    request.shape[0] = static_cast<std::int64_t>((index * 7 + round * 3 + rank) % 5);
  }
  if (request.kind == Kind::alltoall) {
    request.shape[0] = 0;
    for (std::size_t to = 0; to < size; ++to) {
      request.splits.push_back(static_cast<std::int64_t>((index * 5 + round + rank * 3 + to) % 4));
      request.shape[0] += request.splits.back();
    }
  }
  return request;
}

/// All elements of a tensor of float32 or float16 are this.
std::vector<std::byte> filled(const Request& request, float value) {
  const std::uint16_t half = float16_from_float(value);
  std::vector<std::byte> bytes(byte_count(request));
  const std::size_t element = size_of(request.dtype);
  const void* const from =
      request.dtype == DType::float32 ? static_cast<const void*>(&value) : &half;
  for (std::size_t at = 0; at < bytes.size(); at += element)
    std::memcpy(bytes.data() + at, from, element);
  return bytes;
}

float value_of(std::size_t rank, std::size_t round) {
  return static_cast<float>(rank + 1 + 10 * round);
}

struct Run {
  explicit Run(std::uint64_t seed_number) : seed(seed_number), random(seed_number) {
    options.size = static_cast<int>(1 + below(random, 6));
    options.cache_capacity = std::array{0u, 1u, 3u, 8u, 4096u}[below(random, 5)];
    options.target_bytes = std::array{64ull, 4096ull, 8ull << 20}[below(random, 3)];
    options.fusion_bytes = std::array{0ull, 2048ull, 64ull << 20}[below(random, 3)];
    options.small_bytes = 512;
    options.carry_bytes = std::array{0ull, 700ull, 4096ull}[below(random, 3)];
    world = std::make_unique<NegotiationWorld>(options);
    const auto size = static_cast<std::size_t>(options.size);
    tensors = 1 + below(random, 20);
    inputs.resize(size, std::vector<std::vector<std::byte>>(tensors));
    rounds.resize(size, std::vector<std::size_t>(tensors, 0));
    answered.resize(size, std::vector<std::size_t>(tensors, 0));
  }

  Request tensor_of(std::size_t index, std::size_t round, std::size_t rank) const {
    Request request = hora::tensor_of(seed, index, round, rank, rounds.size());
    const std::size_t first = std::min(index, partner_of(index));
    if (first != partner_of(first)) {
      request.group = "pair " + std::to_string(first);
      request.group_size = 2;
    }
    return request;
  }

  /// The other member of the tensor's group, or itself: every fifth tensor and the next are one.
  std::size_t partner_of(std::size_t index) const {
    const std::size_t first = index % 5 == 4 ? index - 1 : index;
    const auto is_barrier = [&](std::size_t tensor) {
      return hora::tensor_of(seed, tensor, 0, 0, 1).kind == Kind::barrier;
    };
    if (first % 5 != 3 || first + 1 >= tensors || is_barrier(first) || is_barrier(first + 1)) {
      return index;
    }
    return index == first ? first + 1 : first;
  }

  bool ranks_agree(std::size_t index, std::size_t round) const {
    const Request first = tensor_of(index, round, 0);
    return first.shape.size() < 2 || options.size < 2 ||
           first.shape[1] == tensor_of(index, round, 1).shape[1];
  }

  std::size_t index_of_name(const std::string& name) const {
    return static_cast<std::size_t>(std::stoul(name.substr(7)));
  }

  /// Submits a tensor, with its partner if it has one: a rank submits a group as a whole, in any
  /// order, and again when all of it is answered.
  void submit_one(std::size_t rank) {
    const std::size_t index = below(random, tensors);
    const std::size_t partner = partner_of(index);
    const auto may_come = [&](std::size_t tensor) {
      return rounds[rank][tensor] < kRounds && rounds[rank][tensor] == answered[rank][tensor];
    };
    if (!may_come(index) || !may_come(partner)) return;
    submit_tensor(rank, index);
    if (partner != index) submit_tensor(rank, partner);
    if (below(random, 10) == 0) world->workers[rank]->flush();
  }

  void submit_tensor(std::size_t rank, std::size_t index) {
    const std::size_t round = rounds[rank][index];
    const Request request = tensor_of(index, round, rank);
    std::vector<std::byte>& input = inputs[rank][index];
    input = filled(request, value_of(rank, round));
    const bool gives = below(random, 8) > 0 && request.kind == Kind::allreduce;
    world->workers[rank]->submit(request, gives ? input.data() : nullptr);
    ++rounds[rank][index];
  }

  /// Notes what a rank has heard, checking that it is due: all ranks have submitted
  /// it, nothing twice.
  void note_answers(std::size_t rank) {
    for (const Response& response : world->take_heard(rank)) {
      for (const ResponseTensor& tensor : response.tensors) {
        const std::size_t index = index_of_name(tensor.request->name);
        const std::size_t round = answered[rank][index]++;
        for (const auto& submitted : rounds)
          REQUIRE(submitted[index] > round);
        check_tensor(response, tensor, index, round, rank);
        streams[rank].push_back(std::to_string(response.lane) + tensor.request->name +
                                response.error);
      }
      streams[rank].push_back("|");
    }
  }

  void check_tensor(const Response& response, const ResponseTensor& tensor, std::size_t index,
                    std::size_t round, std::size_t rank) {
    const Request mine = tensor_of(index, round, rank);
    const bool agree = ranks_agree(index, round) && ranks_agree(partner_of(index), round);
    REQUIRE(response.error.empty() == agree);
    if (!agree) return;
    REQUIRE(response.kind == mine.kind);
    REQUIRE(tensor.request->shape == canonical(mine).shape);
    if (mine.kind != Kind::barrier) REQUIRE(response.dtype == mine.dtype);
    std::vector<std::int64_t> first_dims;
    for (std::size_t other = 0; other < rounds.size(); ++other) {
      const auto own = first_dims_of(tensor_of(index, round, other));
      first_dims.insert(first_dims.end(), own.begin(), own.end());
    }
    REQUIRE(tensor.first_dims == first_dims);
    if (response.result.empty()) return;
    ++carried;
    float sum = 0;
    for (std::size_t other = 0; other < rounds.size(); ++other)
      sum += value_of(other, round);
    REQUIRE(response.result == filled(mine, sum));
  }

  /// One random thing happens.
  void step() {
    const std::size_t rank = below(random, rounds.size());
    switch (below(random, 8)) {
      case 0:
      case 1:
      case 2:
        submit_one(rank);
        break;
      case 3:
        world->send(rank);
        break;
      case 4:
        world->hear(rank);
        break;
      case 5:
        world->decide();
        break;
      case 6:
        world->deliver(rank);
        break;
      default:
        world->now += std::chrono::milliseconds(below(random, 5));
        if (below(random, 3) == 0) world->finish();
    }
    note_answers(0);
    note_answers(rank);
  }

  bool done() const {
    return std::all_of(answered.begin(), answered.end(), [](const auto& of_rank) {
      return std::all_of(of_rank.begin(), of_rank.end(), [](auto n) { return n == kRounds; });
    });
  }

  void run() {
    for (int i = 0; i < 3000 && !done(); ++i)
      step();
    // What is left, in rounds: everybody submits all that it may.
    for (int i = 0; i < 400 && !done(); ++i) {
      for (std::size_t rank = 0; rank < rounds.size(); ++rank) {
        for (std::size_t k = 0; k < 2 * tensors; ++k)
          submit_one(rank);
      }
      world->flush_all();
      for (std::size_t rank = 0; rank < rounds.size(); ++rank)
        note_answers(rank);
    }
  }

  static constexpr std::size_t kRounds = 4;
  std::uint64_t seed;
  Random random;
  NegotiationOptions options;
  std::unique_ptr<NegotiationWorld> world;
  std::size_t tensors = 0;
  std::size_t carried = 0;                                  // results that ranks have heard
  std::vector<std::vector<std::vector<std::byte>>> inputs;  // by rank and tensor
  std::vector<std::vector<std::size_t>> rounds, answered;   // by rank and tensor
  std::map<std::size_t, std::vector<std::string>> streams;
};

}  // namespace

TEST_CASE("negotiation: any interleaving answers every tensor once, on all ranks in one order") {
  std::size_t carried = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Run run(seed);
    run.run();
    REQUIRE(run.done());
    REQUIRE(run.world->root.waiting().empty());
    for (const auto& [rank, stream] : run.streams) {
      INFO("rank " << rank);
      REQUIRE(stream == run.streams[0]);
    }
    REQUIRE((run.options.carry_bytes > 0 || run.carried == 0));
    carried += run.carried;
  }
  CHECK(carried > 0);
}

}  // namespace hora
