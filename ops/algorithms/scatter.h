// The two ways to reduce-scatter, as the first phase of a template. See scatter.cc.
//
// Internal to ops/algorithms: the reduce-scatters are made of them, and so are the direct and the
// ring all-reduce, whose second phase (gather.h) hands the finished chunks around.
#pragma once

#include <cstdint>

#include "ops/schedule.h"

namespace hora {

/// All chunks are packed in the `size` cells of `input`. Rank c gets chunk c of everybody (tag
/// `tag`) and leaves the finished chunk at `result`. `landing` has size-1 cells.
void add_direct_scatter(ScheduleBuilder& builder, int size, int me, std::uint16_t input,
                        Place result, std::uint16_t landing, int tag);

/// The same along the ring (tags 0 .. size-2). `partial` has size-2 cells (none if size < 3),
/// `landing` size-1.
void add_ring_scatter(ScheduleBuilder& builder, int size, int me, std::uint16_t input, Place result,
                      std::uint16_t partial, std::uint16_t landing);

}  // namespace hora
