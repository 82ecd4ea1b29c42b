// Handshake: two processes prove to each other that they know the job's secret. See handshake.cc.
//
// Sans-IO: bytes in, bytes out, so that sockets, a fuzzer and tests drive the same code. The first
// message is short and of fixed size; a stranger costs at most that much memory and learns nothing:
// the acceptor says nothing until the initiator's first message was well-formed, and nothing it
// says depends on the secret until the initiator has proved it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

/// Who speaks, and about what. Both sides must agree on job, epoch, purpose and version.
struct Identity {
  std::array<std::byte, 16> job{};
  Epoch epoch{};
  Rank rank{};  ///< -1: no rank yet, or no worker (launcher).
  WorkerId worker{};
  std::uint16_t purpose = 0;  ///< 1 data over tcp, 2 shared memory, 3 control.
};

enum class HandshakeRole { initiator, acceptor };

/// One handshake. Owner: whoever drives the socket.
class Handshake {
 public:
  /// `secret` of any length. `expected`: the rank that an initiator wants to reach, or -1; an
  /// acceptor takes anybody who has the secret, and its owner looks at `peer().rank`.
  Handshake(HandshakeRole role, std::string secret, Identity self, Rank expected);
  ~Handshake();
  Handshake(Handshake&&) noexcept;

  /// Bytes to send now; call until empty after construction and after each feed.
  std::vector<std::byte> take_output();
  /// How many bytes it wants next; 0 when done. Never over 256.
  [[nodiscard]] std::size_t wants() const;
  /// Exactly `wants()` bytes from the other side. After an Error (of kind protocol) send what
  /// `take_output` still has - a verdict for a peer that is merely in the wrong place - and close.
  Result<void> feed(std::span<const std::byte> bytes);
  [[nodiscard]] bool done() const;
  /// Whom we talk to; valid when done.
  [[nodiscard]] const Identity& peer() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs a handshake over a non-blocking or blocking stream socket until done or until `deadline_ms`
/// from now. Takes not one byte of what the peer sends after it. Does not close the socket.
Result<Identity> run_handshake(int socket, HandshakeRole role, const std::string& secret,
                               const Identity& self, Rank expected, long long deadline_ms);

}  // namespace hora
