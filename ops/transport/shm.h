// Shared memory links: see shm.cc.
#pragma once

#include <memory>

#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/fd.h"
#include "runtime/base/wait_point.h"

namespace hora {

/// What a worker tells a peer on its host so that the peer can read its arena. Sent
/// with the descriptors.
struct ShmOffer {
  std::uint64_t lines_offset = 0;    ///< Of the lines in the offering arena.
  std::uint64_t control_offset = 0;  ///< Of the control rings.
  std::uint64_t counts_offset = 0;   ///< Of the counts.
};

/// Every offset of a peer's offer lies within its arena: it cannot make us read elsewhere.
Result<void> check_offer(const ShmOffer& offer, std::size_t arena_bytes, const LaneLayout& layout,
                         int size);

/// The shared-memory side of a session: own areas in the own arena, one link per peer on this host.
class ShmTransport : public Transport {
 public:
  /// Reserves lines, counts and control rings for `size` members in `arena`.
  static Result<std::unique_ptr<ShmTransport>> make(Arena& arena, const LaneLayout& layout,
                                                    Epoch epoch, Rank self, int size);
  [[nodiscard]] virtual const ShmOffer& offer() const = 0;
  /// The link to a peer, from its mapped arena, its offer and its eventfd.
  virtual std::unique_ptr<Link> connect(Rank peer, std::unique_ptr<PeerArena> arena,
                                        const ShmOffer& offer, Fd eventfd) = 0;

  /// For tests of a death in the middle of publishing: the `sends`-th send from now (0: the next)
  /// fills its line and then kills this process (SIGKILL) instead of storing the stamp.
  virtual void set_fault_at_publish(std::uint64_t sends) = 0;
};

}  // namespace hora
