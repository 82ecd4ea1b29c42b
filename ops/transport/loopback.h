// Loopback: links in memory, with a plan of faults. For tests. See loopback.cc.
//
// A test walks every message of a small run and closes, stalls, changes or repeats it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/wait_point.h"

namespace hora {

enum class FaultAction { close, stall, corrupt, duplicate };

/// What happens to the `message`-th message (counted from 0: data, count and control alike) from
/// one rank to another.
struct Fault {
  Rank from{}, to{};
  std::uint64_t message = 0;
  FaultAction action{};
};
using FaultPlan = std::vector<Fault>;

/// The medium between the ranks of one process; thread-safe; the links keep it alive.
class LoopbackHub {
 public:
  static std::shared_ptr<LoopbackHub> make(int size, FaultPlan plan);
  virtual ~LoopbackHub() = default;

  /// The transport and links of rank `self`; `links[peer]`, null at self.
  struct End {
    std::unique_ptr<Transport> transport;
    std::vector<std::unique_ptr<Link>> links;
  };
  virtual End open(Rank self, Arena& arena, std::size_t area_offset, const LaneLayout& layout,
                   Epoch epoch, WaitPoint& wait_point) = 0;
  /// Messages sent so far from one rank to another: so that a test can walk all of them.
  [[nodiscard]] virtual std::uint64_t sent(Rank from, Rank to) const = 0;
};

}  // namespace hora
