// Broadcast: the root's segment everywhere. In one hop, or along a binomial tree.
//
//   flat     0 --> 1, 2, 3, .. , 7          tree     0 ---------> 4 ----> 6 --> 7
//                                                    |            +-> 5
//            the root sends size-1 times             +----> 2 --> 3
//                                                    +-> 1
//
// Numbers are distances from the root: v = (rank - root) mod size. In the tree, the parent of v is
// v without its lowest one-bit (6 = 110b -> 4 = 100b), so the children of v are v + 2^k for all 2^k
// below that bit; the root has them for every 2^k < size. A node serves its largest subtree first:
// it has the longest way to go.
//
// Cost, segment of n bytes: flat 1 hop, the root sends (size-1) n. Tree floor(log2 size) hops (the
// most one-bits in a v < size), nobody sends more than ceil(log2 size) n, each receives n. Over
// shared memory flat is best: the root packs once and everybody reads that; a tree node would have
// to copy first, since a sender sends from its own slot. On a socket the payload lands where the
// copy would put it.
//
// A broadcast is the one collective whose completion does not depend on everybody: the root is held
// back only by the counts (docs/architecture.md, "the segment"). The root unpacks too, for callers
// whose output is not their input.
//
// Source of the tree: Thakur, Rabenseifner, Gropp, 2005, section 3 (and MPICH before it).
//
// Slot:   data[1]   packed at the root; elsewhere copied or landed
#include <bit>

#include "ops/algorithms/algorithms.h"

namespace hora {

Schedule make_tree_broadcast(int size, int me, int root) {
  ScheduleBuilder builder("tree", Shape::copy, size, me, 1);
  const Place data = place(builder.buffer("data", 1), 0);
  const auto hops = static_cast<int>(std::bit_width(static_cast<unsigned>(size))) - 1;
  const int distance = (me - root + size) % size;
  const auto rank_at = [&](int v) { return (v + root) % size; };

  const int lowest_bit = distance == 0
                             ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size)))
                             : distance & -distance;
  const bool has_children = lowest_bit > 1 && distance + 1 < size;
  Operand result = local(data);
  if (distance == 0) {
    builder.pack(data);
  } else {
    const TaskId recv = builder.recv(rank_at(distance - lowest_bit), 0, kWhole, data);
    if (has_children) {
      builder.copy(received(recv), kWhole, data);
    } else {
      result = received(recv);
    }
  }
  for (int bit = lowest_bit / 2; bit > 0; bit /= 2) {
    if (distance + bit < size) builder.send(rank_at(distance + bit), 0, kWhole, data, data);
  }
  builder.unpack(result, kWhole);
  return builder.finish(hops, root);
}

Schedule make_flat_broadcast(int size, int me, int root) {
  ScheduleBuilder builder("flat", Shape::copy, size, me, 1);
  const Place data = place(builder.buffer("data", 1), 0);
  if (me == root) {
    builder.pack(data);
    for (int step = 1; step < size; ++step) {
      builder.send((root + step) % size, 0, kWhole, data, data);
    }
    builder.unpack(local(data), kWhole);
  } else {
    builder.unpack(received(builder.recv(root, 0, kWhole, data)), kWhole);
  }
  return builder.finish(size > 1 ? 1 : 0, root);
}

}  // namespace hora
