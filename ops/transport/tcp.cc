// TCP: one socket per peer, non-blocking, under one edge-triggered epoll.
//
//   send ---> Outbox: plan ---> sendmsg           recvmsg ---> Inbox: accept, target ---> own slot
//             lines and payloads from where       large payloads straight into the slot,
//             they lie, a megabyte at a time      small frames in batches through a staging buffer
//
// Who sends first may write at any time: a sender only starts what the receiver's window has room
// for, so what a socket holds always has a place to go, and nobody needs to be asked or waited for.
//
// Receiving. In the middle of a long payload one recvmsg takes [rest of the payload, next
// bytes]: the second piece brings the next line in the same call, so that steady bulk traffic
// costs one call per part. Elsewhere it takes as much as the staging buffer holds, so that
// small frames come by the dozen. After bulk the second piece is kept short: what lands in
// staging is copied once more.
//
// Waiting. In the middle of a long frame the kernel is told to wake us when the rest of it is there
// (SO_RCVLOWAT), not for every packet: before that nothing in the frame can be used, and nothing
// behind it can be seen. It costs one call per part and saves most of the wakes of a slow line.
//
// Edge-triggered means: an event says "look again", and we look until the kernel has no more. A
// link remembers that it may read (or write) more, since a step stops at a budget for the sake of
// the other links; progress() returns true then, and whoever sleeps has seen it return false.
//
// No TCP_USER_TIMEOUT: a healthy peer that just does not read would be declared dead. Deaths are
// found by EOF, reset, and the heartbeats of the control plane.
#include "ops/transport/tcp.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "ops/transport/inbox.h"
#include "ops/transport/outbox.h"
#include "runtime/base/check.h"
#include "runtime/base/fork.h"

namespace hora {

namespace {

constexpr std::size_t kStagingBytes = std::size_t{64} << 10;
constexpr std::size_t kStagingAfterBulk = sizeof(Line);
/// What one link may move in one step, so that the others have their turn.
constexpr std::size_t kStepBytes = std::size_t{1} << 20;

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

/// What the links of a transport share.
struct TcpShared {
  Arena& arena;
  std::size_t area_offset;
  LaneLayout layout;
  Epoch epoch;
  Fd epoll;
  TcpCounters counters;
  std::optional<std::uint64_t> fault_after_bytes;
  std::vector<class TcpLink*> links;
};

/// sendmsg that counts, and dies where a test asked for it.
ssize_t send_pieces(TcpShared& shared, int socket, std::span<iovec> pieces) {
  if (shared.fault_after_bytes) {
    std::uint64_t left = *shared.fault_after_bytes;
    if (left == 0) ::raise(SIGKILL);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].iov_len = std::min<std::uint64_t>(pieces[i].iov_len, left);
      left -= pieces[i].iov_len;
      if (left == 0) pieces = pieces.first(i + 1);
    }
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) {
    shared.counters.sent_bytes += static_cast<std::uint64_t>(sent);
    if (shared.fault_after_bytes) {
      *shared.fault_after_bytes -= static_cast<std::uint64_t>(sent);
      if (*shared.fault_after_bytes == 0) ::raise(SIGKILL);
    }
  }
  return sent;
}

class TcpLink final : public Link {
 public:
  TcpLink(TcpShared& shared, Rank peer, Fd socket, std::string peer_text)
      : shared_(shared),
        peer_(peer),
        socket_(std::move(socket)),
        guard_(socket_.get()),
        peer_text_(std::move(peer_text)),
        inbox_(shared.arena, shared.area_offset, shared.layout, shared.epoch),
        outbox_(shared.layout, shared.epoch),
        staging_(kStagingBytes) {}
  ~TcpLink() override;

  [[nodiscard]] Rank peer() const override { return peer_; }
  [[nodiscard]] bool shares_memory() const override { return false; }

  void send(const MessageKey& key, std::span<const std::byte> payload,
            std::uint64_t landing) override {
    if (failure_) return;
    HORA_CHECK(payload.empty() || shared_.arena.contains(payload.data()),
               "a payload lies in the own arena");
    outbox_.send(key, payload, landing);
  }
  std::optional<std::span<const std::byte>> poll(const MessageKey& key) override {
    return inbox_.poll(key);
  }

