// The three runs of an Adasum, and what a rank does between them.
//
//   blocks_   | block r of rank 0 | block r of rank 1 | ...    brought by the all-to-all
//   gram_     n x n                                            filled here, summed in place
//   result    combined over the first of the blocks: every element is read before it is written
//
// Each run holds the State as its anchor, so it is gone with the last of them.
#include <algorithm>
#include <new>
#include <utility>

#include "ops/adasum.h"
#include "runtime/base/check.h"

namespace hora {
namespace {

/// Elements of the block of a rank.
std::uint64_t block_count(std::uint64_t count, int rank, int size) {
  const auto n = static_cast<std::uint64_t>(size);
  return count / n + (static_cast<std::uint64_t>(rank) < count % n ? 1 : 0);
}

struct State {
  State(const AdasumTensor& of, int group_size, int me)
      : dtype(of.dtype),
        postscale(of.postscale),
        size(static_cast<std::size_t>(group_size)),
        count(block_count(of.count, me, group_size)),
        blocks(new (std::nothrow) std::byte[std::max<std::size_t>(1, size * block_bytes())]),
        gram(size * size) {}

  [[nodiscard]] std::size_t block_bytes() const { return count * size_of(dtype); }

  /// Where the blocks of the ranks go on after `at` elements.
  [[nodiscard]] std::vector<const std::byte*> inputs(std::size_t at) const {
    std::vector<const std::byte*> all(size);
    for (std::size_t rank = 0; rank < size; ++rank)
      all[rank] = blocks.get() + rank * block_bytes() + at * size_of(dtype);
    return all;
  }

  DType dtype;
  double postscale;
  std::size_t size;   // Of the group.
  std::size_t count;  // Elements of this rank's block.
  std::unique_ptr<std::byte[]> blocks;
  std::vector<double> gram;
};

using SharedState = std::shared_ptr<State>;

/// Calls `on_block(at, count)` for the next parts of a rank's block until the budget is spent, each
/// of which touches about `cost` bytes per element. True: that was the last.
template <typename OnBlock>
bool go_on(std::size_t& at, std::size_t end, std::size_t cost, std::size_t& budget,
           const OnBlock& on_block) {
  while (at < end && budget > 0) {
    const std::size_t count = std::min(kAdasumBlock, end - at);
    on_block(at, count);
    at += count;
    budget -= std::min(budget, count * cost);
  }
  return at == end;
}

/// Before the all-reduce: this rank's part of the Gram matrix.
class GramWork final : public LocalWork {
 public:
  explicit GramWork(SharedState state) : state_(std::move(state)) {}

  bool work(std::size_t& budget_bytes) override {
    State& s = *state_;
    scratch_.resize(s.size * kAdasumBlock);
    // Every element is multiplied with (n + 1) / 2 others.
    const std::size_t cost = s.size * size_of(s.dtype) * (s.size + 1) / 2;
    return go_on(at_, s.count, cost, budget_bytes, [&](std::size_t at, std::size_t count) {
      add_to_gram(s.dtype, s.inputs(at), count, scratch_, s.gram);
    });
  }

 private:
  SharedState state_;
  std::vector<double> scratch_;
  std::size_t at_ = 0;
};

/// Before the all-gather: the combination of this rank's blocks.
class CombineWork final : public LocalWork {
 public:
  explicit CombineWork(SharedState state) : state_(std::move(state)) {}

  bool work(std::size_t& budget_bytes) override {
    State& s = *state_;
    if (factors_.empty()) factors_ = adasum_factors(s.gram, s.size);
    const std::size_t cost = s.size * size_of(s.dtype);
    return go_on(at_, s.count, cost, budget_bytes, [&](std::size_t at, std::size_t count) {
      std::byte* const out = s.blocks.get() + at * size_of(s.dtype);
      adasum_combine(s.dtype, s.inputs(at), factors_, s.postscale, out, count);
    });
  }

 private:
  SharedState state_;
  std::vector<double> factors_;
  std::size_t at_ = 0;
};

/// Everybody's block r to rank r.
void lay_out_exchange(CollectiveRun& run, const AdasumTensor& tensor, int size, int me) {
  const std::size_t element = size_of(tensor.dtype);
  std::uint64_t given = 0, taken = 0;
  for (int giver = 0; giver < size; ++giver) {
    for (int taker = 0; taker < size; ++taker) {
      const std::uint64_t bytes = block_count(tensor.count, taker, size) * element;
      run.extents.push_back({bytes, giver == me ? given : 0, taker == me ? taken : 0});
      if (giver == me) given += bytes;
      if (taker == me) taken += bytes;
    }
  }
}

/// The block of rank r to everybody.
void lay_out_gather(CollectiveRun& run, const AdasumTensor& tensor, int size) {
  std::uint64_t at = 0;
  for (int rank = 0; rank < size; ++rank) {
    const std::uint64_t bytes = block_count(tensor.count, rank, size) * size_of(tensor.dtype);
    run.extents.push_back({bytes, 0, at});
    at += bytes;
  }
}

}  // namespace

std::array<std::unique_ptr<CollectiveRun>, 3> make_adasum_runs(const AdasumTensor& tensor, int size,
                                                               int me) {
  HORA_CHECK(tensor.count > 0 && size > 0, "an adasum has elements and ranks");
  std::array<std::unique_ptr<CollectiveRun>, 3> runs;
  SharedState state;
  if (me >= 0) {
    state = std::make_shared<State>(tensor, size, me);
    if (!state->blocks) return runs;
  }
  for (auto& run : runs) {
    run = std::make_unique<CollectiveRun>();
    run->dtype = tensor.dtype;
  }
  auto& [exchange, sum, gather] = runs;
  const std::uint64_t longest = block_count(tensor.count, 0, size) * size_of(tensor.dtype);
  lay_out_exchange(*exchange, tensor, size, me);
  exchange->prescale = tensor.prescale;
  exchange->total_bytes = longest;
  lay_out_gather(*gather, tensor, size);
  gather->total_bytes = longest;
  sum->dtype = DType::float64;
  const auto n = static_cast<std::uint64_t>(size);
  sum->total_bytes = n * n * sizeof(double);
  if (!state) return runs;

  exchange->input = tensor.input;
  exchange->output = state->blocks.get();
  auto* const gram = reinterpret_cast<std::byte*>(state->gram.data());
  sum->pieces.push_back({gram, gram, 0, sum->total_bytes});
  gather->input = state->blocks.get();
  gather->output = tensor.output;
  sum->before = std::make_unique<GramWork>(state);
  gather->before = std::make_unique<CombineWork>(state);
  for (auto& run : runs)
    run->anchor = state;
  return runs;
}

}  // namespace hora
