// Inbox: what has come over one link that carries frames. See inbox.cc.
//
// It knows no socket: the transport hands it lines and asks where payloads go, so that tcp,
// loopback and a fuzzer drive the same checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/transport/fifo.h"
#include "ops/transport/frame.h"
#include "ops/transport/lane_layout.h"
#include "runtime/base/arena.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

/// Sans-IO receiving half of a link. Owner: the progress token.
class Inbox {
 public:
  /// Payloads land in `arena` at `area_offset` + slot + landing offset.
  Inbox(Arena& arena, std::size_t area_offset, const LaneLayout& layout, Epoch epoch);

  /// What is to become of a frame.
  enum class Fate {
    keep,  ///< The payload goes to `target`; then `complete`.
    drop,  ///< The payload is read and forgotten: a duplicate, or a position that is done here.
    bye,   ///< The peer has left.
  };
  /// Checks a line field by field and takes its count. Error protocol says which field is wrong,
  /// as the end of a sentence that begins with who sent it: "a frame for lane 9 of 2".
  Result<Fate> accept(const Line& line);

  /// Where the payload of an accepted frame goes, or null if its position has been done since.
  [[nodiscard]] std::byte* target(const Line& line);

  /// The payload of an accepted frame lies at its target.
  void complete(const Line& line);

  /// See Link.
  [[nodiscard]] std::optional<std::span<const std::byte>> poll(const MessageKey& key);
  bool take_control(std::vector<std::byte>& message);
  /// This rank is done with all positions of the lane below `count`.
  void set_count(std::uint16_t lane, std::uint64_t count);
  [[nodiscard]] std::uint64_t heard(std::uint16_t lane) const { return heard_[lane]; }

  /// Frames dropped so far.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }
  /// Part of a message is here and the rest is not.
  [[nodiscard]] bool mid_message() const { return unfinished_ > 0; }

 private:
  struct Arrival {
    std::uint64_t stamp = 0;  ///< Position + 1; 0: never used.
    std::uint64_t landing = 0;
    std::uint32_t total = 0;
    std::uint32_t have = 0;
  };

  Arrival& arrival(std::uint16_t lane, std::uint64_t position, std::uint16_t tag);
  Result<Fate> accept_data(const Line& line);
  Result<Fate> accept_control(const Line& line);
  Fate drop();

  Arena& arena_;
  std::size_t area_offset_;
  LaneLayout layout_;
  Epoch epoch_;
  std::vector<Arrival> arrivals_;  ///< [lane][slot of the window][tag]
  std::vector<std::uint64_t> done_;
  std::vector<std::uint64_t> heard_;
  std::vector<std::byte> control_;  ///< The control message that is coming in.
  std::size_t control_have_ = 0;
  std::uint64_t control_next_ = 0;  ///< Its number.
  Fifo<std::vector<std::byte>> controls_;
  std::size_t control_waiting_bytes_ = 0;
  std::size_t unfinished_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace hora
