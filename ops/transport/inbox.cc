// Inbox: what has come over one link that carries frames.
//
// The transport reads a line and asks `accept`; then it reads the payload straight to `target`, and
// says `complete`. No byte of a payload is written anywhere before every field of its line has been
// checked, and never outside of the slot area, whatever a peer sends:
//
//   own count          own count + W
//   |    slots 0 .. W-1     |
//   +-----------------------+------------>  position
//   dropped  |   accepted   |  refused: the slot still holds position - W
//
// A sender starts position p only when it knows that everybody, we included, is done with p - W, so
// a position beyond our window is a broken peer and not a fast one. A position below our count is
// a duplicate: dropped and counted. The same goes for a part that is here already.
//
// Arrivals are a table of stamps [lane][slot][tag], made once; a stamp is position + 1, so nothing
// is ever cleared. Control messages are bounded three times: each one's size, and count and bytes
// of those that wait to be taken.
#include "ops/transport/inbox.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "ops/transport/transport.h"
#include "runtime/base/check.h"

namespace hora {

namespace {

constexpr std::size_t kMaxControlsWaiting = 1 << 16;
constexpr std::size_t kMaxControlBytesWaiting = 4 * kMaxControlMessage;

tl::unexpected<Error> malformed(std::string what) {
  return fail(ErrorKind::protocol, std::move(what));
}

}  // namespace

Inbox::Inbox(Arena& arena, std::size_t area_offset, const LaneLayout& layout, Epoch epoch)
    : arena_(arena),
      area_offset_(area_offset),
      layout_(layout),
      epoch_(epoch),
      arrivals_(std::size_t{layout.lanes} * layout.window * layout.tags),
      done_(layout.lanes),
      heard_(layout.lanes) {}

Inbox::Arrival& Inbox::arrival(std::uint16_t lane, std::uint64_t position, std::uint16_t tag) {
  const std::uint64_t slot = std::uint64_t{lane} * layout_.window + position % layout_.window;
  return arrivals_[slot * layout_.tags + tag];
}

Inbox::Fate Inbox::drop() {
  ++dropped_;
  return Fate::drop;
}

Result<Inbox::Fate> Inbox::accept(const Line& line) {
  if (line.magic != kLineMagic) return malformed("bytes that are not a frame");
  if (line.epoch != epoch_.value) {
    return malformed(fmt::format("a frame of epoch {} in epoch {}", line.epoch, epoch_.value));
  }
  if (line.lane >= layout_.lanes) {
    return malformed(fmt::format("a frame for lane {} of {}", line.lane, layout_.lanes));
  }
  if (line.flags != 0 || line.floor != 0) return malformed("a frame with unknown flags");

  const auto kind = static_cast<LineKind>(line.kind);
  Result<Fate> fate = Fate::keep;
  if (kind == LineKind::data) {
    fate = accept_data(line);
  } else if (kind == LineKind::control) {
    fate = accept_control(line);
  } else if (kind == LineKind::count || kind == LineKind::bye) {
    if (line.length != 0 || line.stamp != 0) return malformed("a count with a payload");
    if (kind == LineKind::bye) fate = Fate::bye;
  } else {
    return malformed(fmt::format("a frame of unknown kind {}", line.kind));
  }
  // Duplicates may come late: the count never goes back.
  if (fate) heard_[line.lane] = std::max(heard_[line.lane], line.count);
  return fate;
}

Result<Inbox::Fate> Inbox::accept_data(const Line& line) {
  const Part part = Part::of(line);
  if (line.tag >= layout_.tags) {
    return malformed(fmt::format("a message with tag {} of {}", line.tag, layout_.tags));
  }
  if (line.length > part.total || part.offset > part.total - line.length ||
      (line.length == 0 && part.total != 0)) {
    return malformed(fmt::format("{} bytes at {} of a message of {} bytes", line.length,
                                 part.offset, part.total));
  }
  const std::uint64_t landing = line.landing - part.offset;
  if (line.landing < part.offset || part.total > layout_.slot_bytes ||
      landing > layout_.slot_bytes - part.total) {
    return malformed(fmt::format("a message of {} bytes to land at {} in a slot of {} bytes",
                                 part.total, landing, layout_.slot_bytes));
  }
  const std::uint64_t done = done_[line.lane];
  if (line.position < done) return drop();
  if (line.position - done >= layout_.window) {
    return malformed(fmt::format("position {} of lane {}, beyond our window of {} from {}",
                                 line.position, line.lane, layout_.window, done));
  }

  Arrival& message = arrival(line.lane, line.position, line.tag);
  if (message.stamp != line.position + 1) {
    if (part.offset != 0) return malformed("a message without its beginning");
    // What was left of an older position in this slot will not be finished any more.
    if (message.have < message.total) --unfinished_;
    message = {line.position + 1, landing, part.total, 0};
    if (message.total != 0) ++unfinished_;
    return Fate::keep;
  }
  if (message.landing != landing || message.total != part.total || part.offset > message.have) {
    return malformed("two different messages under one tag");
  }
  if (part.offset == message.have && message.have < message.total) return Fate::keep;
  if (part.offset + line.length > message.have) return malformed("overlapping parts of a message");
  return drop();
}

Result<Inbox::Fate> Inbox::accept_control(const Line& line) {
  const Part part = Part::of(line);
  if (line.length > part.total || part.offset > part.total - line.length ||
      (line.length == 0 && part.total != 0)) {
    return malformed("a part outside of its control message");
  }
  if (part.total > kMaxControlMessage) {
    return malformed(
        fmt::format("a control message of {} bytes, more than {}", part.total, kMaxControlMessage));
  }
  if (line.position < control_next_) return drop();
  if (line.position > control_next_ || part.offset > control_have_ ||
      (control_have_ != 0 && part.total != control_.size())) {
    return malformed("a control message out of order");
  }
  if (part.offset < control_have_) return drop();
  if (controls_.size() >= kMaxControlsWaiting ||
      control_waiting_bytes_ + part.total > kMaxControlBytesWaiting) {
    return malformed(fmt::format("more control messages than may wait ({} with {} bytes)",
                                 controls_.size(), control_waiting_bytes_));
  }
  if (part.offset == 0) {
    control_.resize(part.total);
    if (part.total != 0) ++unfinished_;
  }
  return Fate::keep;
}

std::byte* Inbox::target(const Line& line) {
  if (static_cast<LineKind>(line.kind) == LineKind::control) {
    return control_.data() + Part::of(line).offset;
  }
  if (line.position < done_[line.lane]) return nullptr;
  return arena_.at(area_offset_ + layout_.slot_offset(line.lane, line.position) + line.landing);
}

void Inbox::complete(const Line& line) {
  const auto kind = static_cast<LineKind>(line.kind);
  if (kind == LineKind::data) {
    Arrival& message = arrival(line.lane, line.position, line.tag);
    message.have += line.length;
    if (message.have == message.total && message.total != 0) --unfinished_;
  } else if (kind == LineKind::control) {
    control_have_ += line.length;
    if (control_have_ < control_.size()) return;
    if (!control_.empty()) --unfinished_;
    control_waiting_bytes_ += control_.size();
    controls_.push(std::exchange(control_, {}));
    control_have_ = 0;
    ++control_next_;
  }
}

std::optional<std::span<const std::byte>> Inbox::poll(const MessageKey& key) {
  HORA_CHECK(key.lane < layout_.lanes && key.tag < layout_.tags, "a message of the layout");
  const Arrival& message = arrival(key.lane, key.position, key.tag);
  if (message.stamp != key.position + 1 || message.have < message.total) return std::nullopt;
  const std::size_t slot = area_offset_ + layout_.slot_offset(key.lane, key.position);
  return std::span(arena_.at(slot + message.landing), message.total);
}

bool Inbox::take_control(std::vector<std::byte>& message) {
  if (controls_.empty()) return false;
  message = controls_.pop();
  control_waiting_bytes_ -= message.size();
  return true;
}

void Inbox::set_count(std::uint16_t lane, std::uint64_t count) {
  HORA_CHECK(count >= done_[lane], "counts only grow");
  done_[lane] = count;
}

}  // namespace hora
