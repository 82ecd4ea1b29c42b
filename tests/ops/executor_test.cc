// The executor over every algorithm and transport: all ranks end with the same right bytes.
//
// Float32 inputs are small whole numbers, so sums are exact in any order and the expected value
// needs no tolerance; that the bytes agree between ranks is checked apart.
#include "ops/executor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/support/rank_set.h"

namespace hora::test {
namespace {

const std::vector<std::string> kTransports = {"loopback", "shm", "mixed"};

float value_of(int rank, std::size_t i) {
  return static_cast<float>((static_cast<int>(i) * 7 + rank * 13) % 101 - 50);
}

std::vector<float> input_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = value_of(rank, i);
  return values;
}

std::vector<float> sum_of_all(int size, std::size_t count) {
  std::vector<float> sum(count);
  for (int r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < count; ++i)
      sum[i] += value_of(r, i);
  }
  return sum;
}

std::unique_ptr<CollectiveRun> reduce_run(const std::vector<float>& in, std::vector<float>& out) {
  auto run = std::make_unique<CollectiveRun>();
  run->dtype = DType::float32;
  run->total_bytes = in.size() * sizeof(float);
  if (!in.empty()) {
    run->pieces.push_back({reinterpret_cast<const std::byte*>(in.data()),
                           reinterpret_cast<std::byte*>(out.data()), 0, run->total_bytes});
  }
  return run;
}

/// `count` cut into `size` parts at random places: unequal, and some are empty.
std::vector<std::size_t> random_parts(std::size_t count, int size, std::mt19937& random) {
  std::vector<std::size_t> cuts = {0, count};
  for (int i = 1; i < size; ++i)
    cuts.push_back(random() % (count + 1));
  std::sort(cuts.begin(), cuts.end());
  std::adjacent_difference(cuts.begin(), cuts.end(), cuts.begin());
  cuts.erase(cuts.begin());
  return cuts;
}

std::vector<std::size_t> counts_for(int size) {
  const auto n = static_cast<std::size_t>(size);
  return {0, 1, n - 1, n, n + 1, 1001, 40000};
}

}  // namespace

TEST_CASE("every all-reduce: all ranks end with the sum, and inputs are intact") {
  std::mt19937 random(1);
  for (const std::string& transport : kTransports) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective != Collective::allreduce) continue;
      for (int size = 1; size <= 8; ++size) {
        for (const std::size_t count : counts_for(size)) {
          INFO(transport << " " << row.name << " size " << size << " count " << count);
          RankSet ranks({.transport = transport, .size = size});
          std::vector<std::vector<float>> inputs, outputs;
          for (int r = 0; r < size; ++r) {
            inputs.push_back(input_of(r, count));
            outputs.emplace_back(count, -1.0f);
          }
          for (int r = 0; r < size; ++r) {
            const auto i = static_cast<std::size_t>(r);
            ranks.enqueue(r, row, 0, reduce_run(inputs[i], outputs[i]), 8192);
          }
          REQUIRE(ranks.run(random));
          const std::vector<float> expected = sum_of_all(size, count);
          for (int r = 0; r < size; ++r) {
            const auto i = static_cast<std::size_t>(r);
            REQUIRE(outputs[i] == expected);
            REQUIRE(inputs[i] == input_of(r, count));
          }
        }
      }
    }
  }
}

TEST_CASE("a broadcast from every root reaches everybody") {
  std::mt19937 random(2);
  for (const std::string& transport : kTransports) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective != Collective::broadcast) continue;
      for (int size = 1; size <= 8; ++size) {
        for (int root = 0; root < size; ++root) {
          for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{30001}}) {
            INFO(transport << " " << row.name << " size " << size << " root " << root);
            RankSet ranks({.transport = transport, .size = size});
            const std::vector<float> source = input_of(root, count);
            std::vector<std::vector<float>> outputs(static_cast<std::size_t>(size),
                                                    std::vector<float>(count));
            for (int r = 0; r < size; ++r) {
              auto run = reduce_run(source, outputs[static_cast<std::size_t>(r)]);
              if (r != root && !run->pieces.empty()) run->pieces[0].input = nullptr;
              ranks.enqueue(r, row, root, std::move(run), 8192);
            }
            REQUIRE(ranks.run(random));
            for (const auto& output : outputs)
              REQUIRE(output == source);
          }
        }
      }
    }
  }
}

