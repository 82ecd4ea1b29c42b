// Ring: all-reduce in 2(size-1) hops between neighbours.
//
//   0 ---> 1 ---> 2 ---> 3     reduce-scatter: the sum of chunk c starts at rank c+1 and goes
//   ^                    |     around; every rank adds what it has, rank c last: it finishes it
//   +--------------------+     all-gather: the finished chunks go around once more
//
// The two halves are the ring reduce-scatter (scatter.cc) and the ring all-gather (gather.cc).
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

#include "ops/algorithms/algorithms.h"
#include "ops/algorithms/gather.h"
#include "ops/algorithms/scatter.h"

namespace hora {

Schedule make_ring(int size, int me) {
  ScheduleBuilder builder("ring", Shape::reduce, size, me, size);
  const std::uint16_t input = builder.buffer("input", size);
  const std::uint16_t result = builder.buffer("result", size);
  const std::uint16_t partial = builder.buffer("partial", std::max(size - 2, 0));
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  const int steps = size - 1;

  builder.pack(place(input, 0));
  add_ring_scatter(builder, size, me, input, place(result, me), partial, arrived);
  add_ring_gather(builder, size, me, result, steps);
  return builder.finish(2 * steps);
}

}  // namespace hora
