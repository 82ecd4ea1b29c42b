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

// Each lets an algorithm that asks for less fit the row.
template <Schedule (*make)(int size, int me)>
Schedule flat(const Topology& topology, int me, int /*root*/) {
  return make(topology.size(), me);
}
template <Schedule (*make)(int size, int me, int root)>
Schedule flat_rooted(const Topology& topology, int me, int root) {
  return make(topology.size(), me, root);
}
Schedule hierarchical(const Topology& topology, int me, int /*root*/) {
  return make_hierarchical(topology, me);
}

}  // namespace

const std::vector<AlgorithmRow>& algorithms() {
  static const std::vector<AlgorithmRow> rows = {
      {"exchange", Collective::allreduce,
       "1 hop: everybody sends its whole tensor to everybody; for the smallest messages", true,
       false, flat<make_exchange>, make_encoded_exchange, true},
      {"direct", Collective::allreduce,
       "2 hops: each rank merges one chunk of all ranks at once; the workhorse on one host", true,
       false, flat<make_direct>, make_encoded_direct},
      {"ring", Collective::allreduce,
       "2(size-1) hops between neighbours, least bytes on a network; for large tensors across "
       "hosts",
       false, false, flat<make_ring>, make_encoded_ring},
      {"hierarchical", Collective::allreduce,
       "reduces inside of each host, rings across; for large tensors where hosts have several "
       "ranks",
       false, true, hierarchical},
      {"doubling", Collective::allreduce,
       "log2(size) hops of the whole tensor; for small messages among many ranks across hosts",
       false, false, flat<make_doubling>},
      {"direct", Collective::allgather, "1 hop: everybody sends its part to everybody", true, false,
       flat<make_direct_allgather>},
      {"ring", Collective::allgather,
       "size-1 hops between neighbours; for large parts across hosts", true, false,
       flat<make_ring_allgather>},
      {"direct", Collective::reducescatter,
       "1 hop: each rank merges its part of all ranks at once; the workhorse on one host", true,
       false, flat<make_direct_reducescatter>},
      {"ring", Collective::reducescatter,
       "size-1 hops between neighbours; for large tensors across hosts", false, false,
       flat<make_ring_reducescatter>},
      {"direct", Collective::alltoall, "1 hop: every block straight to its receiver", true, false,
       flat<make_alltoall>},
      {"flat", Collective::broadcast, "1 hop: the root sends to everybody; where memory is shared",
       true, false, flat_rooted<make_flat_broadcast>},
      {"tree", Collective::broadcast, "log2(size) hops along a binomial tree; across hosts", true,
       false, flat_rooted<make_tree_broadcast>},
      {"exchange", Collective::barrier, "1 hop: everybody tells everybody", true, false,
       flat<make_exchange>},
      {"doubling", Collective::barrier, "log2(size) hops: among many ranks", true, false,
       flat<make_doubling>},
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
