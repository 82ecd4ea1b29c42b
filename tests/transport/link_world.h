// LinkWorld: n ranks of one process, linked over any transport.
//
// So that one body of tests runs over all of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/transport/loopback.h"
#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/fd.h"
#include "runtime/base/wait_point.h"

namespace hora::test {

enum class Medium { loopback, tcp, shm };
const char* to_string(Medium medium);

/// One rank: what a session of its own would hold.
struct Member {
  std::unique_ptr<Arena> arena;
  std::size_t area_offset = 0;
  std::unique_ptr<WaitPoint> wait_point;
  std::unique_ptr<Transport> transport;
  std::vector<std::unique_ptr<Link>> links;  ///< By rank; null at self.

  /// The payload area of a slot.
  [[nodiscard]] std::span<std::byte> slot(const LaneLayout& layout, std::uint16_t lane,
                                          std::uint64_t position);
  /// Moves what moves now. True if anything did.
  bool step();
};

class LinkWorld {
 public:
  LinkWorld(Medium medium, int size, const LaneLayout& layout, FaultPlan plan = {});

  Member& operator[](int rank) { return members[static_cast<std::size_t>(rank)]; }
  Link& link(int from, int to) { return *(*this)[from].links[static_cast<std::size_t>(to)]; }

  /// Steps all members in turn until `done`. False if that takes 30 s.
  bool step_until(const std::function<bool()>& done);
  /// Steps all members until nothing moves any more.
  void settle();

  LaneLayout layout;
  std::shared_ptr<LoopbackHub> hub;  ///< Loopback only.
  std::vector<Member> members;
};

/// A layout that fits all tests: 2 lanes of 4 slots of 1 MB and a page, 8 tags.
LaneLayout test_layout();
/// An arena with the area of `layout` reserved in it; in a memfd if `shared`.
Member make_member(const LaneLayout& layout, bool shared);
/// Two ends of one TCP connection over 127.0.0.1.
std::pair<Fd, Fd> tcp_pair();

/// Bytes that depend on `seed` and place, so that a byte out of place is seen.
void fill(std::span<std::byte> bytes, std::uint64_t seed);
bool holds(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace hora::test