  void set_count(std::uint16_t lane, std::uint64_t count) override {
    outbox_.set_count(lane, count);
    inbox_.set_count(lane, count);
  }
  void announce(std::uint16_t lane) override { outbox_.announce(lane); }
  [[nodiscard]] std::uint64_t announced(std::uint16_t lane) const override {
    return outbox_.announced(lane);
  }
  [[nodiscard]] std::uint64_t heard(std::uint16_t lane) const override {
    return inbox_.heard(lane);
  }

  void send_control(std::span<const std::byte> message) override {
    if (failure_ || outbox_.send_control(message)) return;
    break_link(ErrorKind::resource, "does not read its control messages: too many wait for it");
  }
  bool take_control(std::vector<std::byte>& message) override {
    return inbox_.take_control(message);
  }

  [[nodiscard]] const std::optional<Error>& failure() const override { return failure_; }

  [[nodiscard]] bool drained() const { return failure_ || outbox_.waiting() == 0; }

  void open(const std::string& congestion);
  void on_events(std::uint32_t events);
  bool receive();
  bool transmit();
  /// transmit(); if its budget was too small, a new event, so that nobody sleeps over the rest.
  void flush();

 private:
  [[nodiscard]] bool in_payload() const { return payload_left_ > 0; }
  [[nodiscard]] std::size_t staged() const { return staged_end_ - staged_begin_; }
  /// EPOLL_CTL_ADD, or EPOLL_CTL_MOD: then what is ready already counts as news again.
  void watch(int operation);
  ssize_t receive_some(std::size_t& asked);
  void await_frame();
  void on_received(std::size_t bytes);
  void parse_staging();
  void begin_frame();
  void end_frame();
  void on_end(int error);
  void break_link(ErrorKind kind, const std::string& what);

  TcpShared& shared_;
  Rank peer_;
  Fd socket_;
  ForkGuard guard_;
  std::string peer_text_;
  Inbox inbox_;
  Outbox outbox_;
  std::optional<Error> failure_;

  bool may_read_ = true;
  bool may_write_ = true;
  bool ended_ = false;  ///< The peer has closed, or the socket has an error: read to the end.

  Line line_;  ///< Of the frame that is coming in.
  bool keep_ = false;
  std::size_t payload_left_ = 0;
  bool bulk_ = false;          ///< The last frame was a long one.
  std::size_t low_water_ = 1;  ///< What the kernel waits for before it says that there is news.
  std::vector<std::byte> staging_;
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
};

void TcpLink::open(const std::string& congestion) {
  const int socket = socket_.get();
  const int flags = ::fcntl(socket, F_GETFL);
  if (flags < 0 || ::fcntl(socket, F_SETFL, flags | O_NONBLOCK) < 0) {
    return break_link(ErrorKind::system, fail_errno("has a bad socket").value().message);
  }
  // Neither is needed for correctness: a kernel that refuses is left alone.
  const int one = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!congestion.empty()) {
    ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, congestion.data(),
                 static_cast<socklen_t>(congestion.size()));
  }
  watch(EPOLL_CTL_ADD);
}

void TcpLink::watch(int operation) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = this;
  if (::epoll_ctl(shared_.epoll.get(), operation, socket_.get(), &event) < 0) {
    break_link(ErrorKind::system, fail_errno("cannot be watched").value().message);
  }
}

TcpLink::~TcpLink() {
  std::erase(shared_.links, this);
  if (!socket_.valid()) return;
  transmit();
  if (socket_.valid() && !outbox_.mid_frame()) {
    Line bye = outbox_.bye();
    std::array<iovec, 1> piece{iovec{&bye, sizeof bye}};
    send_pieces(shared_, socket_.get(), piece);
  }
  // Unread bytes would make the kernel send a reset, which may overtake the bye.
  for (std::size_t read = 0; socket_.valid() && read < kStepBytes;) {
    const ssize_t got = ::recv(socket_.get(), staging_.data(), staging_.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    read += static_cast<std::size_t>(got);
  }
}

void TcpLink::on_events(std::uint32_t events) {
  if ((events & EPOLLIN) != 0) may_read_ = true;
  if ((events & EPOLLOUT) != 0) may_write_ = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) may_read_ = ended_ = true;
}

