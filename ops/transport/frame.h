// The line: 64 bytes in front of every payload, on a socket and in a slot alike.
//
// A message is addressed by (epoch, lane, position, tag): which World, which ordered stream, which
// segment of that stream (positions run on from one collective to the next and are never reused),
// and which message of this pair of ranks in the segment's template. `count` is the number of
// segments that the sender has finished in this lane, in order: it rides on everything, so that
// nobody runs more than a window ahead of anybody (docs/architecture.md, "the segment").
//
// Little-endian, fixed layout. On a socket a line is authenticated by the connection's handshake
// and checked field by field before any of it is used; a bad line closes the link.
//
// On a socket a long message goes in parts, so that an urgent one waits behind one part at most.
// Each part is a frame of its own: `length` and `landing` are the part's, and `stamp` says which
// part of how much it is (`Part`). The parts of a message come in order, with others in between.
// Control messages are numbered in `position`, from 0, so that one delivered twice is known.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hora {

enum class LineKind : std::uint16_t {
  data = 1,     ///< A message of a template; the payload follows (maybe empty).
  count = 2,    ///< Nothing but the count: from a rank that has nothing else to say.
  control = 3,  ///< Negotiation; the payload is a part of the control stream.
  bye = 4,      ///< Orderly end of this link; nothing follows.
};

struct Line {
  std::uint32_t magic = 0;
  std::uint32_t epoch = 0;
  std::uint16_t kind = 0;
  std::uint16_t lane = 0;
  std::uint16_t tag = 0;
  std::uint16_t flags = 0;
  std::uint64_t position = 0;
  /// Byte offset of the payload. Socket: in the receiver's slot payload area; shared memory: in the
  /// sender's arena.
  std::uint64_t landing = 0;
  std::uint64_t count = 0;
  std::uint64_t floor = 0;   ///< Lowest count over all ranks that the sender knows.
  std::uint32_t length = 0;  ///< Payload bytes.
  std::uint32_t crc32c = 0;  ///< Loopback: of line and payload. TCP: 0, the kernel has its own.
  /// Shared memory: position + 1, stored last with release. Socket: Part.
  std::uint64_t stamp = 0;
};
static_assert(sizeof(Line) == 64);

/// Which bytes of a message a frame carries: `offset` .. `offset + length` of `total`.
struct Part {
  std::uint32_t offset = 0;
  std::uint32_t total = 0;

  [[nodiscard]] std::uint64_t stamp() const { return std::uint64_t{offset} << 32 | total; }
  static Part of(const Line& line) {
    return {static_cast<std::uint32_t>(line.stamp >> 32), static_cast<std::uint32_t>(line.stamp)};
  }
};

/// The longest part a socket carries: what an urgent message waits for at most.
inline constexpr std::size_t kPartBytes = std::size_t{128} << 10;
/// Messages up to this size go before longer ones.
inline constexpr std::size_t kSmallBytes = std::size_t{16} << 10;

inline constexpr std::uint32_t kLineMagic = 0x61726f48;  // "Hora"

/// Where a message belongs, within one epoch and one pair of ranks.
struct MessageKey {
  std::uint16_t lane = 0;
  std::uint16_t tag = 0;
  std::uint64_t position = 0;
};

}  // namespace hora
