// From connections to links: what the first session of a job and the later ones have in common.
//
// Internal to elastic/session*.cc. Both functions touch the arena and the wait point, so they
// belong to the holder of the progress token; what blocks, the mesh, lies between them and touches
// neither.
#pragma once

#include <memory>

#include "elastic/mesh.h"
#include "elastic/session.h"
#include "ops/transport/shm.h"

namespace hora {

/// What a member lays out for the peers on its host; nothing if there is nobody to share with.
struct MemorySide {
  std::unique_ptr<ShmTransport> transport;
  OwnMemory own;
};

/// Reserves the areas in the arena. Error resource: there is no room.
Result<MemorySide> offer_memory(const World& world, Arena& arena, WaitPoint& wait_point,
                                const LaneLayout& layout, const Config& config);

/// Makes the transports that are needed and a link from everybody who was reached.
Result<void> link_up(Session& session, std::unique_ptr<ShmTransport> memory, MeshResult mesh,
                     Arena& arena, WaitPoint& wait_point, const Config& config);

}  // namespace hora
