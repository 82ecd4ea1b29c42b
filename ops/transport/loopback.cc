// Loopback: links in memory between ranks of one process, with a plan of faults.
//
// For tests, so that they walk every message of a small run and break it. A hub holds one channel
// per direction:
//
//   send:      copy line and payload into the channel (sender's thread, under the hub's mutex)
//   progress:  take all of the channel, check each line and its crc32c, copy the payload into the
//              receiver's own slot (receiver's thread; only it writes its arena)
//   flush:     wake the receivers that were sent something
//
// A channel counts its messages and does what the plan says of the n-th:
//
//   close      it and all later ones are lost, and both ends fail when they have read what
//              came before
//   stall      it and all later ones are lost, and nobody is told
//   corrupt    one bit is turned; the receiver's crc32c sees it and fails the link
//   duplicate  it is delivered twice
//
// Unlike a socket, a message is one frame however long it is, and a sender is never held back.
#include "ops/transport/loopback.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "ops/transport/inbox.h"
#include "runtime/base/check.h"

namespace hora {

namespace {

constexpr std::size_t kMaxFramesWaiting = 1 << 20;

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

/// CRC-32C (Castagnoli), reflected, a byte at a time.
class Crc32c {
 public:
  void add(std::span<const std::byte> bytes) {
    static constexpr std::array<std::uint32_t, 256> kTable = make_crc_table();
    for (const std::byte b : bytes)
      state_ = (state_ >> 8) ^ kTable[(state_ ^ static_cast<std::uint32_t>(b)) & 0xff];
  }
  [[nodiscard]] std::uint32_t value() const { return ~state_; }

 private:
  std::uint32_t state_ = ~0u;
};

struct Frame {
  Line line;
  std::vector<std::byte> payload;

  [[nodiscard]] std::uint32_t crc() const {
    Line bare = line;
    bare.crc32c = 0;
    Crc32c crc;
    crc.add(std::as_bytes(std::span(&bare, 1)));
    crc.add(payload);
    return crc.value();
  }
};

/// One direction between two ranks. Guarded by the hub's mutex.
struct Channel {
  Fifo<Frame> frames;
  std::uint64_t sent = 0;
  bool closed = false;   ///< The receiver fails when it has read `frames`.
  bool stalled = false;  ///< Nothing arrives any more.
};

class Hub final : public LoopbackHub, public std::enable_shared_from_this<Hub> {
 public:
  Hub(int size, FaultPlan plan)
      : size_(static_cast<std::size_t>(size)),
        plan_(std::move(plan)),
        channels_(size_ * size_),
        wait_points_(size_) {}

  End open(Rank self, Arena& arena, std::size_t area_offset, const LaneLayout& layout, Epoch epoch,
           WaitPoint& wait_point) override;

  [[nodiscard]] std::uint64_t sent(Rank from, Rank to) const override {
    const std::scoped_lock lock(mutex_);
    return channels_[index(from, to)].sent;
  }

  /// Puts a frame into the channel, or does what the plan says of it. A bye is no
  /// message of the plan.
  void send(Rank from, Rank to, Frame frame) {
    const std::scoped_lock lock(mutex_);
    Channel& channel = channels_[index(from, to)];
    const bool counted = static_cast<LineKind>(frame.line.kind) != LineKind::bye;
    const Fault* fault = counted ? planned(from, to, channel.sent++) : nullptr;
    if (fault != nullptr) {
      if (fault->action == FaultAction::stall) channel.stalled = true;
      if (fault->action == FaultAction::close) close_locked(from, to);
      if (fault->action == FaultAction::corrupt) corrupt(frame);
    }
    if (channel.stalled || channel.closed) return;
    if (channel.frames.size() >= kMaxFramesWaiting) return close_locked(from, to);
    if (fault != nullptr && fault->action == FaultAction::duplicate) channel.frames.push(frame);
    channel.frames.push(std::move(frame));
  }

  /// The next frame for `to`. Nothing: none now, or - `closed` - none any more.
  std::optional<Frame> take(Rank from, Rank to, bool& closed) {
    const std::scoped_lock lock(mutex_);
    Channel& channel = channels_[index(from, to)];
    closed = channel.closed;
    if (channel.frames.empty()) return std::nullopt;
    return channel.frames.pop();
  }

