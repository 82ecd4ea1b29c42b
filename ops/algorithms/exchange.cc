// Exchange: all-reduce in one hop.
//
//   input      rank 0: a    rank 1: b    rank 2: c
//                       \________|________/
//                                |               everybody publishes its whole input to everybody,
//                        ________|________
//                       /        |        \      and merges all of them itself, in rank order
//   result           a+b+c     a+b+c     a+b+c
//
// Who sends what: each rank sends its input to the size-1 others and receives theirs. Everybody
// does all of the arithmetic: size times as much as needed, but nobody waits for anybody's
// arithmetic. Results are the same bytes everywhere because all merge the same operands in the same
// order, and are rounded once.
//
// Cost per rank, segment of n bytes: 1 hop; (size-1) n sent, (size-1) n received; size n bytes
// merged. Over shared memory "sent" costs nothing and each rank reads all inputs. Best while a
// second hop (a wake, or a round trip) costs more than that: up to some tens of KB on one host,
// hundreds of bytes on a network.
//
// With zero elements this is a barrier: the messages are headers only, and nobody has all of them
// before everybody has come.
//
// Source: the one-step all-to-all exchange of folklore (MPI_Allgather, then reduce).
//
// Slot:   input  [1]         own contribution; stays as packed
//         result [1]
//         arrived[size-1]    landing: one cell per other rank, in rank order without the owner
#include "ops/algorithms/algorithms.h"

namespace hora {

Schedule make_exchange(int size, int me) {
  ScheduleBuilder builder("exchange", Shape::reduce, size, me, 1);
  const Place input = place(builder.buffer("input", 1), 0);
  const Place result = place(builder.buffer("result", 1), 0);
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  const auto landing = [&](int sender, int receiver) {
    return place(arrived, sender < receiver ? sender : sender - 1);
  };

  builder.pack(input);
  for (int step = 1; step < size; ++step) {  // Starting beside me spreads the load of a switch.
    const int peer = (me + step) % size;
    builder.send(peer, 0, kWhole, input, landing(me, peer));
  }
  std::vector<Operand> contributions;
  for (int rank = 0; rank < size; ++rank) {
    contributions.push_back(
        rank == me ? local(input) : received(builder.recv(rank, 0, kWhole, landing(rank, me))));
  }
  builder.merge(contributions, kWhole, result, true);
  builder.unpack(local(result), kWhole);
  return builder.finish(size > 1 ? 1 : 0);
}

}  // namespace hora
