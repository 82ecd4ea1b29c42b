// The algorithms: one file each, one pure function each, one row in the registry.
//
// `me` and `size` are indices in the group, and so are the ranks of a topology. All functions
// return the template of one segment (schedule.h); calling one costs some microseconds and the
// runtime keeps the result.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ops/schedule.h"
#include "ops/topology.h"

namespace hora {

/// All-reduce in one exchange: everybody publishes its whole segment, everybody merges all of
/// them in rank order. Best for messages so small that a second hop costs more than merging
/// everything everywhere.
Schedule make_exchange(int size, int me);

/// All-reduce in two exchanges: rank c merges chunk c of all ranks at once (reduce-scatter), then
/// everybody collects the chunks (all-gather). One rounding. The workhorse on one host.
Schedule make_direct(int size, int me);

/// Ring all-reduce, 2(size-1) hops, each moves one chunk to the next rank; bandwidth-optimal on a
/// network. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
/// workstations", 2009.
Schedule make_ring(int size, int me);

/// Recursive doubling all-reduce: floor(log2 size) exchanges of the whole segment with partners at
/// distance 1, 2, 4, ...; adjacent ranks fold first, and unfold last, when size is no power of two.
/// Partial sums stay in rank order. Thakur, Rabenseifner, Gropp, "Optimization of collective
/// communication operations in MPICH", 2005.
Schedule make_doubling(int size, int me);

/// All-reduce over two levels: owners of chunks reduce inside of each host, where memory is shared,
/// and exchange along rings across the hosts. Each host sends the least possible.
Schedule make_hierarchical(const Topology& topology, int me);

/// Broadcast along a binomial tree from `root`: floor(log2 size) hops.
Schedule make_tree_broadcast(int size, int me, int root);

/// Broadcast in one hop: the root publishes, everybody reads. Best where memory is shared.
Schedule make_flat_broadcast(int size, int me, int root);

/// All-gather(v) in one exchange. Chunk c is rank c's contribution to the segment, of
/// any length or empty.
Schedule make_direct_allgather(int size, int me);

/// All-gather(v) along a ring, size-1 hops.
Schedule make_ring_allgather(int size, int me);

/// All-reduce of payloads in one exchange: everybody decodes and adds those of all. For codecs of
/// kind gather, and for small tensors.
Schedule make_encoded_exchange(int size, int me);

/// All-reduce of payloads in two exchanges: every contribution is encoded once for its owner, the
/// sum once by it.
Schedule make_encoded_direct(int size, int me);

/// All-reduce of payloads along a ring: partial sums are encoded anew at every hop, finished ones
/// are passed on as they are.
Schedule make_encoded_ring(int size, int me);

/// Reduce-scatter in one exchange: rank c merges chunk c of all ranks at once. Chunks have any
/// length. The first half of `make_direct`.
Schedule make_direct_reducescatter(int size, int me);

/// Reduce-scatter along a ring, size-1 hops. The first half of `make_ring`.
Schedule make_ring_reducescatter(int size, int me);

/// All-to-all(v) in one exchange: every block goes straight to its receiver. Blocks have any
/// length.
Schedule make_alltoall(int size, int me);

enum class Collective : std::uint8_t {
  allreduce,
  allgather,
  broadcast,
  barrier,
  reducescatter,
  alltoall
};

/// One row per algorithm: the generic tests, the benchmark and `HORA_ALGORITHM`
/// iterate over the rows.
struct AlgorithmRow {
  std::string_view name;
  Collective collective;
  std::string_view description;
  /// 16-bit sums are rounded once, at the end: only such algorithms take 16-bit tensors.
  bool rounds_once;
  /// The template depends on who shares memory; otherwise only on how many ranks there are.
  bool uses_topology;
  Schedule (*make)(const Topology& topology, int me, int root);
  /// The same all-reduce for payloads of codecs of kind hop; null: it takes none.
  Schedule (*make_encoded)(int size, int me) = nullptr;
  /// ... and of kind gather: no payload is encoded again.
  bool gathers = false;
};

/// All rows, in the order of the documentation.
const std::vector<AlgorithmRow>& algorithms();

/// The row of that name and collective, or nullptr.
const AlgorithmRow* find_algorithm(std::string_view name, Collective collective);

}  // namespace hora
