// Ring: all-reduce in 2(size-1) hops between neighbours.
//
//   0 ---> 1 ---> 2 ---> 3     reduce-scatter: the sum of chunk c starts at rank c+1 and goes
//   ^                    |     around; every rank adds what it has, rank c last: it finishes it
//   +--------------------+     all-gather: the finished chunks go around once more (gather.cc)
//
//   reduce-scatter, 4 ranks, what rank r sends to r+1 at step s (a..d: inputs of ranks 0..3):
//
//            step 0     step 1       step 2         then it finishes
//   rank 0   a3         d2+a2        c1+d1+a1       b0+c0+d0 + a0
//   rank 1   b0         a3+b3        d2+a2+b2       c1+d1+a1 + b1
//   rank 2   c1         b0+c0        a3+b3+c3       d2+a2+b2 + c2
//   rank 3   d2         c1+d1        b0+c0+d0       a3+b3+c3 + d3
//
// Order: chunk c is c+1, c+2, .., size-1, 0, .., c: a rotation of the rank order, another for each
// chunk. All ranks still get the same bytes, because each chunk is summed by one chain and then
// only copied. A 16-bit element would be rounded once a hop, so 16-bit tensors take direct.cc or
// travel as float32.
//
// Cost per rank, segment of n bytes: 2(size-1) hops; 2 n (size-1)/size bytes sent and as many
// received, the least possible, over one flow to the right and one from the left, so no link is
// ever shared. Each rank writes size-1 partial sums: merges are out of place, so that the packed
// input is intact if the segment must be redone. Segments in flight together hide the hops.
//
// Source: Patarasuk and Yuan, 2009.
//
// Slot:   input  [size]      stays as packed
//         result [size]      own finished chunk, then what the all-gather brings
//         partial[size-2]    the sum passed on at step s+1
//         arrived[size-1]    landing: the partial sum of step s
#include <algorithm>
#include <optional>

#include "ops/algorithms/algorithms.h"
#include "ops/algorithms/gather.h"

namespace hora {

Schedule make_ring(int size, int me) {
  ScheduleBuilder builder("ring", Shape::reduce, size, me, size);
  const std::uint16_t input = builder.buffer("input", size);
  const std::uint16_t result = builder.buffer("result", size);
  const std::uint16_t partial = builder.buffer("partial", std::max(size - 2, 0));
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  const int next = (me + 1) % size;
  const int previous = (me + size - 1) % size;
  const int steps = size - 1;

  builder.pack(place(input, 0));
  Place sum =
      place(input, previous);  // What goes to the next rank; at first our part of chunk me-1.
  std::optional<TaskId> last_recv;
  for (int step = 0; step < steps; ++step) {
    const int sent = (me + 2 * size - step - 1) % size;
    const int taken = (me + 2 * size - step - 2) % size;
    builder.send(next, step, sent, sum, place(arrived, step));
    const TaskId recv = builder.recv(previous, step, taken, place(arrived, step));
    // One neighbour sends all of them, in this order: look for one message at a time.
    if (last_recv) builder.after(recv, *last_recv);
    last_recv = recv;

    const bool is_last = step + 1 == steps;  // Then taken == me.
    sum = is_last ? place(result, me) : place(partial, step);
    builder.merge({received(recv), local(place(input, taken))}, taken, sum, is_last);
  }
  if (steps == 0) builder.merge({local(place(input, me))}, me, place(result, me), true);
  add_ring_gather(builder, size, me, result, steps);
  return builder.finish(2 * steps);
}

}  // namespace hora
