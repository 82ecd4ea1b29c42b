// SessionRenewal: the sessions of the Worlds that follow the first one.
//
// Listeners, arena and the layout of its slots stay; links are made anew, because the bytes of an
// old World must not reach a new session. Meeting the others takes a while, and the engine must not
// block meanwhile (another member may die): so the mesh runs on a thread of its own, which touches
// nothing but listeners and descriptors. Everything else happens in `start` and `poll`.
//
// Members hear of a World at different times. Who comes early waits in the listener's backlog; who
// comes from another World is refused by the handshake, and tries again.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "elastic/io_thread.h"
#include "elastic/mesh.h"
#include "elastic/session.h"
#include "elastic/session_links.h"

namespace hora {

/// What all sessions of a worker have in common; the references outlive the renewal.
struct RenewalOptions {
  const Config& config;
  const Placement& placement;
  Arena& arena;
  WaitPoint& wait_point;
  LaneLayout layout;
  std::size_t area_offset = 0;  ///< Of the slots.
};

/// Owner: the progress token.
class SessionRenewal {
 public:
  SessionRenewal(const RenewalOptions& options, Listeners listeners);
  ~SessionRenewal();
  SessionRenewal(const SessionRenewal&) = delete;
  SessionRenewal& operator=(const SessionRenewal&) = delete;

  /// Begins; the session before is gone. An attempt for another World is given up, which may take
  /// the 50 ms in which a mesh looks up.
  void start(const World& world);
  /// The session, or null while the others are on their way. It wakes the wait point when there is
  /// news. Errors: those of build_session.
  Result<std::unique_ptr<Session>> poll();

 private:
  void give_up();

  const RenewalOptions options_;
  const Listeners listeners_;
  World world_;
  std::optional<Error> failed_;  ///< Before the thread began.
  std::unique_ptr<ShmTransport> memory_;
  std::optional<Result<MeshResult>> mesh_;  ///< The thread's until `met_`.
  std::atomic<bool> met_{false}, given_up_{false};
  IoThread thread_;
};

}  // namespace hora
