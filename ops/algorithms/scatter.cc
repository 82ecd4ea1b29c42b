// Reduce-scatter: everybody has all chunks, and rank c wants the sum of chunk c. Directly, or along
// a ring.
//
//   direct     column c goes to rank c          ring, 4 ranks: what rank r sends to r+1 at step s
//              which merges it                  (a..d: inputs of ranks 0..3)
//
//   rank 0   | a0 | a1 | a2 |                            step 0   step 1     step 2
//   rank 1   | b0 | b1 | b2 |                   rank 0   a3       d2+a2      c1+d1+a1
//   rank 2   | c0 | c1 | c2 |                   rank 1   b0       a3+b3      d2+a2+b2
//              |    |    |                      rank 2   c1       b0+c0      a3+b3+c3
//              v    v    v                      rank 3   d2       c1+d1      b0+c0+d0
//              S0   S1   S2  at rank 0, 1, 2    then rank 0 adds a0 to b0+c0+d0, and so on
//
// Direct: rank r sends chunk c of its input to rank c, for all c but its own; the owner merges size
// operands in one pass, lower ranks first: no partial sum is written and read again, and there is
// one rounding, so this is the one for 16-bit tensors. 1 hop, size-1 flows at once, starting with
// the right neighbour so that not all begin at the same receiver. Over shared memory the owner
// reads the chunks in the slots of the others.
//
// Ring: the sum of chunk c starts at rank c+1 and goes around; every rank adds what it has, rank c
// last: it finishes it. size-1 hops, one flow to the right and one from the left. The order of the
// additions is c+1, c+2, .., size-1, 0, .., c: a rotation of the rank order, one for each chunk.
//
// Cost per rank, segment of n bytes: both send and receive n (size-1)/size, the least possible.
//
// Both are also the first half of an all-reduce (direct.cc, ring.cc); there the chunks have equal
// length. In a reduce-scatter chunk c is the part of rank c, of any length or empty.
//
// Source: the direct exchange of Thakur, Rabenseifner, Gropp, 2005; Patarasuk and Yuan, 2009.
//
// Slot:   input  [size]      stays as packed
//         result [1]         own chunk, finished
//         partial[size-2]    ring: the sum passed on at step s+1
//         arrived[size-1]    landing: own chunk of the others, in rank order without the owner;
//                            ring: the partial sum of step s
#include "ops/algorithms/scatter.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ops/algorithms/algorithms.h"

namespace hora {

void add_direct_scatter(ScheduleBuilder& builder, int size, int me, std::uint16_t input,
                        Place result, std::uint16_t landing, int tag) {
  const auto landing_of = [&](int sender, int receiver) {
    return place(landing, sender < receiver ? sender : sender - 1);
  };
  for (int step = 1; step < size; ++step) {
    const int peer = (me + step) % size;
    builder.send(peer, tag, peer, place(input, peer), landing_of(me, peer));
  }
  std::vector<Operand> contributions;
  for (int rank = 0; rank < size; ++rank) {
    contributions.push_back(rank == me
                                ? local(place(input, me))
                                : received(builder.recv(rank, tag, me, landing_of(rank, me))));
  }
  builder.merge(contributions, me, result, true);
}

void add_ring_scatter(ScheduleBuilder& builder, int size, int me, std::uint16_t input, Place result,
                      std::uint16_t partial, std::uint16_t landing) {
  const int next = (me + 1) % size;
  const int previous = (me + size - 1) % size;
  const int steps = size - 1;
  Place sum =
      place(input, previous);  // What goes to the next rank; at first our part of chunk me-1.
  std::optional<TaskId> last_recv;
  for (int step = 0; step < steps; ++step) {
    const int sent = (me + 2 * size - step - 1) % size;
    const int taken = (me + 2 * size - step - 2) % size;
    builder.send(next, step, sent, sum, place(landing, step));
    const TaskId recv = builder.recv(previous, step, taken, place(landing, step));
    // One neighbour sends all of them, in this order: look for one message at a time.
    if (last_recv) builder.after(recv, *last_recv);
    last_recv = recv;

    const bool is_last = step + 1 == steps;  // Then taken == me.
    sum = is_last ? result : place(partial, step);
    builder.merge({received(recv), local(place(input, taken))}, taken, sum, is_last);
  }
  if (steps == 0) builder.merge({local(place(input, me))}, me, result, true);
}

Schedule make_direct_reducescatter(int size, int me) {
  ScheduleBuilder builder("direct", Shape::scatter, size, me, size);
  const std::uint16_t input = builder.buffer("input", size);
  const Place result = place(builder.buffer("result", 1), 0);
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  for (int chunk = 0; chunk < size; ++chunk)
    builder.pack(place(input, chunk), chunk);
  add_direct_scatter(builder, size, me, input, result, arrived, 0);
  builder.unpack(local(result), me);
  return builder.finish(size > 1 ? 1 : 0);
}

Schedule make_ring_reducescatter(int size, int me) {
  ScheduleBuilder builder("ring", Shape::scatter, size, me, size);
  const std::uint16_t input = builder.buffer("input", size);
  const Place result = place(builder.buffer("result", 1), 0);
  const std::uint16_t partial = builder.buffer("partial", std::max(size - 2, 0));
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  for (int chunk = 0; chunk < size; ++chunk)
    builder.pack(place(input, chunk), chunk);
  add_ring_scatter(builder, size, me, input, result, partial, arrived);
  builder.unpack(local(result), me);
  return builder.finish(size - 1);
}

}  // namespace hora
