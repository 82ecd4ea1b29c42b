// Shared memory: a send writes one line, a receive reads the sender's slot in place.
//
// Areas that a rank reserves in its own arena, beside the slots:
//
//   lines    [lane][slot of the window][receiver][tag]  64 B each: "this message is published"
//   counts   [lane]                                     how far this rank is done
//   control  [receiver]                                 a byte ring for that peer, and how much
//                                                       this rank has taken from the peer's ring
//
// A message is published by storing its line's fields and then, with release, the stamp (position
// plus 1). The receiver polls that one line of the sender's arena, so messages need no queue,
// arrive in any order and before the receiver has started the position. A line is written again
// only W positions later, when every member is done with the first use: there is nothing to lock
// and nothing to wait for.
//
// Control messages are framed as a u32 length and the bytes, and streamed through the ring; what
// does not fit waits in a private backlog.
//
// Cost of a send: one cache line written here, read there; payload bytes move only when the merge
// reads them. Owner: the progress token of each side.
#include "ops/transport/shm.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <new>
#include <utility>

#include <signal.h>
#include <unistd.h>

#include "runtime/base/check.h"
#include "runtime/base/fork.h"

namespace hora {

namespace {

constexpr std::uint64_t kRingBytes = 32 << 10;

struct alignas(64) CountCell {
  std::atomic<std::uint64_t> count;
};

struct alignas(64) ControlRing {
  std::atomic<std::uint64_t> written;            // Bytes ever written for this receiver.
  alignas(64) std::atomic<std::uint64_t> taken;  // Bytes ever taken from that peer's ring for us.
  alignas(64) std::byte bytes[kRingBytes];
};

std::size_t line_index(const LaneLayout& layout, int size, const MessageKey& key, Rank receiver) {
  const std::uint64_t slot = std::uint64_t{key.lane} * layout.window + key.position % layout.window;
  return (slot * static_cast<std::uint64_t>(size) + index_of(receiver)) * layout.tags + key.tag;
}

template <class T>
T* typed(std::byte* p) {
  return std::launder(reinterpret_cast<T*>(p));
}
template <class T>
const T* typed(const std::byte* p) {
  return std::launder(reinterpret_cast<const T*>(p));
}

/// Loads and stores of a line's stamp by its address, since Line is a plain struct.
std::uint64_t load_stamp(const Line& line) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(line.stamp))
      .load(std::memory_order_acquire);
}
void store_stamp(Line& line, std::uint64_t stamp) {
  std::atomic_ref<std::uint64_t>(line.stamp).store(stamp, std::memory_order_release);
}

/// Copies into or out of the ring at a running offset, in at most two pieces.
template <class Copy>
void wrapped(std::uint64_t offset, std::size_t length, const Copy& copy) {
  const std::size_t start = offset % kRingBytes;
  const std::size_t first = std::min<std::size_t>(length, kRingBytes - start);
  copy(start, std::size_t{0}, first);
  if (first < length) copy(std::size_t{0}, first, length - first);
}

struct OwnAreas {
  Arena* arena;
  LaneLayout layout;
  Epoch epoch;
  Rank self;
  int size;
  Line* lines;
  CountCell* counts;
  ControlRing* rings;
  std::optional<std::uint64_t> publishes_left{};  // Fault point.
};

class ShmLink final : public Link {
 public:
  ShmLink(OwnAreas& own, Rank peer, std::unique_ptr<PeerArena> arena, const ShmOffer& offer,
          Fd eventfd)
      : own_(own),
        peer_(peer),
        arena_(std::move(arena)),
        eventfd_(std::move(eventfd)),
        guard_(eventfd_.get()),
        lines_(typed<Line>(arena_->at(offer.lines_offset))),
        counts_(typed<CountCell>(arena_->at(offer.counts_offset))),
        rings_(typed<ControlRing>(arena_->at(offer.control_offset))) {}

  [[nodiscard]] Rank peer() const override { return peer_; }
  [[nodiscard]] bool shares_memory() const override { return true; }

  void send(const MessageKey& key, std::span<const std::byte> payload, std::uint64_t) override {
    Line& line = own_.lines[line_index(own_.layout, own_.size, key, peer_)];
    line.magic = kLineMagic;
    line.epoch = own_.epoch.value;
    line.kind = static_cast<std::uint16_t>(LineKind::data);
    line.lane = key.lane;
    line.tag = key.tag;
    line.position = key.position;
    line.landing = payload.empty() ? 0 : own_.arena->offset_of(payload.data());
    line.length = static_cast<std::uint32_t>(payload.size());
    if (own_.publishes_left && (*own_.publishes_left)-- == 0) ::kill(::getpid(), SIGKILL);
    store_stamp(line, key.position + 1);
    data_dirty_ = true;
  }

