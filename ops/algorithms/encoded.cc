// Encoded all-reduces: exchange, direct and ring with payloads of a codec in their cells.
//
// The same messages between the same ranks as in exchange.cc, direct.cc and ring.cc. What differs
// is what lies in a cell, and that nothing is packed: a merge reads the caller's tensors.
//
//   exchange   every rank encodes its segment and sends it to all; everybody decodes and adds all
//              payloads, in rank order. No payload is encoded again, so it serves the codecs of
//              kind gather (a sum of top-k's is no top-k), whatever the size.
//   direct     rank r encodes its chunk c for owner c; the owner decodes and adds all, its own
//              numbers as they are, and encodes the sum once: two encodings between an input and
//              the result. All decode it from the same bytes, the owner too.
//   ring       each hop decodes the partial sum, adds its own and encodes the new one: size-1
//              encodings, each of a larger sum. The error grows with the ring, the links stay those
//              between neighbours. Finished chunks are passed on as they are.
//
// Every rank encodes every chunk exactly once, with its own contribution in it: there its residual
// goes in and comes out, and per-hop error feedback costs one number per element.
//
//   direct, 3 ranks         rank 0            rank 1            rank 2
//     encode, send           E(a1) E(a2)       E(b0) E(b2)       E(c0) E(c1)
//     merge, encode          E(a0+b0+c0)       E(a1+b1+c1)       E(a2+b2+c2)     (b1: not encoded)
//     send, decode           all three         all three         all three
//
// Cost: bytes on the wire times the codec's ratio; in memory per element and rank about 8 bytes of
// tensor, 8 of residual and 3 payloads.
//
// Source: for the placement of error feedback, Karimireddy et al., "Error feedback fixes SignSGD",
// 2019; for direct rather than ring, Wang et al., "ZeRO++", 2023, section 3.3.
#include <algorithm>
#include <optional>

#include "ops/algorithms/algorithms.h"
#include "ops/algorithms/gather.h"

namespace hora {

Schedule make_encoded_exchange(int size, int me) {
  ScheduleBuilder builder("exchange", Shape::reduce, size, me, 1);
  const Place own = place(builder.encoded_buffer("own", 1), 0);
  const Place result = place(builder.buffer("result", 1), 0);
  const std::uint16_t arrived = builder.encoded_buffer("arrived", size - 1, true);
  const auto landing = [&](int sender, int receiver) {
    return place(arrived, sender < receiver ? sender : sender - 1);
  };

  builder.merge({from_caller()}, kWhole, own, false);
  for (int step = 1; step < size; ++step) {
    const int peer = (me + step) % size;
    builder.send(peer, 0, kWhole, own, landing(me, peer));
  }
  std::vector<Operand> payloads;
  for (int rank = 0; rank < size; ++rank) {
    payloads.push_back(rank == me ? local(own)
                                  : received(builder.recv(rank, 0, kWhole, landing(rank, me))));
  }
  builder.merge(payloads, kWhole, result, true);
  builder.unpack(local(result), kWhole);
  return builder.finish(size > 1 ? 1 : 0);
}

Schedule make_encoded_direct(int size, int me) {
  ScheduleBuilder builder("direct", Shape::reduce, size, me, size);
  const std::uint16_t given = builder.encoded_buffer("given", size);
  const Place result = place(builder.encoded_buffer("result", 1), 0);
  const std::uint16_t arrived = builder.encoded_buffer("arrived", size - 1, true);
  const std::uint16_t gathered = builder.encoded_buffer("gathered", size - 1, true);
  const auto landing = [&](int sender, int receiver) {
    return place(arrived, sender < receiver ? sender : sender - 1);
  };

  for (int step = 1; step < size; ++step) {
    const int peer = (me + step) % size;
    builder.merge({from_caller()}, peer, place(given, peer), false);
    builder.send(peer, 0, peer, place(given, peer), landing(me, peer));
  }
  std::vector<Operand> contributions;
  for (int rank = 0; rank < size; ++rank) {
    contributions.push_back(rank == me ? from_caller()
                                       : received(builder.recv(rank, 0, me, landing(rank, me))));
  }
  builder.merge(contributions, me, result, true);
  add_direct_gather(builder, size, me, result, gathered, 1);
  return builder.finish(size > 1 ? 2 : 0);
}

Schedule make_encoded_ring(int size, int me) {
  ScheduleBuilder builder("ring", Shape::reduce, size, me, size);
  const std::uint16_t result = builder.encoded_buffer("result", size);
  const std::uint16_t partial = builder.encoded_buffer("partial", size - 1);
  const std::uint16_t arrived = builder.encoded_buffer("arrived", size - 1, true);
  const int next = (me + 1) % size;
  const int previous = (me + size - 1) % size;
  const int steps = size - 1;

  // The first partial sum is our part of chunk me-1; after `steps` hops ours is finished here.
  Place sum = steps == 0 ? place(result, me) : place(partial, 0);
  builder.merge({from_caller()}, previous, sum, steps == 0);
  std::optional<TaskId> last_recv;
  for (int step = 0; step < steps; ++step) {
    const int sent = (me + 2 * size - step - 1) % size;
    const int taken = (me + 2 * size - step - 2) % size;
    builder.send(next, step, sent, sum, place(arrived, step));
    const TaskId recv = builder.recv(previous, step, taken, place(arrived, step));
    if (last_recv) builder.after(recv, *last_recv);
    last_recv = recv;
    const bool is_last = step + 1 == steps;
    sum = is_last ? place(result, me) : place(partial, step + 1);
    builder.merge({received(recv), from_caller()}, taken, sum, is_last);
  }
  add_ring_gather(builder, size, me, result, steps);
  return builder.finish(2 * steps);
}

}  // namespace hora
