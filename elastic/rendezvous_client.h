// The way to the World: connect, prove, Join, wait.
//
// Ranks start in any order, and between two rounds of a job rank 0 closes one rendezvous and opens
// the next: so whatever is about the connection (refused, reset, ended) is tried again until the
// deadline. What is about us (refused by name, a proof that fails again and again) ends the attempt
// with the reason.
#pragma once

#include "elastic/control.h"
#include "elastic/messages.h"
#include "elastic/world.h"
#include "runtime/base/fork.h"
#include "runtime/base/result.h"

namespace hora {

/// A World and the control connection on which it came.
struct Meeting {
  TrackedFd socket;
  MessageReader reader{kMaxMessageToWorker};  ///< May hold what came after the World.
  World world;
};

/// Blocks until the World is there, at most config.start_timeout_ms. A single attempt to connect or
/// to prove the secret, some seconds at most, is not interrupted.
Result<Meeting> meet(const Config& config, const Placement& placement, const Member& self,
                     const Interrupted& interrupted);

}  // namespace hora
