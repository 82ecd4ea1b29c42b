// The two ways to all-gather, as the last phase of a template. See gather.cc.
//
// Internal to ops/algorithms: the all-gathers end with them, and so do the direct and the ring
// all-reduce, whose first phase leaves one finished chunk on each rank.
#pragma once

#include <cstdint>

#include "ops/schedule.h"

namespace hora {

/// Rank `me` holds chunk `me` at `own`; everybody sends its chunk to everybody (tag `tag`), and
/// unpacks each chunk from where it came. `landing` has size-1 cells.
void add_direct_gather(ScheduleBuilder& builder, int size, int me, Place own, std::uint16_t landing,
                       int tag);

/// Rank `me` holds chunk `me` at cell `me` of `result`, a buffer of `size` cells; the chunks travel
/// along the ring (tags `first_tag` .. `first_tag` + size-2), and are unpacked.
void add_ring_gather(ScheduleBuilder& builder, int size, int me, std::uint16_t result,
                     int first_tag);

}  // namespace hora
