// Registry: the table of algorithms. One row each; nothing else in the tree lists them.
//
// A value built on first use by an explicit function, so that nothing happens before main(). What
// all algorithms share is tested by iterating over the rows, and `HORA_ALGORITHM` accepts exactly
// these names. Which one a collective takes is chosen by the runtime from size, topology and
// element type; `rounds_once` is the only property that decides about correctness: algorithms that
// pass on partial sums round 16-bit elements once a hop.
#include "ops/algorithms/algorithms.h"

namespace hora {
namespace {

/// Lets an algorithm without a root fit the row.
template <Schedule (*make)(int size, int me)>
Schedule rootless(int size, int me, int /*root*/) {
  return make(size, me);
}

}  // namespace

const std::vector<AlgorithmRow>& algorithms() {
  static const std::vector<AlgorithmRow> rows = {
      {"exchange", Collective::allreduce,
       "1 hop: everybody sends its whole tensor to everybody; for the smallest messages", true,
       rootless<make_exchange>},
      {"direct", Collective::allreduce,
       "2 hops: each rank merges one chunk of all ranks at once; the workhorse on one host", true,
       rootless<make_direct>},
      {"ring", Collective::allreduce,
       "2(size-1) hops between neighbours, least bytes on a network; for large tensors across "
       "hosts",
       false, rootless<make_ring>},
      {"doubling", Collective::allreduce,
       "log2(size) hops of the whole tensor; for small messages among many ranks across hosts",
       false, rootless<make_doubling>},
      {"direct", Collective::allgather, "1 hop: everybody sends its part to everybody", true,
       rootless<make_direct_allgather>},
      {"ring", Collective::allgather,
       "size-1 hops between neighbours; for large parts across hosts", true,
       rootless<make_ring_allgather>},
      {"flat", Collective::broadcast, "1 hop: the root sends to everybody; where memory is shared",
       true, make_flat_broadcast},
      {"tree", Collective::broadcast, "log2(size) hops along a binomial tree; across hosts", true,
       make_tree_broadcast},
      {"exchange", Collective::barrier, "1 hop: everybody tells everybody", true,
       rootless<make_exchange>},
      {"doubling", Collective::barrier, "log2(size) hops: among many ranks", true,
       rootless<make_doubling>},
  };
  return rows;
}

const AlgorithmRow* find_algorithm(std::string_view name, Collective collective) {
  for (const AlgorithmRow& row : algorithms()) {
    if (row.name == name && row.collective == collective) return &row;
  }
  return nullptr;
}

}  // namespace hora
