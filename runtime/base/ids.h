// Strong ids: numbers that must not be mistaken for each other.
//
// A rank is a position in one World, an epoch is the number of a World, a worker id names one
// process for ever. All three are "just integers"; passing one for another is the classic bug of
// elastic systems, so each is a type of its own and `reconnect(epoch, rank)` does not compile.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace hora {

/// A number of its own kind. `Tag` only tells kinds apart.
template <class Tag, class Rep>
struct Id {
  Rep value{};

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

/// Position of a member in a World: 0 .. size-1.
using Rank = Id<struct RankTag, std::int32_t>;

/// Number of a World. The first is 1; 0 means "no World yet".
using Epoch = Id<struct EpochTag, std::uint32_t>;

/// An ordered stream of collectives. The engine runs lanes independently of each other.
using Lane = Id<struct LaneTag, std::uint16_t>;

/// Number of a process set of a World; 0: all ranks.
using SetId = Id<struct SetTag, std::uint32_t>;

/// 128 random bits that name one incarnation of one worker, and never another.
struct WorkerId {
  std::array<std::byte, 16> bytes{};

  friend constexpr auto operator<=>(const WorkerId&, const WorkerId&) = default;
};

/// `rank.value` as an index into a vector of members.
constexpr std::size_t index_of(Rank rank) {
  return static_cast<std::size_t>(rank.value);
}

/// Lower-case hexadecimal digits of a worker id.
std::string to_string(const WorkerId& id);

/// A fresh id from the operating system's random source.
WorkerId make_worker_id();

}  // namespace hora

template <class Tag, class Rep>
struct std::hash<hora::Id<Tag, Rep>> {
  std::size_t operator()(const hora::Id<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
