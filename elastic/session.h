// Session: a World plus its live links and mappings. Built whole, thrown away whole.
//
// Building: every pair of members makes one connection, the higher rank connects. Members whose
// host ids agree meet on an abstract unix socket, prove the job's secret, and pass memfd and
// eventfd; if that does not work, or HORA_TRANSPORT says so, they use TCP like everybody else.
// Strangers are dropped and counted.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "elastic/control.h"
#include "elastic/world.h"
#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/config.h"
#include "runtime/base/wait_point.h"

namespace hora {

/// Live links to all members. Owner: the progress token.
struct Session {
  World world;
  LaneLayout layout;
  std::size_t area_offset = 0;                         ///< Of the slots in the own arena.
  std::vector<std::unique_ptr<Transport>> transports;  // destroyed after links
  std::vector<std::unique_ptr<Link>> links;            ///< By rank; null at self.
  /// On one host: sockets over which memory was passed. Their end proves a death; the io thread may
  /// watch.
  std::vector<Fd> witnesses;

  /// All links share memory: receives are views, landing buffers are not laid out.
  [[nodiscard]] bool views_only() const;
};

struct SessionOptions {
  const Config& config;
  const Placement& placement;  ///< For the secret.
  LaneLayout layout;
  Deadline deadline;
};

/// Builds the session of `world`. Errors name the peer and the address that could not be reached.
Result<std::unique_ptr<Session>> build_session(const World& world, Listeners& listeners,
                                               Arena& arena, WaitPoint& wait_point,
                                               const SessionOptions& options);

/// Opens the listeners of this worker.
Result<Listeners> open_listeners(const Config& config, const Placement& placement);

}  // namespace hora