  std::optional<std::span<const std::byte>> poll(const MessageKey& key) override {
    const Line& line = lines_[line_index(own_.layout, own_.size, key, own_.self)];
    if (load_stamp(line) != key.position + 1 || line.epoch != own_.epoch.value) return std::nullopt;
    if (line.length > arena_->bytes() || line.landing > arena_->bytes() - line.length) {
      break_link("published a payload outside of its arena");
      return std::nullopt;
    }
    return std::span(arena_->at(line.landing), line.length);
  }

  void set_count(std::uint16_t lane, std::uint64_t count) override {
    own_.counts[lane].count.store(count, std::memory_order_release);
    count_dirty_ = true;
  }
  void announce(std::uint16_t) override {}
  [[nodiscard]] std::uint64_t announced(std::uint16_t lane) const override {
    return own_.counts[lane].count.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t heard(std::uint16_t lane) const override {
    return counts_[lane].count.load(std::memory_order_acquire);
  }

  void send_control(std::span<const std::byte> message) override {
    HORA_CHECK(message.size() <= kMaxControlMessage, "control messages are bounded");
    const auto length = static_cast<std::uint32_t>(message.size());
    const auto* head = reinterpret_cast<const std::byte*>(&length);
    backlog_.insert(backlog_.end(), head, head + sizeof length);
    backlog_.insert(backlog_.end(), message.begin(), message.end());
    push_backlog();
  }

  bool take_control(std::vector<std::byte>& message) override {
    if (taken_messages_.empty()) pull_ring();
    if (taken_messages_.empty()) return false;
    message = std::move(taken_messages_.front());
    taken_messages_.pop_front();
    return true;
  }

  [[nodiscard]] const std::optional<Error>& failure() const override { return failure_; }

  [[nodiscard]] bool drained() const { return backlog_.empty(); }

  /// Moves control bytes both ways. True if any moved.
  bool progress() {
    const bool pushed = push_backlog();
    return pull_ring() || pushed;
  }

  void flush() {
    if (!data_dirty_ && !control_dirty_ && !count_dirty_) return;
    DoorbellWords& bell = arena_->doorbell();
    if (data_dirty_ || control_dirty_) {
      // The root's answer wakes at once. A request to the root is one ring: the root knows how many
      // it waits for.
      ring(bell, eventfd_.get(), control_dirty_ && own_.self == Rank(0));
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (bell.wants_counts.load(std::memory_order_relaxed) != 0) ring(bell, eventfd_.get(), true);
    }
    data_dirty_ = control_dirty_ = count_dirty_ = false;
  }

 private:
  void break_link(const char* what) {
    if (failure_) return;
    failure_ =
        Error{ErrorKind::protocol, "rank " + std::to_string(peer_.value) + " " + what, peer_};
  }

  bool push_backlog() {
    if (backlog_.empty()) return false;
    ControlRing& ours = own_.rings[index_of(peer_)];
    const std::uint64_t written = ours.written.load(std::memory_order_relaxed);
    const std::uint64_t taken = rings_[index_of(own_.self)].taken.load(std::memory_order_acquire);
    const std::size_t room = kRingBytes - static_cast<std::size_t>(written - taken);
    const std::size_t length = std::min(room, backlog_.size());
    if (length == 0) return false;
    wrapped(written, length, [&](std::size_t at, std::size_t from, std::size_t n) {
      std::memcpy(ours.bytes + at, backlog_.data() + from, n);
    });
    backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<std::ptrdiff_t>(length));
    ours.written.store(written + length, std::memory_order_release);
    control_dirty_ = true;
    return true;
  }

  bool pull_ring() {
    const ControlRing& theirs = rings_[index_of(own_.self)];
    const std::uint64_t written = theirs.written.load(std::memory_order_acquire);
    std::atomic<std::uint64_t>& taken_word = own_.rings[index_of(peer_)].taken;
    const std::uint64_t taken = taken_word.load(std::memory_order_relaxed);
    if (written == taken) return false;
    const std::uint64_t length = written - taken;
    if (length > kRingBytes) {
      break_link("wrote more control bytes than its ring holds");
      return false;
    }
    const std::size_t old = incoming_.size();
    incoming_.resize(old + length);
    wrapped(taken, length, [&](std::size_t at, std::size_t to, std::size_t n) {
      std::memcpy(incoming_.data() + old + to, theirs.bytes + at, n);
    });
    taken_word.store(written, std::memory_order_release);
    if (length > kRingBytes / 2) control_dirty_ = true;  // The writer may wait for room.
    split_messages();
    return true;
  }

