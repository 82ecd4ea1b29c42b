// Direct: all-reduce in two hops, every chunk merged at once by its owner.
//
//   input of rank 0    | a0 | a1 | a2 |
//   input of rank 1    | b0 | b1 | b2 |
//   input of rank 2    | c0 | c1 | c2 |
//                        |    |    |       hop 1, reduce-scatter: column c goes to rank c,
//                        v    v    v       which merges it: S1 = a1 + b1 + c1
//   finished at rank     S0   S1   S2
//         0, 1, 2        |    |    |       hop 2, all-gather: each owner publishes its
//                        v    v    v       chunk to everybody
//   result, everywhere | S0 | S1 | S2 |
//
// The two halves are the direct reduce-scatter (scatter.cc) and the direct all-gather (gather.cc).
// The owner of a chunk merges size operands in one pass, so there is one rounding, and this is the
// template for 16-bit tensors. The arithmetic is shared out evenly, as in the ring, but the number
// of hops does not grow with the number of ranks.
//
// Cost per rank, segment of n bytes: 2 hops; 2 n (size-1)/size bytes sent and as many received, the
// least possible; n bytes merged. Over shared memory the owner reads the chunks in the slots of the
// others, and the result stays in pieces: rank r unpacks chunk c from the slot of rank c. On a
// network size-1 flows leave each rank at once, starting with the right neighbour so that not all
// begin at the same receiver.
//
// Source: the direct (or "spread") exchange; see Thakur, Rabenseifner, Gropp, 2005.
//
// Slot:   input   [size]     stays as packed
//         result  [1]        own chunk, finished
//         arrived [size-1]   landing: own chunk of the others, in rank order without the owner
//         gathered[size-1]   landing: the finished chunks of the others, likewise
#include "ops/algorithms/algorithms.h"
#include "ops/algorithms/gather.h"
#include "ops/algorithms/scatter.h"

namespace hora {

Schedule make_direct(int size, int me) {
  ScheduleBuilder builder("direct", Shape::reduce, size, me, size);
  const std::uint16_t input = builder.buffer("input", size);
  const Place result = place(builder.buffer("result", 1), 0);
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  const std::uint16_t gathered = builder.buffer("gathered", size - 1, true);

  builder.pack(place(input, 0));
  add_direct_scatter(builder, size, me, input, result, arrived, 0);
  add_direct_gather(builder, size, me, result, gathered, 1);
  return builder.finish(size > 1 ? 2 : 0);
}

}  // namespace hora
