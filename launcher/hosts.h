// Hosts: the machines of a job, as a user writes them down.
//
//   --hosts node1:4,node2:2          a hostfile:   # the small cluster
//                                                  node1 slots=4
//                                                  node2:2
//
// Both forms of a hostfile's line are Open MPI's and Horovod's. A host named twice is an error: one
// of two lines would count, or both, and either would surprise somebody. A name goes to ssh as a
// word of its command line, so it cannot begin with a dash. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace hora {

/// A host and how many workers it may run.
struct Host {
  std::string name;
  int slots = 0;

  friend bool operator==(const Host&, const Host&) = default;
};

/// Reads "node1:4,node2:2". IPv6 addresses may stand in brackets.
Result<std::vector<Host>> parse_hosts(std::string_view text);

/// Reads the text of a hostfile; `name` is the file's name in errors, which begin "name:line:".
Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view name);

}  // namespace hora
