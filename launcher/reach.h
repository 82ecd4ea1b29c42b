// Whether this host can reach the rendezvous, asked before anything is started.
//
// The address under which horarun is known differs from host to host, and cannot always be told
// from what its own machine knows. So an agent gets all of them, best first - the one from which
// ssh came, then those of horarun's interfaces - and takes the first that answers and proves the
// job's secret. One round: no interface is probed beyond that, and what does not work is said with
// each address and its reason, here rather than a minute later by every worker.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

/// The way that worked.
struct Reached {
  std::string endpoint;  ///< The rendezvous, in HORA_RENDEZVOUS's spelling.
  std::string address;   ///< This host's end of the connection.
};

/// Tries the endpoints in order, at most until `deadline`. `rank` is one of this host's.
Result<Reached> reach_rendezvous(const std::vector<std::string>& endpoints, const std::string& job,
                                 const std::string& secret, Rank rank, Deadline deadline);

/// An error that names what there is, unless one of the interfaces has an address here; empty: all
/// may be used.
Result<void> check_interfaces(const std::vector<std::string>& interfaces);

}  // namespace hora
