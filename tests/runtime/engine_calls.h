// Calls: what one rank of a test has submitted, with its memory and what must come out.
//
// Rank r's element i is a small whole number (value_of), so sums and averages are exact in float32
// and every rank can compute what all ranks must get.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/engine_world.h"

namespace hora::test {

inline float value_of(int rank, std::int64_t i) {
  return static_cast<float>((rank + 1) * 4 + i % 13);
}

inline std::vector<float> values_of(int rank, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = value_of(rank, i);
  return values;
}

inline Request allreduce_request(const std::string& name, std::int64_t count,
                                 ReduceOp op = ReduceOp::sum) {
  Request request;
  request.name = name;
  request.shape = {count};
  request.op = op;
  return request;
}

struct Call {
  std::string name;
  std::vector<float> input, output;
  Handle handle;
  /// Of a call that succeeded: the result and the input.
  std::function<void(int rank, int size)> check;
};

inline std::vector<float> reduced(ReduceOp op, std::int64_t count, int size) {
  std::vector<float> result = values_of(0, count);
  for (int rank = 1; rank < size; ++rank) {
    for (std::int64_t i = 0; i < count; ++i) {
      float& to = result[static_cast<std::size_t>(i)];
      to = op == ReduceOp::max ? std::max(to, value_of(rank, i)) : to + value_of(rank, i);
    }
  }
  if (op == ReduceOp::average) {
    for (float& value : result)
      value /= static_cast<float>(size);
  }
  return result;
}

class Calls {
 public:
  std::vector<std::unique_ptr<Call>> all;

  void allreduce(EngineWorld& world, int rank, const std::string& name, std::int64_t count,
                 ReduceOp op = ReduceOp::sum, bool waits = true) {
    Call& call = add(name, rank, count, count);
    call.check = [&call, count, op](int self, int size) {
      const std::vector<float> expected = reduced(op, count, size);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (call.output[i] != Approx(expected[i])) FAIL_CHECK("element " << i << " is wrong");
      }
      CHECK(call.input == values_of(self, count));
    };
    submit(world, rank, call, allreduce_request(name, count, op), call.output.data(), waits);
  }

  void broadcast(EngineWorld& world, int rank, const std::string& name, std::int64_t count,
                 int root) {
    Call& call = add(name, rank, count, count);
    call.check = [&call, count, root](int self, int) {
      CHECK(call.output == values_of(root, count));
      CHECK(call.input == values_of(self, count));
    };
    Request request = allreduce_request(name, count);
    request.kind = Kind::broadcast;
    request.root = root;
    submit(world, rank, call, request, call.output.data(), true);
  }

  /// Rank r gives `rows` + r rows of three.
  void allgather(EngineWorld& world, int rank, const std::string& name, std::int64_t rows) {
    Call& call = add(name, rank, 3 * (rows + rank), 0);
    call.check = [&call, rows](int self, int size) {
      std::vector<float> expected;
      std::vector<std::int64_t> first_dims;
      for (int r = 0; r < size; ++r) {
        const auto part = values_of(r, 3 * (rows + r));
        expected.insert(expected.end(), part.begin(), part.end());
        first_dims.push_back(rows + r);
      }
      CHECK(call.handle->first_dims() == first_dims);
      CHECK(call.handle->output_shape() ==
            std::vector<std::int64_t>{static_cast<std::int64_t>(expected.size()) / 3, 3});
      take_output(call, static_cast<std::int64_t>(expected.size()));
      CHECK(call.output == expected);
      CHECK(call.input == values_of(self, 3 * (rows + self)));
    };
    Request request;
    request.kind = Kind::allgather;
    request.name = name;
    request.shape = {rows + rank, 3};
    submit(world, rank, call, request, nullptr, true);
  }

