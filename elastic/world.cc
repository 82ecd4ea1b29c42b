// How members are named in every message: "rank 2 (pid 17 on node1)".
//
// Host names are for people; nothing is ever looked up by them.
#include "elastic/world.h"

namespace hora {

std::string describe(const Member& member, Rank rank) {
  return "rank " + std::to_string(rank.value) + " (pid " + std::to_string(member.pid) + " on " +
         member.host_name + ")";
}

std::string World::describe(Rank rank) const {
  if (rank.value < 0 || rank.value >= size()) return "rank " + std::to_string(rank.value);
  return hora::describe(members[index_of(rank)], rank);
}

}  // namespace hora
