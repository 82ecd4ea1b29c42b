// TCP: links over sockets, for peers on other hosts. See tcp.cc.
//
// Plain epoll and non-blocking sockets, driven by whoever holds the progress token: no thread, no
// lock, no copy of a payload on either side beyond the kernel's own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/fd.h"

namespace hora {

/// What a transport has moved since it was made, lines included.
struct TcpCounters {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t dropped_frames = 0;  ///< Duplicates and late ones.
};

/// All TCP links of a session: one epoll descriptor, owned by the progress token.
class TcpTransport : public Transport {
 public:
  /// Payloads land in `arena` at `area_offset` + slot + landing offset.
  static Result<std::unique_ptr<TcpTransport>> make(Arena& arena, std::size_t area_offset,
                                                    const LaneLayout& layout, Epoch epoch,
                                                    Rank self);

  /// Becomes readable when something has come since progress() last returned false: for
  /// WaitPoint::watch. One progress() moves a bounded amount: call it until it returns false.
  [[nodiscard]] virtual int poll_fd() const = 0;

  /// Takes over a connected, authenticated socket. `peer_text` says in errors where the peer is,
  /// like "tcp 10.0.0.2:4242"; `congestion` is the congestion control to ask for, or empty; a
  /// kernel that refuses it is no error. Links must be gone before the transport.
  virtual std::unique_ptr<Link> connect(Rank peer, Fd socket, std::string peer_text,
                                        const std::string& congestion) = 0;

  [[nodiscard]] virtual TcpCounters counters() const = 0;

  /// For tests of what a death in the middle of a frame does: after exactly `bytes` more bytes have
  /// been sent, this process kills itself (SIGKILL).
  virtual void set_fault_after_bytes(std::uint64_t bytes) = 0;
};

}  // namespace hora
