// TCP links: see tcp.cc.
#pragma once

#include <memory>
#include <string>

#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/fd.h"

namespace hora {

/// All TCP links of a session: one epoll descriptor, owned by the progress token.
class TcpTransport : public Transport {
 public:
  /// Payloads land in `arena` at `area_offset` + slot + landing offset.
  static Result<std::unique_ptr<TcpTransport>> make(Arena& arena, std::size_t area_offset,
                                                    const LaneLayout& layout, Epoch epoch,
                                                    Rank self);
  /// Becomes readable when progress() has something to do: for WaitPoint::watch.
  [[nodiscard]] virtual int poll_fd() const = 0;
  /// Takes over a connected, authenticated socket. `peer_text` names the peer in errors,
  /// `congestion` is the congestion control to ask for, or empty.
  virtual std::unique_ptr<Link> connect(Rank peer, Fd socket, std::string peer_text,
                                        const std::string& congestion) = 0;
};

}  // namespace hora
