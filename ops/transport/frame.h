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
  std::uint64_t landing =
      0;  ///< Socket: byte offset of the payload in the receiver's slot payload area.
          ///< Shared memory: byte offset of the payload in the sender's arena.
  std::uint64_t count = 0;
  std::uint64_t floor = 0;   ///< Lowest count over all ranks that the sender knows.
  std::uint32_t length = 0;  ///< Payload bytes.
  std::uint32_t crc32c = 0;  ///< Of the payload; 0 = not computed.
  std::uint64_t stamp = 0;   ///< Shared memory: position + 1, stored last with release. Socket: 0.
};
static_assert(sizeof(Line) == 64);

inline constexpr std::uint32_t kLineMagic = 0x61726f48;  // "Hora"

/// Where a message belongs, within one epoch and one pair of ranks.
struct MessageKey {
  std::uint16_t lane = 0;
  std::uint16_t tag = 0;
  std::uint64_t position = 0;
};

}  // namespace hora