  /// Both ends fail when they have read what is under way.
  void close(Rank one, Rank other) {
    const std::scoped_lock lock(mutex_);
    close_locked(one, other);
  }

  void wake(Rank rank) {
    const std::scoped_lock lock(mutex_);
    if (wait_points_[index_of(rank)] != nullptr) wait_points_[index_of(rank)]->wake();
  }

  void leave(Rank self) {
    const std::scoped_lock lock(mutex_);
    wait_points_[index_of(self)] = nullptr;
  }

 private:
  [[nodiscard]] std::size_t index(Rank from, Rank to) const {
    return index_of(from) * size_ + index_of(to);
  }

  [[nodiscard]] const Fault* planned(Rank from, Rank to, std::uint64_t message) const {
    const auto is_it = [&](const Fault& fault) {
      return fault.from == from && fault.to == to && fault.message == message;
    };
    const auto found = std::ranges::find_if(plan_, is_it);
    return found == plan_.end() ? nullptr : &*found;
  }

  void close_locked(Rank from, Rank to) {
    channels_[index(from, to)].closed = true;
    channels_[index(to, from)].closed = true;
    for (const Rank end : {from, to}) {
      if (wait_points_[index_of(end)] != nullptr) wait_points_[index_of(end)]->wake();
    }
  }

  static void corrupt(Frame& frame) {
    if (frame.payload.empty()) {
      frame.line.tag ^= 1;
    } else {
      frame.payload[frame.payload.size() / 2] ^= std::byte{0x10};
    }
  }

  const std::size_t size_;
  const FaultPlan plan_;
  mutable std::mutex mutex_;
  std::vector<Channel> channels_;
  std::vector<WaitPoint*> wait_points_;
};

class LoopbackLink;
/// The links that a transport moves; a link that is destroyed leaves by itself.
using LinkList = std::shared_ptr<std::vector<LoopbackLink*>>;

class LoopbackLink final : public Link {
 public:
  LoopbackLink(std::shared_ptr<Hub> hub, LinkList siblings, Rank self, Rank peer, Inbox inbox,
               Epoch epoch, std::size_t lanes)
      : hub_(std::move(hub)),
        siblings_(std::move(siblings)),
        self_(self),
        peer_(peer),
        epoch_(epoch),
        inbox_(std::move(inbox)),
        counts_(lanes),
        told_(lanes) {
    siblings_->push_back(this);
  }
  ~LoopbackLink() override {
    std::erase(*siblings_, this);
    put(line_of(LineKind::bye, 0), {});
    hub_->wake(peer_);
  }

  [[nodiscard]] Rank peer() const override { return peer_; }
  [[nodiscard]] bool shares_memory() const override { return false; }

  void send(const MessageKey& key, std::span<const std::byte> payload,
            std::uint64_t landing) override {
    Line line = line_of(LineKind::data, key.lane);
    line.tag = key.tag;
    line.position = key.position;
    line.landing = landing;
    put(line, payload);
  }

  std::optional<std::span<const std::byte>> poll(const MessageKey& key) override {
    return inbox_.poll(key);
  }

  void set_count(std::uint16_t lane, std::uint64_t count) override {
    counts_[lane] = count;
    inbox_.set_count(lane, count);
  }
  void announce(std::uint16_t lane) override {
    if (told_[lane] < counts_[lane]) put(line_of(LineKind::count, lane), {});
  }
  [[nodiscard]] std::uint64_t announced(std::uint16_t lane) const override { return told_[lane]; }
  [[nodiscard]] std::uint64_t heard(std::uint16_t lane) const override {
    return inbox_.heard(lane);
  }

  void send_control(std::span<const std::byte> message) override {
    HORA_CHECK(message.size() <= kMaxControlMessage, "control messages are bounded");
    Line line = line_of(LineKind::control, 0);
    line.position = controls_sent_++;
    put(line, message);
  }
  bool take_control(std::vector<std::byte>& message) override {
    return inbox_.take_control(message);
  }

  [[nodiscard]] const std::optional<Error>& failure() const override { return failure_; }

