// RunAnchor: what a run in flight keeps alive, and what others must know to run it.
//
// Internal to engine_repair.cc (from one World to the next) and engine_renewal.cc (going on there).
#pragma once

#include <cstdint>
#include <memory>

#include "elastic/world.h"
#include "ops/collective.h"
#include "runtime/kept_response.h"
#include "runtime/selection.h"

namespace hora {

struct RunAnchor {
  std::shared_ptr<Selection> selection;  ///< Has the run's template.
  KeptResponse kept;
};

inline const RunAnchor& anchor_of(const CollectiveRun& run) {
  return *static_cast<const RunAnchor*>(run.anchor.get());
}

/// The rank in `world` of whom was started with `first_rank`; beyond the last one: of nobody.
inline std::int32_t rank_of_first(const World& world, std::int32_t first_rank) {
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.members[static_cast<std::size_t>(rank)].first_rank == first_rank) return rank;
  }
  return world.size();
}

}  // namespace hora