  /// Everybody gives `rows` rows of three and gets its part of the sum or average.
  void reducescatter(EngineWorld& world, int rank, const std::string& name, std::int64_t rows,
                     ReduceOp op = ReduceOp::sum) {
    Call& call = add(name, rank, 3 * rows, 0);
    call.check = [&call, rows, op](int self, int size) {
      const std::vector<float> sum = reduced(op, 3 * rows, size);
      const std::int64_t least = rows / size, more = rows % size;
      const std::int64_t first = self * least + std::min<std::int64_t>(self, more);
      const std::int64_t count = least + (self < more ? 1 : 0);
      CHECK(call.handle->output_shape() == std::vector<std::int64_t>{count, 3});
      take_output(call, count * 3);
      for (std::int64_t i = 0; i < 3 * count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (call.output[at] != Approx(sum[at + static_cast<std::size_t>(3 * first)])) {
          FAIL_CHECK("element " << i << " is wrong");
        }
      }
      CHECK(call.input == values_of(self, 3 * rows));
    };
    Request request;
    request.kind = Kind::reducescatter;
    request.name = name;
    request.op = op;
    request.shape = {rows, 3};
    submit(world, rank, call, request, nullptr, true);
  }

  /// Rank g has (g * 5 + t * 3) % `most` rows for rank t, and two rows more for nobody.
  void alltoall(EngineWorld& world, int rank, const std::string& name, std::int64_t most) {
    const auto rows = [most](int giver, int taker) { return (giver * 5 + taker * 3) % most; };
    const auto first_row = [rows](int giver, int taker) {
      std::int64_t row = 0;
      for (int before = 0; before < taker; ++before)
        row += rows(giver, before);
      return row;
    };
    const std::int64_t mine = first_row(rank, world.size()) + 2;
    Call& call = add(name, rank, 2 * mine, 0);
    call.check = [&call, rows, first_row](int self, int size) {
      std::vector<float> expected;
      std::vector<std::int64_t> received;
      for (int giver = 0; giver < size; ++giver) {
        const auto all = values_of(giver, 2 * first_row(giver, size));
        const auto begin = all.begin() + 2 * first_row(giver, self);
        received.push_back(rows(giver, self));
        expected.insert(expected.end(), begin, begin + 2 * received.back());
      }
      CHECK(call.handle->first_dims() == received);
      CHECK(call.handle->output_shape() ==
            std::vector<std::int64_t>{static_cast<std::int64_t>(expected.size()) / 2, 2});
      take_output(call, static_cast<std::int64_t>(expected.size()));
      CHECK(call.output == expected);
    };
    Request request;
    request.kind = Kind::alltoall;
    request.name = name;
    request.shape = {mine, 2};
    for (int taker = 0; taker < world.size(); ++taker)
      request.splits.push_back(rows(rank, taker));
    submit(world, rank, call, request, nullptr, true);
  }

  void barrier(EngineWorld& world, int rank, const std::string& name) {
    Call& call = add(name, rank, 0, 0);
    call.check = [](int, int) {};
    Request request;
    request.kind = Kind::barrier;
    request.name = name;
    submit(world, rank, call, request, nullptr, true);
  }

 private:
  /// The core's output, which can be taken once, becomes the call's.
  static void take_output(Call& call, std::int64_t count) {
    const auto output = call.handle->take_output();
    if (!output) return;
    const auto* values = reinterpret_cast<const float*>(output.get());
    call.output.assign(values, values + count);
  }

  Call& add(const std::string& name, int rank, std::int64_t inputs, std::int64_t outputs) {
    auto call = std::make_unique<Call>();
    call->name = name;
    call->input = values_of(rank, inputs);
    call->output.assign(static_cast<std::size_t>(outputs), -1.0f);
    all.push_back(std::move(call));
    return *all.back();
  }

  static void submit(EngineWorld& world, int rank, Call& call, const Request& request, void* output,
                     bool waits) {
    auto handle = world[rank].post({request, call.input.data(), output, waits});
    REQUIRE(handle);
    call.handle = *handle;
  }
};

}  // namespace hora::test
