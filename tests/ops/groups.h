// Groups of schedules, for the tests of ops.
//
// A row of the registry makes the schedule of one rank; the check, the playback and the mutants
// want those of all ranks of a group together.
#pragma once

#include <string>
#include <vector>

#include "ops/algorithms/algorithms.h"
#include "ops/topology.h"

namespace hora::testing {

/// The schedules of all ranks.
inline std::vector<Schedule> group_of(const AlgorithmRow& row, const Topology& topology, int root) {
  std::vector<Schedule> by_rank;
  for (int rank = 0; rank < topology.size(); ++rank)
    by_rank.push_back(row.make(topology, rank, root));
  return by_rank;
}

/// Ranks 0 and 1 on a host, 2 and 3 on the next, ...; the last may be alone.
inline Topology hosts_of_two(int size) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank) {
    if (rank % 2 == 0) topology.hosts.emplace_back();
    topology.hosts.back().push_back(rank);
  }
  return topology;
}

/// The topology whose rank order a row keeps; one of many, where it depends on the topology.
inline Topology order_of(const AlgorithmRow& row, int size) {
  return row.uses_topology ? hosts_of_two(size) : Topology::separate(size);
}
inline std::vector<Schedule> group_of(const AlgorithmRow& row, int size, int root) {
  return group_of(row, order_of(row, size), root);
}

/// Every division of ranks 0..size-1 into hosts, whatever ranks stand together.
inline std::vector<Topology> all_divisions(int size) {
  std::vector<Topology> divisions = {Topology{}};
  for (int rank = 0; rank < size; ++rank) {
    std::vector<Topology> longer;
    for (const Topology& division : divisions) {
      for (std::size_t host = 0; host <= division.hosts.size(); ++host) {
        longer.push_back(division);
        if (host == division.hosts.size()) longer.back().hosts.emplace_back();
        longer.back().hosts[host].push_back(rank);
      }
    }
    divisions = std::move(longer);
  }
  return divisions;
}

/// The same for a row by name.
inline std::vector<Schedule> group_of(std::string_view name, Collective collective, int size) {
  return group_of(*find_algorithm(name, collective), size, 0);
}

/// The schedules of all ranks with payloads of a codec in their cells.
inline std::vector<Schedule> encoded_group_of(const AlgorithmRow& row, int size) {
  std::vector<Schedule> by_rank;
  for (int rank = 0; rank < size; ++rank)
    by_rank.push_back(row.make_encoded(size, rank));
  return by_rank;
}

/// Roots worth trying: all, of a broadcast.
inline int roots_of(const AlgorithmRow& row, int size) {
  return row.collective == Collective::broadcast ? size : 1;
}

inline std::string name_of(const AlgorithmRow& row) {
  static constexpr const char* kCollectives[] = {"allreduce", "allgather",     "broadcast",
                                                 "barrier",   "reducescatter", "alltoall"};
  return std::string(row.name) + " " + kCollectives[static_cast<int>(row.collective)];
}

}  // namespace hora::testing
