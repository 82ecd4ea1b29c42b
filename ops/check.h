// The symbolic check: a template is right, or this says where it is wrong.
//
// Runs the schedules of all ranks together on symbols instead of numbers: a cell holds the ordered
// list of contributions (rank, chunk) that it is the sum of. Nothing about time: any order that the
// dependencies allow must give the same symbols.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/schedule.h"
#include "ops/topology.h"

namespace hora {

/// Checks the schedules of ranks 0..size-1 of one collective, all properties of
/// schedule.h, with and without shared memory. Returns nothing, or one sentence that names
/// rank, task and broken rule. Rank order means that of `topology`: the ranks of its first host,
/// ascending, then those of the second, and so on.
std::optional<std::string> check_schedules(const std::vector<Schedule>& by_rank,
                                           const Topology& topology);
/// The same for algorithms that know no hosts.
std::optional<std::string> check_schedules(const std::vector<Schedule>& by_rank);

/// The order in which right schedules of a shape that adds add the contributions of the ranks to
/// `chunk`; empty if the check fails.
std::vector<int> contribution_order(const std::vector<Schedule>& by_rank, const Topology& topology,
                                    int chunk);
std::vector<int> contribution_order(const std::vector<Schedule>& by_rank, int chunk);

}  // namespace hora
