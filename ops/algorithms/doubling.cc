// Doubling: all-reduce in about log2(size) hops, whole segments.
//
//   rank      0   1   2   3   4   5   6   7      each pair swaps its sums and merges them:
//   round 0   0---1   2---3   4---5   6---7      now blocks of 2 ranks have the same sum,
//   round 1   0-------2       4-------6          (and 1---3, 5---7) blocks of 4,
//   round 2   0---------------4                  (and 1---5, 2---6, 3---7) and all 8
//
//   when size is no power of two, here 6 = 4 + 2:
//
//   fold      0-->1   2-->3   4   5              the first pairs of neighbours become one: the
//   core          0       1   2   3              even rank gives its contribution to the odd
//   return    0<--1   2<--3                      one, which does the rounds and gives back
//
// Order: partners in round k are blocks of 2^k neighbours; the lower block is always the first
// operand, and folding joins neighbours too. So every sum is of consecutive ranks, lowest first, on
// both sides: the same merges of the same bytes, hence the same result everywhere.
//
// Cost per rank, segment of n bytes: floor(log2 size) hops, 1 or 2 more when size is no power of
// two; n bytes sent, received and merged in each. Best for small messages among many ranks, where
// hops are all that counts. Sums are rounded once a hop, so 16-bit tensors do not take it. With
// zero elements it is a barrier.
//
// Source: Thakur, Rabenseifner, Gropp, 2005, section 4.
//
// Slot:   input  [1]        stays as packed
//         sums   [merges]   one per merge, as a partner may still read the one before; the last
//                           one is the result
//         arrived[merges]   landing, one per merge: a partner may run ahead
#include <algorithm>
#include <bit>
#include <vector>

#include "ops/algorithms/algorithms.h"

namespace hora {
namespace {

// Ranks of the core, the power of two that does the rounds, and back.
int core_rank(int rank, int folded) {
  return rank < 2 * folded ? rank / 2 : rank - folded;
}
int rank_of_core(int core, int folded) {
  return core < folded ? 2 * core + 1 : core + folded;
}

}  // namespace

Schedule make_doubling(int size, int me) {
  const auto core_size = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  const int folded = size - core_size;
  const int rounds = std::countr_zero(static_cast<unsigned>(core_size));
  const int fold_merges = folded > 0 ? 1 : 0;
  const int merges = fold_merges + rounds;  // Also the tag of the result on its way back.

  ScheduleBuilder builder("doubling", Shape::reduce, size, me, 1);
  const Place input = place(builder.buffer("input", 1), 0);
  const std::uint16_t sums = builder.buffer("sums", std::max(merges, 1));
  const std::uint16_t arrived = builder.buffer("arrived", merges, true);
  const Place result = place(sums, std::max(merges, 1) - 1);
  // A chain of messages through all rounds flips every bit of the core rank: it begins and ends at
  // a folded pair only if more than half of the core are pairs.
  const int depth = rounds + fold_merges + (2 * folded > core_size ? 1 : 0);
  const bool in_pair = me < 2 * folded;

  builder.reserve_tags(merges + fold_merges);
  builder.pack(input);
  if (in_pair && me % 2 == 0) {
    builder.send(me + 1, 0, kWhole, input, place(arrived, 0));
    builder.unpack(received(builder.recv(me + 1, merges, kWhole, result)), kWhole);
    return builder.finish(depth);
  }

  Place sum = input;
  if (in_pair) {
    const TaskId even = builder.recv(me - 1, 0, kWhole, place(arrived, 0));
    sum = place(sums, 0);
    builder.merge({received(even), local(input)}, kWhole, sum, false);
  }
  for (int round = 0; round < rounds; ++round) {
    const int hop = fold_merges + round;
    const int partner = rank_of_core(core_rank(me, folded) ^ (1 << round), folded);
    builder.send(partner, hop, kWhole, sum, place(arrived, hop));
    const Operand ours = local(sum);
    const Operand theirs = received(builder.recv(partner, hop, kWhole, place(arrived, hop)));
    const bool we_are_lower = me < partner;
    sum = place(sums, hop);
    builder.merge(we_are_lower ? std::vector{ours, theirs} : std::vector{theirs, ours}, kWhole, sum,
                  hop + 1 == merges);
  }
  if (merges == 0) builder.merge({local(input)}, kWhole, result, true);
  if (in_pair) builder.send(me - 1, merges, kWhole, result, result);
  builder.unpack(local(result), kWhole);
  return builder.finish(depth);
}

}  // namespace hora