void TcpLink::await_frame() {
  const std::size_t wanted = payload_left_ > kSmallBytes ? payload_left_ : 1;
  if (wanted == low_water_) return;
  const int value = static_cast<int>(wanted);
  // A kernel that refuses wakes us more often.
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value);
  low_water_ = wanted;
}

bool TcpLink::receive() {
  std::size_t moved = 0;
  while (may_read_ && !failure_ && moved < kStepBytes) {
    std::size_t asked = 0;
    const ssize_t got = receive_some(asked);
    if (got > 0) {
      const auto bytes = static_cast<std::size_t>(got);
      moved += bytes;
      // A short read has emptied the socket; should more have come since, an event says so.
      if (bytes < asked && !ended_) may_read_ = false;
      on_received(bytes);
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && would_block(errno)) {
      may_read_ = false;
    } else {
      on_end(got < 0 ? errno : 0);
      return true;
    }
  }
  if (moved > 0 && !may_read_ && !failure_) await_frame();
  return moved > 0;
}

ssize_t TcpLink::receive_some(std::size_t& asked) {
  std::array<iovec, 2> pieces;
  std::size_t count = 0;
  std::size_t room = staging_.size() - staged_end_;
  if (in_payload()) {
    // What must not land in a slot is read into staging, which is empty now, and forgotten.
    std::byte* target = keep_ ? inbox_.target(line_) : nullptr;
    if (target != nullptr) {
      pieces[count++] = {target + (line_.length - payload_left_), payload_left_};
    } else {
      keep_ = false;
      room = std::min(room, payload_left_);
    }
  }
  if (bulk_ && count > 0) room = std::min(room, kStagingAfterBulk);
  pieces[count++] = {staging_.data() + staged_end_, room};

  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  for (std::size_t i = 0; i < count; ++i)
    asked += pieces[i].iov_len;
  return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
}

void TcpLink::on_received(std::size_t bytes) {
  shared_.counters.received_bytes += bytes;
  if (in_payload()) {
    const std::size_t taken = std::min(bytes, payload_left_);
    payload_left_ -= taken;
    bytes -= taken;
    if (!in_payload()) end_frame();
  }
  staged_end_ += bytes;
  parse_staging();
}

void TcpLink::parse_staging() {
  while (!failure_ && staged() > 0) {
    if (in_payload()) {
      const std::size_t taken = std::min(staged(), payload_left_);
      std::byte* target = keep_ ? inbox_.target(line_) : nullptr;
      if (target != nullptr) {
        std::memcpy(target + (line_.length - payload_left_), staging_.data() + staged_begin_,
                    taken);
      }
      staged_begin_ += taken;
      payload_left_ -= taken;
      if (!in_payload()) end_frame();
    } else if (staged() >= sizeof(Line)) {
      std::memcpy(&line_, staging_.data() + staged_begin_, sizeof line_);
      staged_begin_ += sizeof line_;
      begin_frame();
    } else {
      break;
    }
  }
  // At most a part of a line is left.
  std::memmove(staging_.data(), staging_.data() + staged_begin_, staged());
  staged_end_ = staged();
  staged_begin_ = 0;
}

void TcpLink::begin_frame() {
  if (line_.crc32c != 0) {
    return break_link(ErrorKind::protocol, "sent a frame with a checksum that nobody asked for");
  }
  const Result<Inbox::Fate> fate = inbox_.accept(line_);
  if (!fate) return break_link(ErrorKind::protocol, "sent " + fate.error().message);
  if (*fate == Inbox::Fate::bye) return break_link(ErrorKind::shutdown, "has left");
  if (*fate == Inbox::Fate::drop) ++shared_.counters.dropped_frames;
  keep_ = *fate == Inbox::Fate::keep;
  payload_left_ = line_.length;
  bulk_ = line_.length > kSmallBytes;
  if (!in_payload()) end_frame();
}

