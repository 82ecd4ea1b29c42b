// Messages of a control link: what a worker and the rendezvous say to each other.
//
//   worker -> rendezvous   Join, Heartbeat, Report, Leave; Suspect, Frozen
//   rendezvous -> worker   Welcome (the World), Refuse, Heartbeat, Event, Goodbye; Freeze, Install
//
// On the wire: u32 length, u8 kind, fields. Little-endian; text is u16 length and bytes, cut at
// 4 KiB. Each struct names its fields once, in messages.cc, and reader and writer both walk that
// list, so they cannot disagree. The reader never trusts a length: it has a bound for every one and
// fails on what is left over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "elastic/control.h"
#include "elastic/world.h"
#include "elastic/world_change.h"
#include "runtime/base/result.h"

namespace hora {

/// "I am this rank of so many; tell me the World within wait_ms."
struct Join {
  Rank rank{};
  std::int32_t size = 0;
  std::uint32_t wait_ms = 0;
  Member member;
};
/// The World is complete. `world.self` is not sent: everybody gets the same bytes
/// and knows its rank.
struct Welcome {
  World world;
};
/// There will be no World for you.
struct Refuse {
  Error error;
};
struct Heartbeat {};
struct Event {
  ControlEvent event;
};
/// Why this worker is about to fail.
struct Report {
  std::string text;
};
/// My end is no death.
struct Leave {};
/// The rendezvous ends in order; nothing follows from it.
struct Goodbye {};

/// Stop finishing anything, and say how far you are: this World ends.
struct Freeze {
  Epoch epoch{};     ///< Of the World that ends.
  std::string text;  ///< Who is lost, and how.
};
/// How far this worker is.
struct Frozen {
  WorkerReport report;
};
/// The World that follows, and how its members finish what was in flight.
struct Install {
  NextWorld next;
};
/// This worker cannot reach a member that may be alive.
struct Suspect {
  Epoch epoch{};
  Rank about{};
  std::string text;
};

using Message = std::variant<Join, Welcome, Refuse, Heartbeat, Event, Report, Leave, Goodbye,
                             Freeze, Frozen, Install, Suspect>;

/// From a worker that has no place yet; and from a member, whose report names tensors.
inline constexpr std::size_t kMaxMessageToServer = 16 << 10;
inline constexpr std::size_t kMaxMessageOfMember = 16 << 20;
inline constexpr std::size_t kMaxMessageToWorker = 32 << 20;  // A World of 65,536 members.

/// The message with its length in front.
std::vector<std::byte> encode(const Message& message);
/// A message without its length. Error protocol.
Result<Message> decode(std::span<const std::byte> bytes);

/// Cuts a stream into messages. Holds at most one message and what was fed beyond it.
class MessageReader {
 public:
  explicit MessageReader(std::size_t max_message) : max_message_(max_message) {}

  /// Longer messages are welcome from now on.
  void raise_limit(std::size_t max_message) { max_message_ = max_message; }
  void feed(std::span<const std::byte> bytes);
  /// The next whole message, or nothing yet. Error protocol: the stream is lost.
  Result<std::optional<Message>> next();

 private:
  std::size_t max_message_;
  std::vector<std::byte> bytes_;
  std::size_t taken_ = 0;
};

}  // namespace hora