TEST_CASE("an all-gather joins contributions of any lengths, none included") {
  std::mt19937 random(3);
  for (const std::string& transport : kTransports) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective != Collective::allgather) continue;
      for (int size = 1; size <= 8; ++size) {
        for (int round = 0; round < 4; ++round) {
          INFO(transport << " " << row.name << " size " << size << " round " << round);
          RankSet ranks({.transport = transport, .size = size});
          std::vector<std::size_t> counts;
          for (int r = 0; r < size; ++r) {
            counts.push_back(round == 0 ? 0 : random() % (round == 1 ? 3 : 9000));
          }
          std::vector<float> expected;
          std::vector<std::vector<float>> inputs, outputs;
          for (int r = 0; r < size; ++r) {
            inputs.push_back(input_of(r, counts[static_cast<std::size_t>(r)]));
            expected.insert(expected.end(), inputs.back().begin(), inputs.back().end());
          }
          outputs.assign(static_cast<std::size_t>(size), std::vector<float>(expected.size()));
          for (int r = 0; r < size; ++r) {
            const auto i = static_cast<std::size_t>(r);
            auto run = std::make_unique<CollectiveRun>();
            std::uint64_t offset = 0;
            for (const std::size_t count : counts) {
              run->extents.push_back({count * sizeof(float), 0, offset});
              offset += count * sizeof(float);
              run->total_bytes = std::max(run->total_bytes, run->extents.back().bytes);
            }
            run->input = reinterpret_cast<const std::byte*>(inputs[i].data());
            run->output = reinterpret_cast<std::byte*>(outputs[i].data());
            ranks.enqueue(r, row, 0, std::move(run), 2048);
          }
          REQUIRE(ranks.run(random));
          for (const auto& output : outputs)
            REQUIRE(output == expected);
        }
      }
    }
  }
}

TEST_CASE("a reduce-scatter gives each rank its part of the sum, prescaled and averaged") {
  std::mt19937 random(5);
  for (const std::string& transport : kTransports) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective != Collective::reducescatter) continue;
      for (int size = 1; size <= 8; ++size) {
        for (const std::size_t count : counts_for(size)) {
          INFO(transport << " " << row.name << " size " << size << " count " << count);
          RankSet ranks({.transport = transport, .size = size});
          const std::vector<std::size_t> lengths = random_parts(count, size, random);
          std::vector<float> expected = sum_of_all(size, count);
          for (float& value : expected)
            value = value * 4.0f / 2.0f;
          std::vector<std::vector<float>> inputs, outputs;
          for (int r = 0; r < size; ++r) {
            inputs.push_back(input_of(r, count));
            outputs.emplace_back(lengths[static_cast<std::size_t>(r)], -1.0f);
          }
          for (int r = 0; r < size; ++r) {
            const auto i = static_cast<std::size_t>(r);
            auto run = std::make_unique<CollectiveRun>();
            run->dtype = DType::float32;
            run->prescale = 4.0;
            run->finish = {2, 1.0};
            std::uint64_t offset = 0;
            for (const std::size_t length : lengths) {
              run->extents.push_back({length * sizeof(float), offset, 0});
              offset += length * sizeof(float);
              run->total_bytes = std::max(run->total_bytes, run->extents.back().bytes);
            }
            run->input = reinterpret_cast<const std::byte*>(inputs[i].data());
            run->output = reinterpret_cast<std::byte*>(outputs[i].data());
            ranks.enqueue(r, row, 0, std::move(run), 4096);
          }
          REQUIRE(ranks.run(random));
          auto begin = expected.begin();
          for (int r = 0; r < size; ++r) {
            const auto i = static_cast<std::size_t>(r);
            const auto end = begin + static_cast<std::ptrdiff_t>(lengths[i]);
            REQUIRE(outputs[i] == std::vector<float>(begin, end));
            REQUIRE(inputs[i] == input_of(r, count));
            begin = end;
          }
        }
      }
    }
  }
}