  void split_messages() {
    std::size_t at = 0;
    while (incoming_.size() - at >= sizeof(std::uint32_t)) {
      std::uint32_t length = 0;
      std::memcpy(&length, incoming_.data() + at, sizeof length);
      if (length > kMaxControlMessage) return break_link("sent a control message beyond the limit");
      if (incoming_.size() - at - sizeof length < length) break;
      const auto start = incoming_.begin() + static_cast<std::ptrdiff_t>(at + sizeof length);
      taken_messages_.emplace_back(start, start + length);
      at += sizeof length + length;
    }
    incoming_.erase(incoming_.begin(), incoming_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  OwnAreas& own_;
  Rank peer_;
  std::unique_ptr<PeerArena> arena_;
  Fd eventfd_;
  ForkGuard guard_;
  const Line* lines_;
  const CountCell* counts_;
  const ControlRing* rings_;
  std::vector<std::byte> backlog_;
  std::vector<std::byte> incoming_;
  std::deque<std::vector<std::byte>> taken_messages_;
  bool data_dirty_ = false, control_dirty_ = false, count_dirty_ = false;
  std::optional<Error> failure_;
};

class ShmTransportImpl final : public ShmTransport {
 public:
  ShmTransportImpl(const OwnAreas& own, const ShmOffer& offer) : own_(own), offer_(offer) {}

  [[nodiscard]] const ShmOffer& offer() const override { return offer_; }

  std::unique_ptr<Link> connect(Rank peer, std::unique_ptr<PeerArena> arena, const ShmOffer& offer,
                                Fd eventfd) override {
    auto link = std::make_unique<ShmLink>(own_, peer, std::move(arena), offer, std::move(eventfd));
    links_.push_back(link.get());
    return link;
  }

  bool progress() override {
    bool moved = false;
    for (ShmLink* link : links_)
      moved = link->progress() || moved;
    return moved;
  }

  void flush() override {
    for (ShmLink* link : links_)
      link->flush();
  }

  [[nodiscard]] bool drained() const override {
    return std::all_of(links_.begin(), links_.end(),
                       [](const ShmLink* link) { return link->drained(); });
  }

  void set_fault_at_publish(std::uint64_t sends) override { own_.publishes_left = sends; }

 private:
  OwnAreas own_;
  ShmOffer offer_;
  std::vector<ShmLink*> links_;  // Owned by the session, which outlives no transport use.
};

}  // namespace

Result<void> check_offer(const ShmOffer& offer, std::size_t arena_bytes, const LaneLayout& layout,
                         int size) {
  const auto inside = [&](std::uint64_t offset, std::uint64_t bytes) {
    return offset % 64 == 0 && offset >= kFirstArea && bytes <= arena_bytes &&
           offset <= arena_bytes - bytes;
  };
  const auto members = static_cast<std::uint64_t>(size);
  const std::uint64_t lines =
      std::uint64_t{layout.lanes} * layout.window * members * layout.tags * sizeof(Line);
  if (inside(offer.lines_offset, lines) &&
      inside(offer.counts_offset, layout.lanes * sizeof(CountCell)) &&
      inside(offer.control_offset, members * sizeof(ControlRing))) {
    return {};
  }
  return fail(ErrorKind::protocol, "a peer offered areas outside of its arena");
}

Result<std::unique_ptr<ShmTransport>> ShmTransport::make(Arena& arena, const LaneLayout& layout,
                                                         Epoch epoch, Rank self, int size) {
  const auto members = static_cast<std::size_t>(size);
  const std::size_t lines = std::size_t{layout.lanes} * layout.window * members * layout.tags;
  auto lines_offset = arena.reserve(lines * sizeof(Line), "the lines of shared-memory links");
  if (!lines_offset) return tl::unexpected<Error>(lines_offset.error());
  auto counts_offset = arena.reserve(layout.lanes * sizeof(CountCell), "progress counts");
  if (!counts_offset) return tl::unexpected<Error>(counts_offset.error());
  auto rings_offset = arena.reserve(members * sizeof(ControlRing), "control rings");
  if (!rings_offset) return tl::unexpected<Error>(rings_offset.error());

  const OwnAreas own{&arena,
                     layout,
                     epoch,
                     self,
                     size,
                     typed<Line>(arena.at(*lines_offset)),
                     typed<CountCell>(arena.at(*counts_offset)),
                     typed<ControlRing>(arena.at(*rings_offset))};
  const ShmOffer offer{*lines_offset, *rings_offset, *counts_offset};
  return std::make_unique<ShmTransportImpl>(own, offer);
}

}  // namespace hora
