// World: the members of one epoch, as an immutable value.
//
// Everything that depends on who takes part hangs on a World and is replaced with it, never
// changed. Ranks, addresses and hosts are facts of a World, not of a process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/ids.h"

namespace hora {

/// A numeric address and port. IPv6 addresses are written without brackets.
struct Address {
  std::string ip;
  std::uint16_t port = 0;

  friend bool operator==(const Address&, const Address&) = default;
};

struct Member {
  WorkerId worker{};
  /// The rank with which it was started. Its rank changes with the World; this number never does.
  std::int32_t first_rank = 0;
  std::int64_t pid = 0;
  std::string host_name;           ///< For messages only; never resolved.
  std::string host_id;             ///< Members with equal ids try to share memory.
  std::vector<Address> addresses;  ///< Where its data listener can be reached, best first.
  std::string unix_name;           ///< Abstract unix socket of its listener, for peers on its host.
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  std::uint64_t slot_bytes = 0;  ///< The largest slot that its arena has room for ...
  std::uint32_t window = 0;  ///< ... and how many a lane: a World takes the least of all members.
  std::string settings;      ///< Knobs that must be alike on all members, as text.
};

/// "rank 2 (pid 17 on node1)".
std::string describe(const Member& member, Rank rank);

struct World {
  std::array<std::byte, 16> job{};  ///< Names the job; part of every handshake.
  Epoch epoch{};
  Rank self{};                  ///< Which member this copy belongs to.
  std::vector<Member> members;  ///< In rank order.
  /// With as many members the job goes on when others die; 0: a death ends it.
  int min_size = 0;

  [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
  /// The job goes on without one of these members.
  [[nodiscard]] bool elastic() const { return min_size > 0 && size() > min_size; }
  [[nodiscard]] const Member& me() const { return members[index_of(self)]; }
  /// "rank 2 (pid 17 on node1)".
  [[nodiscard]] std::string describe(Rank rank) const;
};

}  // namespace hora
