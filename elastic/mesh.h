// Mesh: one authenticated connection between every pair of members.
//
//   higher rank (initiator)                        lower rank (acceptor)
//   same host: unix connect   -- handshake -->
//                             -- memory offer -->  maps it
//        maps it              <- memory offer --   with the verdict "mapped" or "refused"
//                             -- final verdict ->
//   else, or if that failed: TCP connect to each address, -- handshake --> done
//
// The initiator has the last word about memory, and says it on the connection itself: so both sides
// use the same transport, whatever fails. An acceptor takes whichever connection comes, and never
// two of one peer: it checks before it says its part of the proof.
//
// All pairs proceed at once in one poll loop, so no order of ranks can block another, and strangers
// (at most 128 at a time, 5 s each, the oldest goes first) cost the members nothing. An attempt is
// given up only when it fails, never because it is slow: the acceptor might have accepted it
// already. Slow addresses are overtaken instead: every 250 ms the next address is tried as well.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "elastic/session.h"
#include "ops/transport/shm.h"

namespace hora {

/// How a peer was reached.
struct Reached {
  Fd socket;                         ///< Data socket, or, with memory, the witness.
  std::unique_ptr<PeerArena> arena;  ///< Null: TCP.
  ShmOffer offer;
  Fd eventfd;
};

struct MeshResult {
  std::vector<Reached> peers;   ///< By rank; nothing at self.
  std::uint64_t strangers = 0;  ///< Connections that were dropped.
};

/// What this worker offers to peers on its host; `memory` false: nothing.
struct OwnMemory {
  bool shared = false;
  int memfd = -1;
  int eventfd = -1;
  ShmOffer offer;
};

/// Connects `world.self` with all other members.
Result<MeshResult> connect_mesh(const World& world, const Listeners& listeners,
                                const OwnMemory& memory, const SessionOptions& options);

}  // namespace hora
