// Link: the way to one peer. All transports look like this to the executor.
//
// The model has three parts.
//  - Messages: (lane, position, tag) -> payload. Every payload lies in a slot of the sender's arena
//    and stays there untouched until all members are done with the position, so a send is never
//    buffered and a receive over shared memory is just a view. Messages may arrive before the
//    receiver has started the position (the sender may be up to a window ahead) and in any order.
//  - Counts: one number per lane and direction, monotonic, "I am done with all positions below".
//    They ride on every line; `announce` sends them alone.
//  - Control: an ordered stream of small messages (negotiation), never behind more than one data
//    frame of 128 KB.
//
// Nothing here blocks, waits or starts a thread. The holder of the progress token calls everything,
// and `Transport::progress` moves what can move. Failures are sticky: `failure()` says why the link
// is dead, and from then on sends vanish and nothing arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/transport/frame.h"
#include "ops/transport/lane_layout.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

/// The way to one peer. Owner: the progress token. Not copyable.
class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  virtual ~Link() = default;

  /// The member at the other end.
  [[nodiscard]] virtual Rank peer() const = 0;

  /// Both ends map each other's slots: receives are views and landing buffers are not used.
  [[nodiscard]] virtual bool shares_memory() const = 0;

  /// Starts a message. `payload` lies in the session's area of the own arena (or is empty) and is
  /// not changed until every member is done with the position. `landing` is the offset within the
  /// receiver's slot payload area.
  virtual void send(const MessageKey& key, std::span<const std::byte> payload,
                    std::uint64_t landing) = 0;

  /// The payload of a message once it is wholly here, else nothing. Valid until this rank announces
  /// a count beyond the position.
  [[nodiscard]] virtual std::optional<std::span<const std::byte>> poll(const MessageKey& key) = 0;

  /// From now on lines carry this count; over shared memory the peer sees it at once.
  virtual void set_count(std::uint16_t lane, std::uint64_t count) = 0;
  /// Sends the count by itself, if the peer has not been told it by a line yet.
  virtual void announce(std::uint16_t lane) = 0;
  /// How far the peer is known to know our count (shared memory: always all of it).
  [[nodiscard]] virtual std::uint64_t announced(std::uint16_t lane) const = 0;
  /// The newest count heard from the peer.
  [[nodiscard]] virtual std::uint64_t heard(std::uint16_t lane) const = 0;

  /// Appends one control message (at most 16 MiB) to the stream to the peer; copied, never blocks.
  virtual void send_control(std::span<const std::byte> message) = 0;
  /// Takes the next control message that is wholly here. False: none.
  virtual bool take_control(std::vector<std::byte>& message) = 0;

  /// Why the link is dead, or nothing. An orderly `bye` is an Error of kind shutdown.
  [[nodiscard]] virtual const std::optional<Error>& failure() const = 0;
};

inline constexpr std::size_t kMaxControlMessage = std::size_t{16} << 20;

/// What all links of one kind share: sockets to poll, peers to wake. Owner: the progress token.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// Moves what can be moved without waiting. True if anything moved.
  virtual bool progress() = 0;
  /// Wakes the peers that were sent something since the last flush and that sleep.
  virtual void flush() = 0;
  /// Everything sent has left this process (or lies where peers can read it).
  [[nodiscard]] virtual bool drained() const = 0;
};

}  // namespace hora