void TcpLink::end_frame() {
  if (keep_) inbox_.complete(line_);
}

bool TcpLink::transmit() {
  std::size_t moved = 0;
  while (may_write_ && !failure_ && moved < kStepBytes) {
    const std::span<iovec> pieces = outbox_.plan();
    if (pieces.empty()) break;
    std::size_t asked = 0;
    for (const iovec& piece : pieces)
      asked += piece.iov_len;
    const ssize_t sent = send_pieces(shared_, socket_.get(), pieces);
    if (sent >= 0) {
      const auto bytes = static_cast<std::size_t>(sent);
      outbox_.sent(bytes);
      moved += bytes;
      if (bytes < asked) may_write_ = false;  // The kernel is full; an event says when it is not.
    } else if (would_block(errno)) {
      may_write_ = false;
    } else if (errno != EINTR) {
      // Why the peer is gone may stand in what it sent before: read on to the end.
      may_write_ = false;
      may_read_ = ended_ = true;
      return true;
    }
  }
  return moved > 0;
}

void TcpLink::flush() {
  if (!transmit() || !may_write_ || outbox_.waiting() == 0 || failure_) return;
  watch(EPOLL_CTL_MOD);
}

void TcpLink::on_end(int error) {
  std::string when;
  if (in_payload() || staged() > 0 || inbox_.mid_message()) {
    when = " in the middle of a message";
  } else if (outbox_.waiting() > 0) {
    when = fmt::format(" while {} messages were queued", outbox_.waiting());
  }
  const std::string how =
      error == 0 || error == ECONNRESET || error == EPIPE
          ? "closed its connection"
          : fmt::format("cannot be reached any more ({})", std::generic_category().message(error));
  break_link(ErrorKind::peer_lost, how + when);
}

void TcpLink::break_link(ErrorKind kind, const std::string& what) {
  if (failure_) return;
  failure_ = Error{kind, fmt::format("rank {} ({}) {}", peer_.value, peer_text_, what), peer_};
  guard_ = ForkGuard();
  socket_.reset();
}

class TcpTransportImpl final : public TcpTransport {
 public:
  explicit TcpTransportImpl(TcpShared shared) : shared_(std::move(shared)) {}
  ~TcpTransportImpl() override {
    HORA_CHECK(shared_.links.empty(), "links are destroyed before their transport");
  }

  [[nodiscard]] int poll_fd() const override { return shared_.epoll.get(); }

  std::unique_ptr<Link> connect(Rank peer, Fd socket, std::string peer_text,
                                const std::string& congestion) override {
    auto link = std::make_unique<TcpLink>(shared_, peer, std::move(socket), std::move(peer_text));
    shared_.links.push_back(link.get());
    link->open(congestion);
    return link;
  }

  bool progress() override {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(shared_.epoll.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      static_cast<TcpLink*>(events[static_cast<std::size_t>(i)].data.ptr)
          ->on_events(events[static_cast<std::size_t>(i)].events);
    }
    bool moved = count == static_cast<int>(events.size());
    for (TcpLink* link : shared_.links) {
      moved = link->receive() || moved;
      moved = link->transmit() || moved;
    }
    return moved;
  }

  void flush() override {
    for (TcpLink* link : shared_.links)
      link->flush();
  }

  [[nodiscard]] bool drained() const override {
    return std::all_of(shared_.links.begin(), shared_.links.end(),
                       [](const TcpLink* link) { return link->drained(); });
  }

  [[nodiscard]] TcpCounters counters() const override { return shared_.counters; }
  void set_fault_after_bytes(std::uint64_t bytes) override { shared_.fault_after_bytes = bytes; }

 private:
  TcpShared shared_;
};

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::make(Arena& arena, std::size_t area_offset,
                                                         const LaneLayout& layout, Epoch epoch,
                                                         Rank) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return fail_errno("epoll_create1");
  return std::make_unique<TcpTransportImpl>(
      TcpShared{arena, area_offset, layout, epoch, std::move(epoll), {}, {}, {}});
}

}  // namespace hora
