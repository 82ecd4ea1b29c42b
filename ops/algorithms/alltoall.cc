// All-to-all: rank s has a block for every rank r, and every rank wants the blocks that are for it.
//
//              for 0  1  2                     from 0  1  2
//   rank 0   | a0 | a1 | a2 |        rank 0   | a0 | b0 | c0 |
//   rank 1   | b0 | b1 | b2 |  --->  rank 1   | a1 | b1 | c1 |     a transposition of the matrix
//   rank 2   | c0 | c1 | c2 |        rank 2   | a2 | b2 | c2 |     of blocks
//
// Who sends what: rank s sends block (s, r) to rank r, for all r but itself, starting with its
// right neighbour: at any moment the flows of all ranks then go to different receivers. Blocks have
// any length, none included; chunk s * size + r of the template is block (s, r), and a rank's own
// block goes through its slot like the others, so that the result may overwrite the input.
//
// Cost per rank, segment of n bytes: 1 hop; n (size-1)/size sent and as many received. Over shared
// memory the receiver reads the block in the slot of its sender. There is no ring: each block has
// one reader, so handing it on would only move it more often.
//
// Source: the pairwise exchange of Thakur, Rabenseifner, Gropp, 2005, section 3.
//
// Slot:   blocks [size]      what this rank gives
//         arrived[size-1]    landing: what it gets, in rank order without itself
#include <vector>

#include "ops/algorithms/algorithms.h"

namespace hora {

Schedule make_alltoall(int size, int me) {
  ScheduleBuilder builder("direct", Shape::transpose, size, me, size * size);
  const std::uint16_t blocks = builder.buffer("blocks", size);
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  const auto block = [&](int sender, int receiver) { return sender * size + receiver; };
  const auto landing = [&](int sender, int receiver) {
    return place(arrived, sender < receiver ? sender : sender - 1);
  };

  for (int rank = 0; rank < size; ++rank)
    builder.pack(place(blocks, rank), block(me, rank));
  for (int step = 1; step < size; ++step) {
    const int peer = (me + step) % size;
    builder.send(peer, 0, block(me, peer), place(blocks, peer), landing(me, peer));
  }
  std::vector<Operand> taken;
  for (int rank = 0; rank < size; ++rank) {
    taken.push_back(rank == me
                        ? local(place(blocks, me))
                        : received(builder.recv(rank, 0, block(rank, me), landing(rank, me))));
  }
  for (int rank = 0; rank < size; ++rank) {
    builder.unpack(taken[static_cast<std::size_t>(rank)], block(rank, me));
  }
  return builder.finish(size > 1 ? 1 : 0);
}

}  // namespace hora