TEST_CASE("an all-to-all brings every block to its receiver, whatever its length") {
  std::mt19937 random(6);
  for (const std::string& transport : kTransports) {
    for (const AlgorithmRow& row : algorithms()) {
      if (row.collective != Collective::alltoall) continue;
      for (int size = 1; size <= 8; ++size) {
        for (int round = 0; round < 4; ++round) {
          INFO(transport << " " << row.name << " size " << size << " round " << round);
          RankSet ranks({.transport = transport, .size = size});
          const auto n = static_cast<std::size_t>(size);
          std::vector<std::size_t> counts;  // By sender, then receiver.
          for (std::size_t i = 0; i < n * n; ++i)
            counts.push_back(round == 0 ? 0 : random() % (round == 1 ? 3 : 5000));
          std::vector<std::vector<float>> inputs(n), outputs(n), expected(n);
          for (std::size_t s = 0; s < n; ++s) {
            const auto row_counts = counts.begin() + static_cast<std::ptrdiff_t>(s * n);
            inputs[s] = input_of(static_cast<int>(s),
                                 std::accumulate(row_counts, row_counts + size, std::size_t{0}));
            auto from = inputs[s].begin();
            for (std::size_t r = 0; r < n; ++r) {
              const auto end = from + static_cast<std::ptrdiff_t>(counts[s * n + r]);
              expected[r].insert(expected[r].end(), from, end);
              from = end;
            }
          }
          for (std::size_t me = 0; me < n; ++me) {
            outputs[me].assign(expected[me].size(), -1.0f);
            auto run = std::make_unique<CollectiveRun>();
            std::uint64_t given = 0, taken = 0;
            for (std::size_t s = 0; s < n; ++s) {
              for (std::size_t r = 0; r < n; ++r) {
                const std::uint64_t bytes = counts[s * n + r] * sizeof(float);
                run->extents.push_back({bytes, s == me ? given : 0, r == me ? taken : 0});
                if (s == me) given += bytes;
                if (r == me) taken += bytes;
                run->total_bytes = std::max(run->total_bytes, bytes);
              }
            }
            run->input = reinterpret_cast<const std::byte*>(inputs[me].data());
            run->output = reinterpret_cast<std::byte*>(outputs[me].data());
            ranks.enqueue(static_cast<int>(me), row, 0, std::move(run), 2048);
          }
          REQUIRE(ranks.run(random));
          for (std::size_t me = 0; me < n; ++me)
            REQUIRE(outputs[me] == expected[me]);
        }
      }
    }
  }
}

TEST_CASE("fused tensors of odd sizes keep their own bytes, prescaled and averaged") {
  std::mt19937 random(4);
  const AlgorithmRow& row = *find_algorithm("direct", Collective::allreduce);
  for (const std::string& transport : kTransports) {
    const int size = 3;
    RankSet ranks({.transport = transport, .size = size});
    const std::vector<std::size_t> counts = {1, 17, 0, 5000, 3, 64, 999};
    std::vector<std::vector<std::vector<float>>> tensors(size);
    for (int r = 0; r < size; ++r) {
      auto run = std::make_unique<CollectiveRun>();
      run->dtype = DType::float32;
      run->prescale = 2.0;
      run->finish = {size, 1.0};
      for (const std::size_t count : counts) {
        auto& tensor = tensors[static_cast<std::size_t>(r)].emplace_back(input_of(r, count));
        if (count == 0) continue;
        auto* memory = reinterpret_cast<std::byte*>(tensor.data());
        const std::uint64_t start = (run->total_bytes + 63) / 64 * 64;
        run->pieces.push_back({memory, memory, start, count * sizeof(float)});
        run->total_bytes = start + count * sizeof(float);
      }
      ranks.enqueue(r, row, 0, std::move(run), 1024);
    }
    REQUIRE(ranks.run(random));
    for (std::size_t t = 0; t < counts.size(); ++t) {
      std::vector<float> expected = sum_of_all(size, counts[t]);
      for (float& value : expected)
        value = value * 2.0f / 3.0f;
      for (int r = 0; r < size; ++r) {
        REQUIRE(tensors[static_cast<std::size_t>(r)][t] == expected);
      }
    }
  }
}

