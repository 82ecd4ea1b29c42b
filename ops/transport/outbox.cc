// Outbox: what is to go over one socket, and in which order.
//
// Three queues: control messages, small data, bulk data. A plan is a list of frames in the order
//
//   rest of a half-sent frame | control and small, one of each in turn | counts | bulk
//
// laid out as iovecs [line][payload][line][payload]... for one large write: a socket carries
// megabyte writes half again as fast as 64 KB ones. Payloads are written from where they lie.
// Frames are at most kPartBytes long, and after a short write the plan is forgotten but for the
// frame that was cut; so whatever becomes urgent meanwhile waits for the rest of one part, and for
// what the kernel has taken already.
//
// A line gets its count when it is planned, the newest there is; a count by itself is planned only
// if it was asked for and no line before it has told it.
//
// Bounds: data by the window (each message of a window once), control by bytes, counts by lanes.
#include "ops/transport/outbox.h"

#include <algorithm>
#include <utility>

#include "ops/transport/transport.h"
#include "runtime/base/check.h"

namespace hora {

namespace {

constexpr std::size_t kMaxControlBytes = 4 * kMaxControlMessage;
constexpr std::size_t kMaxControls = 1 << 16;

}  // namespace

Outbox::Outbox(const LaneLayout& layout, Epoch epoch)
    : layout_(layout),
      epoch_(epoch),
      counts_(layout.lanes),
      told_(layout.lanes),
      planned_told_(layout.lanes),
      announce_(layout.lanes) {}

void Outbox::send(const MessageKey& key, std::span<const std::byte> payload,
                  std::uint64_t landing) {
  HORA_CHECK(key.lane < layout_.lanes && key.tag < layout_.tags, "a message of the layout");
  HORA_CHECK(payload.size() <= layout_.slot_bytes && landing <= layout_.slot_bytes - payload.size(),
             "a payload lands inside of a slot");
  Queue& queue = payload.size() <= kSmallBytes ? small_ : bulk_;
  HORA_CHECK(queue.size() < std::size_t{layout_.lanes} * layout_.window * layout_.tags,
             "every message of a window is sent once");
  queue.push({key, landing, payload, 0, {}});
}

bool Outbox::send_control(std::span<const std::byte> message) {
  HORA_CHECK(message.size() <= kMaxControlMessage, "control messages are bounded");
  if (control_bytes_ + message.size() > kMaxControlBytes || control_.size() >= kMaxControls) {
    return false;
  }
  control_bytes_ += message.size();
  std::vector<std::byte> copied(message.begin(), message.end());
  const std::span<const std::byte> payload = copied;  // Moving a vector does not move its bytes.
  control_.push({{0, 0, controls_sent_++}, 0, payload, 0, std::move(copied)});
  return true;
}

void Outbox::announce(std::uint16_t lane) {
  if (told_[lane] < counts_[lane]) announce_[lane] = true;
}

Line Outbox::line_of(LineKind kind, std::uint16_t lane) const {
  Line line;
  line.magic = kLineMagic;
  line.epoch = epoch_.value;
  line.kind = static_cast<std::uint16_t>(kind);
  line.lane = lane;
  line.count = counts_[lane];
  return line;
}

void Outbox::plan_frame(const Line& line, Queue* queue, std::span<const std::byte> payload) {
  lines_[planned_count_] = line;
  planned_[planned_count_] = {queue, payload};
  ++planned_count_;
  planned_bytes_ += sizeof(Line) + payload.size();
  planned_told_[line.lane] = line.count;
}

bool Outbox::plan_part(Queue& queue, Cursor& cursor, LineKind kind) {
  if (cursor.index == queue.size() || full()) return false;
  const Message& message = queue[cursor.index];
  const std::size_t total = message.payload.size();
  const auto part =
      message.payload.subspan(cursor.offset, std::min(kPartBytes, total - cursor.offset));

  Line line = line_of(kind, message.key.lane);
  line.tag = message.key.tag;
  line.position = message.key.position;
  line.landing = message.landing + (kind == LineKind::data ? cursor.offset : 0);
  line.length = static_cast<std::uint32_t>(part.size());
  line.stamp =
      Part{static_cast<std::uint32_t>(cursor.offset), static_cast<std::uint32_t>(total)}.stamp();
  plan_frame(line, &queue, part);

  cursor.offset += part.size();
  if (cursor.offset == total) cursor = {cursor.index + 1, 0};
  return true;
}

void Outbox::plan_counts(const Cursors& cursors) {
  for (std::uint16_t lane = 0; lane < layout_.lanes && !full(); ++lane) {
    if (!announce_[lane] || planned_told_[lane] >= counts_[lane]) continue;
    const std::size_t next = cursors.bulk.index;
    if (next < bulk_.size() && bulk_[next].key.lane == lane) continue;  // It tells it at once.
    plan_frame(line_of(LineKind::count, lane), nullptr, {});
  }
}

Outbox::Cursor Outbox::start_of(Queue& queue) {
  if (queue.empty()) return {};
  const Message& message = queue.front();
  if (!mid_frame() || planned_[0].queue != &queue) return {0, message.offset};
  const std::size_t offset = message.offset + planned_[0].payload.size();
  return offset == message.payload.size() ? Cursor{1, 0} : Cursor{0, offset};
}

std::span<iovec> Outbox::lay_out() {
  std::size_t used = 0;
  std::size_t skip = partial_bytes_;
  const auto add = [&](const void* data, std::size_t bytes) {
    const std::size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (skipped == bytes) return;
    // Nobody writes through an iovec that is sent.
    auto* start = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    iov_[used++] = {start + skipped, bytes - skipped};
  };
  for (std::size_t i = 0; i < planned_count_; ++i) {
    add(&lines_[i], sizeof(Line));
    add(planned_[i].payload.data(), planned_[i].payload.size());
  }
  return std::span(iov_).first(used);
}

std::span<iovec> Outbox::plan() {
  // The frame that was cut stays the first, with the line that is half on its way.
  planned_count_ = mid_frame() ? 1 : 0;
  planned_bytes_ = 0;
  planned_told_ = told_;
  if (mid_frame()) {
    planned_told_[lines_[0].lane] = lines_[0].count;
    planned_bytes_ = sizeof(Line) + planned_[0].payload.size();
  }
  Cursors cursors{start_of(control_), start_of(small_), start_of(bulk_)};
  for (bool more = true; more;) {
    more = plan_part(control_, cursors.control, LineKind::control);
    more = plan_part(small_, cursors.small, LineKind::data) || more;
  }
  plan_counts(cursors);
  while (plan_part(bulk_, cursors.bulk, LineKind::data)) {
  }
  return lay_out();
}

void Outbox::commit(const Planned& frame, const Line& line) {
  told_[line.lane] = line.count;
  if (line.count >= counts_[line.lane]) announce_[line.lane] = false;
  if (frame.queue == nullptr) return;
  Message& message = frame.queue->front();
  message.offset += frame.payload.size();
  if (message.offset < message.payload.size()) return;
  if (frame.queue == &control_) control_bytes_ -= message.payload.size();
  frame.queue->pop();
}

void Outbox::sent(std::size_t bytes) {
  std::size_t left = partial_bytes_ + bytes;
  std::size_t i = 0;
  for (; i < planned_count_; ++i) {
    const std::size_t frame_bytes = sizeof(Line) + planned_[i].payload.size();
    if (left < frame_bytes) break;
    left -= frame_bytes;
    commit(planned_[i], lines_[i]);
  }
  partial_bytes_ = left;
  if (left > 0) {
    lines_[0] = lines_[i];
    planned_[0] = planned_[i];
  }
}

}  // namespace hora
