// Groups of schedules, for the tests of ops.
//
// A row of the registry makes the schedule of one rank; the check, the playback and the mutants
// want those of all ranks of a group together.
#pragma once

#include <string>
#include <vector>

#include "ops/algorithms/algorithms.h"

namespace hora::testing {

/// The schedules of all ranks.
inline std::vector<Schedule> group_of(const AlgorithmRow& row, int size, int root) {
  std::vector<Schedule> by_rank;
  for (int rank = 0; rank < size; ++rank)
    by_rank.push_back(row.make(size, rank, root));
  return by_rank;
}

/// The same for a row by name.
inline std::vector<Schedule> group_of(std::string_view name, Collective collective, int size) {
  return group_of(*find_algorithm(name, collective), size, 0);
}

/// Roots worth trying: all, of a broadcast.
inline int roots_of(const AlgorithmRow& row, int size) {
  return row.collective == Collective::broadcast ? size : 1;
}

inline std::string name_of(const AlgorithmRow& row) {
  static constexpr const char* kCollectives[] = {"allreduce", "allgather", "broadcast", "barrier"};
  return std::string(row.name) + " " + kCollectives[static_cast<int>(row.collective)];
}

}  // namespace hora::testing