TEST_CASE("lanes and long queues of collectives never mix, in any interleaving") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    for (const std::string& transport : kTransports) {
      INFO(transport << " seed " << seed);
      const int size = 2 + static_cast<int>(random() % 5);
      RankSet ranks({.transport = transport, .size = size});
      std::vector<const AlgorithmRow*> rows;
      for (const AlgorithmRow& row : algorithms()) {
        if (row.collective == Collective::allreduce) rows.push_back(&row);
      }
      std::vector<std::vector<std::vector<float>>> outputs(static_cast<std::size_t>(size));
      std::vector<std::size_t> counts;
      std::deque<std::vector<float>> inputs;
      for (int c = 0; c < 12; ++c) {
        const AlgorithmRow& row = *rows[random() % rows.size()];
        counts.push_back(random() % 5000);
        for (int r = 0; r < size; ++r)
          outputs[static_cast<std::size_t>(r)].emplace_back(counts.back());
        for (int r = 0; r < size; ++r) {
          inputs.push_back(input_of(r, counts.back()));
          ranks.enqueue(r, row, 0,
                        reduce_run(inputs.back(), outputs[static_cast<std::size_t>(r)].back()),
                        2048, static_cast<std::uint16_t>(c % 2));
        }
        // std::vector moves when the outer vector grows: pointers to the buffers stay valid.
      }
      REQUIRE(ranks.run(random));
      for (std::size_t c = 0; c < counts.size(); ++c) {
        for (int r = 0; r < size; ++r) {
          REQUIRE(outputs[static_cast<std::size_t>(r)][c] == sum_of_all(size, counts[c]));
        }
      }
    }
  }
}

TEST_CASE("a fault at any message: nobody ends with a wrong sum") {
  const AlgorithmRow& row = *find_algorithm("direct", Collective::allreduce);
  const int size = 4;
  const std::size_t count = 3000;
  const std::vector<float> expected = sum_of_all(size, count);
  std::uint64_t most = 0;
  for (const FaultAction action :
       {FaultAction::duplicate, FaultAction::corrupt, FaultAction::close, FaultAction::stall}) {
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (from == to) continue;
        for (std::uint64_t message = 0; message <= most; ++message) {
          std::mt19937 random(static_cast<unsigned>(message));
          RankSet ranks({.size = size, .faults = {{Rank(from), Rank(to), message, action}}});
          std::vector<std::vector<float>> inputs, outputs;
          for (int r = 0; r < size; ++r) {
            inputs.push_back(input_of(r, count));
            outputs.emplace_back(count, -1.0f);
          }
          for (int r = 0; r < size; ++r) {
            const auto i = static_cast<std::size_t>(r);
            ranks.enqueue(r, row, 0, reduce_run(inputs[i], outputs[i]), 4096);
          }
          const bool all_done = ranks.run(random);
          most = std::max(most, ranks.hub().sent(Rank(from), Rank(to)));
          INFO("from " << from << " to " << to << " message " << message << " action "
                       << static_cast<int>(action));
          if (action == FaultAction::duplicate) REQUIRE(all_done);
          for (int r = 0; r < size; ++r) {
            const auto i = static_cast<std::size_t>(r);
            REQUIRE(inputs[i] == input_of(r, count));
            if (!ranks[r].executor->busy()) {
              REQUIRE(outputs[i] == expected);
            } else if (action == FaultAction::corrupt || action == FaultAction::close) {
              // Whoever is not done knows of a dead link, or waits for one who does.
              bool somebody_knows = false;
              for (int q = 0; q < size; ++q)
                somebody_knows = somebody_knows || ranks.failure(q);
              REQUIRE(somebody_knows);
            }
          }
        }
      }
    }
  }
  REQUIRE(most > 3);
}

}  // namespace hora::test
