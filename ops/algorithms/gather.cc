// All-gather: everybody has a chunk, everybody wants all of them. Directly, or along a ring.
//
//   direct     0 <---> 1     1 hop. Each rank sends its chunk to the size-1 others. Over shared
//              ^ \   / ^     memory nothing moves: the others read it where it is, while they
//              |   X   |     unpack. On a network each rank opens size-1 flows at once.
//              v /   \ v
//              3 <---> 2
//
//   ring       0 ----> 1     size-1 hops. Each rank passes on the chunk that it got last, at
//              ^       |     first its own: at step s rank r sends chunk r-s and receives
//              |       v     chunk r-s-1. One flow per rank, between neighbours only.
//              3 <---- 2
//
// Cost per rank: both send and receive size-1 chunks, which is the least possible; the difference
// is hops and flows. On a ring over shared memory a rank cannot pass on what it sees in its
// neighbour's slot (a sender sends from its own), so it copies; the chunk of the last step is
// passed on to nobody and read in place. On a socket the chunk lands where the copy would put it,
// and the copy is nothing.
//
// Both are also the second half of an all-reduce (direct.cc, ring.cc); there the chunks have equal
// length. In an all-gather a chunk is the contribution of one rank, of any length or empty.
//
// Source: Thakur, Rabenseifner, Gropp, 2005, section 3.
#include "ops/algorithms/gather.h"

#include <optional>
#include <vector>

#include "ops/algorithms/algorithms.h"

namespace hora {

void add_direct_gather(ScheduleBuilder& builder, int size, int me, Place own, std::uint16_t landing,
                       int tag) {
  const auto landing_of = [&](int sender, int receiver) {
    return place(landing, sender < receiver ? sender : sender - 1);
  };
  for (int step = 1; step < size; ++step) {
    const int peer = (me + step) % size;
    builder.send(peer, tag, me, own, landing_of(me, peer));
  }
  std::vector<Operand> chunks;
  for (int rank = 0; rank < size; ++rank) {
    chunks.push_back(rank == me ? local(own)
                                : received(builder.recv(rank, tag, rank, landing_of(rank, me))));
  }
  for (int chunk = 0; chunk < size; ++chunk) {
    builder.unpack(chunks[static_cast<std::size_t>(chunk)], chunk);
  }
}

void add_ring_gather(ScheduleBuilder& builder, int size, int me, std::uint16_t result,
                     int first_tag) {
  const int next = (me + 1) % size;
  const int previous = (me + size - 1) % size;
  std::vector<Operand> chunks(static_cast<std::size_t>(size));
  chunks[static_cast<std::size_t>(me)] = local(place(result, me));
  std::optional<TaskId> last_recv;
  for (int step = 0; step + 1 < size; ++step) {
    const int sent = (me + size - step) % size;
    const int taken = (me + size - step - 1) % size;
    const Place home = place(result, taken);
    builder.send(next, first_tag + step, sent, place(result, sent), place(result, sent));
    const TaskId recv = builder.recv(previous, first_tag + step, taken, home);
    // One neighbour sends all of them, in this order: look for one message at a time.
    if (last_recv) builder.after(recv, *last_recv);
    last_recv = recv;

    chunks[static_cast<std::size_t>(taken)] = received(recv);
    const bool passed_on = step + 2 < size;
    if (passed_on) {
      builder.copy(received(recv), taken, home);
      chunks[static_cast<std::size_t>(taken)] = local(home);
    }
  }
  for (int chunk = 0; chunk < size; ++chunk) {
    builder.unpack(chunks[static_cast<std::size_t>(chunk)], chunk);
  }
}

Schedule make_direct_allgather(int size, int me) {
  ScheduleBuilder builder("direct", Shape::gather, size, me, size);
  const Place own = place(builder.buffer("own", 1), 0);
  const std::uint16_t arrived = builder.buffer("arrived", size - 1, true);
  builder.pack(own, me);
  add_direct_gather(builder, size, me, own, arrived, 0);
  return builder.finish(size > 1 ? 1 : 0);
}

Schedule make_ring_allgather(int size, int me) {
  ScheduleBuilder builder("ring", Shape::gather, size, me, size);
  const std::uint16_t result = builder.buffer("result", size);
  builder.pack(place(result, me), me);
  add_ring_gather(builder, size, me, result, 0);
  return builder.finish(size - 1);
}

}  // namespace hora
