// LaneLayout: how the slots of a session lie in an arena. The same on every member of a World.
//
//   lane 0: slot 0 | slot 1 | ... | slot W-1     lane 1: ...     each slot: `slot_bytes` of payload
//
// The slot of position p is p mod W. Nobody starts p before every member is done with p - W: so the
// results of the last W positions stand in slots, and members differ by at most W. Offsets are
// relative to the start of the area that the session reserved in the arena, which may differ
// between members; everything inside is alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hora {

struct LaneLayout {
  std::uint16_t lanes = 0;
  std::uint32_t window = 0;      ///< W: slots per lane.
  std::uint64_t slot_bytes = 0;  ///< Payload area of one slot, a multiple of 4096.
  std::uint16_t tags = 0;        ///< Upper bound on Schedule::tags.

  /// May `position` be started when all members are done with what is below `floor`?
  [[nodiscard]] bool may_start(std::uint64_t position, std::uint64_t floor) const {
    return position < floor + window;
  }
  [[nodiscard]] std::uint64_t area_bytes() const { return slot_bytes * window * lanes; }
  /// Offset of a slot's payload area within the session's area.
  [[nodiscard]] std::uint64_t slot_offset(std::uint16_t lane, std::uint64_t position) const {
    return (std::uint64_t{lane} * window + position % window) * slot_bytes;
  }
};

}  // namespace hora
