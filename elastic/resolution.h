// Resolution: how the members of a new World finish what the old one had in flight. Pure.
//
// A lane is one row of positions, and each member is done with a prefix of it. Members differ by at
// most a window, and whoever is done with a position still holds its result. So, with the counts of
// those who go on:
//
//   collective      |------ c ------|------ d ------|------ e ------|
//   member 0        ===================              done up to here, started up to >
//   member 1        ==========               >
//   member 2        ============            >
//   resolution                CCCCCCCCRRRRRRRRRRRRRRR renegotiated
//                             lo      hi            end of the last one that anybody has touched
//
//   C  copy   somebody has the result: those who lack it get it from a holder. It may hold the
//             contribution of a member that died, and nobody can tell who has shown it to whom
//   R  redo   nobody has it, everybody has its input: run it again, among those who go on
//
// Not every collective can be finished by halves. The result of an all-gather has the shape of the
// World that ran it: all its segments come from one World, so it is copied or redone as a whole.
// The result of an all-to-all is private, nobody else has it: it is *shut*, that is, no member
// shows it to its caller before all have it; hence it is done everywhere or may be redone
// everywhere.
//
// Everything is decided collective by collective, among the members of its group: with process sets
// a lane carries collectives of several groups, and who is outside of one passes its positions
// without holding anything. Positions keep their numbers, whatever is redone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/result.h"

namespace hora {

/// How a collective that is done in part may be finished.
enum class Ending : std::uint8_t {
  halves,  ///< Each segment by itself: all-reduce, broadcast, barrier.
  whole,   ///< All segments by one World: all-gather.
  shut,    ///< The same, and nobody can give a result to another: all-to-all, reduce-scatter.
};

/// Positions `begin` .. `end`-1.
struct Positions {
  std::uint64_t begin = 0, end = 0;

  [[nodiscard]] bool empty() const { return begin >= end; }
  friend bool operator==(const Positions&, const Positions&) = default;
};

/// A collective of a lane, as a report names it.
struct LaneCollective {
  Positions at;
  Ending ending = Ending::halves;
  /// In a report: the group's ranks in the World that ran it; empty: all members. In a plan: the
  /// places in the new World of those who are left, maybe of nobody.
  std::vector<std::int32_t> group;
  /// What a member needs to run it; only engines read it.
  std::vector<std::byte> response;

  friend bool operator==(const LaneCollective&, const LaneCollective&) = default;
};

/// How far a frozen member is on one lane. Final once it is said.
struct LaneReport {
  std::uint64_t done = 0;     ///< Positions below are done here.
  std::uint64_t started = 0;  ///< Positions below were started here.
  /// The lowest count of all members that this one knows of; it holds the results from there on.
  std::uint64_t floor = 0;
  /// Those with a position from `floor` to `started` or `done`, in order.
  std::vector<LaneCollective> collectives;
};

/// What becomes of one collective.
struct Resolved {
  LaneCollective collective;
  Positions copy;
  Positions redo;
};

struct LanePlan {
  /// By member: how far it is done. Less than it reported where a collective is redone whole.
  std::vector<std::uint64_t> done;
  std::vector<Resolved> collectives;  ///< In order, without gaps.
  std::uint64_t next = 0;             ///< The first position of what is negotiated from now on.

  /// The member that gives the result of a position of `resolved.copy` to the others: its holders
  /// take turns.
  [[nodiscard]] std::size_t giver(const Resolved& resolved, std::uint64_t position) const;
};

/// The plan of one lane. `reports` are those of the members of the new World in its order, and
/// `old_ranks` are their ranks in the World that reports. Error protocol: the reports contradict
/// each other, or members differ by more than `window` positions.
Result<LanePlan> plan_resolution(const std::vector<LaneReport>& reports,
                                 const std::vector<std::int32_t>& old_ranks, std::uint32_t window);

}  // namespace hora
