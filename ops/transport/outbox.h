// Outbox: what is to go over one socket, and in which order. See outbox.cc.
//
// It knows no socket: it plans pieces to write, and is told how many bytes of them were taken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "ops/transport/fifo.h"
#include "ops/transport/frame.h"
#include "ops/transport/lane_layout.h"
#include "runtime/base/ids.h"

namespace hora {

/// Sans-IO sending half of a link. Owner: the progress token.
class Outbox {
 public:
  Outbox(const LaneLayout& layout, Epoch epoch);
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  /// See Link. The payload must stay where it is until it is sent.
  void send(const MessageKey& key, std::span<const std::byte> payload, std::uint64_t landing);
  /// Copies. False: more waits than may wait, and the message was not taken.
  [[nodiscard]] bool send_control(std::span<const std::byte> message);
  void set_count(std::uint16_t lane, std::uint64_t count) { counts_[lane] = count; }
  void announce(std::uint16_t lane);
  [[nodiscard]] std::uint64_t announced(std::uint16_t lane) const { return told_[lane]; }

  /// What to write now, up to about a megabyte; empty: nothing waits. Valid until the
  /// next call of any kind.
  std::span<iovec> plan();
  /// That many bytes of the last plan were taken; plan again.
  void sent(std::size_t bytes);

  /// Messages that wait or are half sent.
  [[nodiscard]] std::size_t waiting() const {
    return control_.size() + small_.size() + bulk_.size();
  }
  /// A frame is half sent: nothing but its rest may be written.
  [[nodiscard]] bool mid_frame() const { return partial_bytes_ > 0; }
  /// The line that ends the link.
  [[nodiscard]] Line bye() const { return line_of(LineKind::bye, 0); }

 private:
  struct Message {
    MessageKey key;
    std::uint64_t landing = 0;
    std::span<const std::byte> payload;
    std::size_t offset = 0;         ///< Bytes of it that are sent.
    std::vector<std::byte> copied;  ///< Control: what `payload` points to.
  };
  using Queue = Fifo<Message>;

  /// A frame of the plan. `queue` null: a count.
  struct Planned {
    Queue* queue = nullptr;
    std::span<const std::byte> payload;
  };

  /// How far a plan has gone into a queue.
  struct Cursor {
    std::size_t index = 0;
    std::size_t offset = 0;
  };
  struct Cursors {
    Cursor control, small, bulk;
  };

  static constexpr std::size_t kMaxFrames = 64;
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

  [[nodiscard]] Line line_of(LineKind kind, std::uint16_t lane) const;
  [[nodiscard]] bool full() const {
    return planned_count_ == kMaxFrames || planned_bytes_ >= kMaxBytes;
  }
  /// Where a plan starts in a queue: behind the half-sent frame.
  [[nodiscard]] Cursor start_of(Queue& queue);
  void plan_frame(const Line& line, Queue* queue, std::span<const std::byte> payload);
  /// Plans the next part of the queue. False: it has no more.
  bool plan_part(Queue& queue, Cursor& cursor, LineKind kind);
  void plan_counts(const Cursors& cursors);
  std::span<iovec> lay_out();
  void commit(const Planned& frame, const Line& line);

  LaneLayout layout_;
  Epoch epoch_;
  Queue control_;
  Queue small_;
  Queue bulk_;
  std::size_t control_bytes_ = 0;
  std::uint64_t controls_sent_ = 0;
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> told_;          ///< By a line that was wholly sent.
  std::vector<std::uint64_t> planned_told_;  ///< ... or that is in the plan.
  std::vector<bool> announce_;

  std::array<Line, kMaxFrames> lines_;
  std::array<Planned, kMaxFrames> planned_;
  std::array<iovec, 2 * kMaxFrames> iov_;
  std::size_t planned_count_ = 0;
  std::size_t planned_bytes_ = 0;
  std::size_t partial_bytes_ = 0;  ///< Of frame 0 of the plan, sent already.
};

}  // namespace hora