  bool progress() {
    bool moved = false;
    bool closed = false;
    while (!failure_) {
      std::optional<Frame> frame = hub_->take(peer_, self_, closed);
      if (!frame) break;
      receive(*frame);
      moved = true;
    }
    if (closed && !failure_) {
      break_link(ErrorKind::peer_lost, "closed its connection (loopback)");
      moved = true;
    }
    return moved;
  }

  void flush() {
    if (std::exchange(dirty_, false)) hub_->wake(peer_);
  }

 private:
  [[nodiscard]] Line line_of(LineKind kind, std::uint16_t lane) const {
    Line line;
    line.magic = kLineMagic;
    line.epoch = epoch_.value;
    line.kind = static_cast<std::uint16_t>(kind);
    line.lane = lane;
    line.count = counts_[lane];
    return line;
  }

  void put(Line line, std::span<const std::byte> payload) {
    if (failure_) return;
    line.length = static_cast<std::uint32_t>(payload.size());
    line.stamp = Part{0, line.length}.stamp();
    Frame frame{line, {payload.begin(), payload.end()}};
    frame.line.crc32c = frame.crc();
    told_[line.lane] = line.count;
    hub_->send(self_, peer_, std::move(frame));
    dirty_ = true;
  }

  void receive(const Frame& frame) {
    if (frame.crc() != frame.line.crc32c) {
      return break_link(ErrorKind::protocol, "sent a message that arrived changed (loopback)");
    }
    Result<Inbox::Fate> fate = inbox_.accept(frame.line);
    if (!fate) {
      return break_link(ErrorKind::protocol, "sent " + fate.error().message + " (loopback)");
    }
    if (*fate == Inbox::Fate::bye) return break_link(ErrorKind::shutdown, "has left (loopback)");
    if (*fate == Inbox::Fate::drop) return;
    if (!frame.payload.empty()) {
      std::memcpy(inbox_.target(frame.line), frame.payload.data(), frame.payload.size());
    }
    inbox_.complete(frame.line);
  }

  void break_link(ErrorKind kind, const std::string& what) {
    failure_ = Error{kind, fmt::format("rank {} {}", peer_.value, what), peer_};
    if (kind == ErrorKind::protocol) hub_->close(self_, peer_);
  }

  std::shared_ptr<Hub> hub_;
  LinkList siblings_;
  Rank self_;
  Rank peer_;
  Epoch epoch_;
  Inbox inbox_;
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> told_;
  std::uint64_t controls_sent_ = 0;
  bool dirty_ = false;
  std::optional<Error> failure_;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<Hub> hub, Rank self, LinkList links)
      : hub_(std::move(hub)), self_(self), links_(std::move(links)) {}
  ~LoopbackTransport() override { hub_->leave(self_); }

  bool progress() override {
    bool moved = false;
    for (LoopbackLink* link : *links_)
      moved = link->progress() || moved;
    return moved;
  }
  void flush() override {
    for (LoopbackLink* link : *links_)
      link->flush();
  }

  [[nodiscard]] bool drained() const override { return true; }

 private:
  std::shared_ptr<Hub> hub_;
  Rank self_;
  LinkList links_;
};

LoopbackHub::End Hub::open(Rank self, Arena& arena, std::size_t area_offset,
                           const LaneLayout& layout, Epoch epoch, WaitPoint& wait_point) {
  {
    const std::scoped_lock lock(mutex_);
    wait_points_[index_of(self)] = &wait_point;
  }
  End end;
  const auto list = std::make_shared<std::vector<LoopbackLink*>>();
  end.links.resize(size_);
  for (std::size_t i = 0; i < size_; ++i) {
    const Rank peer{static_cast<std::int32_t>(i)};
    if (peer == self) continue;
    Inbox inbox(arena, area_offset, layout, epoch);
    end.links[i] = std::make_unique<LoopbackLink>(shared_from_this(), list, self, peer,
                                                  std::move(inbox), epoch, layout.lanes);
  }
  end.transport = std::make_unique<LoopbackTransport>(shared_from_this(), self, list);
  return end;
}

}  // namespace

std::shared_ptr<LoopbackHub> LoopbackHub::make(int size, FaultPlan plan) {
  return std::make_shared<Hub>(size, std::move(plan));
}

}  // namespace hora
