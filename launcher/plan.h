// Plan: who gets which rank. Pure: hosts and a number in, slots out.
//
// Ranks are host-major in the order the hosts are named: the first host's slots take the ranks
// from 0 on, then the second's. `local` counts within a host; `cross` counts, for one local
// rank, the hosts that have it, so hosts of different sizes see different cross sizes. The
// definitions are Horovod's:
//
//   a:2,b:1   rank  host  local/size  cross/size
//             0     a     0/2         0/2
//             1     a     1/2         0/1
//             2     b     0/1         1/2
//
// The number of processes is a cap: slots beyond it stay empty.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

/// The place of one worker.
struct Slot {
  std::string host;
  Rank rank{};
  int size = 1;
  int local_rank = 0, local_size = 1;
  int cross_rank = 0, cross_size = 1;

  friend bool operator==(const Slot&, const Slot&) = default;
};

/// More workers than this are surely a mistake on the command line.
inline constexpr int kMaxWorkers = 1024;

/// The slots in rank order. Without hosts everything runs on localhost; without a number
/// every slot is used.
Result<std::vector<Slot>> plan_slots(const std::vector<Host>& hosts, std::optional<int> num_proc);

/// The slots of each host, hosts in the order of their first rank.
std::vector<std::vector<Slot>> group_by_host(const std::vector<Slot>& slots);

}  // namespace hora
