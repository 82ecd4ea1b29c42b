// See mesh.h for the exchange. Each connection on its way is a Pending with a stage; one poll()
// waits for all of them and both listeners, and `act` moves whichever is ready by one stage.
// Nothing in a stage blocks: only small messages are sent, on connections that are empty.
#include "elastic/mesh.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "elastic/job.h"
#include "elastic/net.h"
#include "runtime/base/fork.h"
#include "runtime/base/handshake.h"

namespace hora {

namespace {

constexpr std::size_t kMostPending = 128;  // Accepted connections without proof.
constexpr auto kStrangerPatience = 5s;
constexpr auto kStagger = 250ms;     // Until the next address is tried beside the last.
constexpr auto kRetryPause = 100ms;  // After all addresses have failed.
constexpr auto kSmallMessage = 1s;   // For the rest of a message whose beginning is here.
constexpr auto kLongestPoll = 50ms;  // How often `given_up` is asked.

/// The memory offer, as on the wire; descriptors travel with it.
struct MemoryMessage {
  std::uint32_t magic = 0;
  std::uint32_t verdict =
      0;  ///< Acceptor: it has mapped the initiator's. Initiator: not yet known.
  ShmOffer offer;
};
constexpr std::uint32_t kMemoryMagic = 0x6d726f48;  // "Horm"
constexpr std::uint32_t kRefused = 0, kMapped = 1;

/// A connection on its way.
struct Pending {
  enum class Stage { connecting, proof, offer, verdict };

  TrackedFd socket;
  HandshakeRole role{};
  bool memory = false;  ///< A unix connection, which ends in an exchange of memory.
  Rank peer{-1};        ///< Known from the start (initiator) or from the proof (acceptor).
  Stage stage = Stage::proof;
  std::optional<Handshake> handshake;
  std::array<std::byte, 256> input{};
  std::size_t filled = 0;
  TimePoint since{};
  std::string target;  ///< For errors.
  Reached reached;     ///< What the exchange has brought so far.
  bool over = false;
};

/// What is known about the way to a lower rank.
struct Way {
  bool memory_tried = false;
  TimePoint memory_again{};  ///< The earliest next attempt, where it is repeated.
  std::size_t next_address = 0;
  TimePoint next_try{};
  std::string trouble;  ///< Of the last attempts, for the error.
};

class Mesh {
 public:
  Mesh(const World& world, const Listeners& listeners, const OwnMemory& memory,
       const SessionOptions& options)
      : world_(world), listeners_(listeners), memory_(memory), options_(options) {
    result_.peers.resize(world.members.size());
    ways_.resize(index_of(world.self));
    reached_.resize(world.members.size());
    reached_[index_of(world.self)] = true;
  }

  Result<MeshResult> run() {
    for (;;) {
      const TimePoint now = steady_now();
      HORA_TRY(start_attempts(now));
      if (std::all_of(reached_.begin(), reached_.end(), [](bool reached) { return reached; })) {
        return std::move(result_);
      }
      if (options_.deadline.passed(now)) return fail(missing_peer());
      if (options_.given_up) {
        if (auto error = options_.given_up()) return fail(std::move(*error));
      }
      HORA_TRY(wait_and_act());
    }
  }

 private:
  [[nodiscard]] Identity identity(bool memory) const {
    return {world_.job, world_.epoch, world_.self, world_.me().worker,
            memory ? kMemoryPurpose : kTcpPurpose};
  }
  [[nodiscard]] bool may_share(const Member& peer) const {
    return memory_.shared && peer.host_id == world_.me().host_id && !peer.unix_name.empty();
  }

  // ---- Connecting to lower ranks.

  Result<void> start_attempts(TimePoint now) {
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      const Rank peer(static_cast<std::int32_t>(i));
      if (reached_[i]) continue;
      Way& way = ways_[i];
      if (!way.memory_tried && now >= way.memory_again) {
        way.memory_tried = true;
        if (may_share(world_.members[i])) {
          connect_memory(peer, now);
          continue;
        }
      }
      // As long as that may work, nothing else is tried.
      if (!way.memory_tried || memory_pending(peer)) continue;
      if (options_.config.transport == "shm") {
        return fail(Error{ErrorKind::unsupported,
                          "HORA_TRANSPORT=shm, but " + world_.describe(world_.self) +
                              " cannot share memory with " + world_.describe(peer) + ": " +
                              (way.trouble.empty() ? "they are on different hosts" : way.trouble),
                          peer});
      }
      if (now >= way.next_try) connect_next_address(peer, way, now);
    }
    return {};
  }

  void connect_memory(Rank peer, TimePoint now) {
    const std::string& name = world_.members[index_of(peer)].unix_name;
    auto socket = connect_unix(name);
    if (!socket) {
      note(peer, socket.error().message);
      return;
    }
    add_initiator(peer, std::move(*socket), true, "unix socket @" + name, now);
  }

  void connect_next_address(Rank peer, Way& way, TimePoint now) {
    const auto& addresses = world_.members[index_of(peer)].addresses;
    if (addresses.empty()) {
      way.next_try = TimePoint::max();
      return note(peer, "it listens on no TCP address");
    }
    const bool last = way.next_address + 1 >= addresses.size();
    const Address& address = addresses[way.next_address];
    way.next_address = last ? 0 : way.next_address + 1;
    way.next_try = now + kStagger;
    // One attempt per address at a time: it fails, or it works.
    const std::string target = to_string(address);
    for (const Pending& pending : pending_) {
      if (pending.peer == peer && pending.target == target && !pending.over) return;
    }
    auto socket = start_connect_tcp(address);
    if (!socket) {
      way.next_try = now + (last ? Duration(kRetryPause) : Duration::zero());
      return note(peer, socket.error().message);
    }
    add_initiator(peer, std::move(*socket), false, target, now);
    pending_.back().stage = Pending::Stage::connecting;
  }

  void add_initiator(Rank peer, Fd socket, bool memory, std::string target, TimePoint now) {
    Pending& pending = pending_.emplace_back();
    pending.socket = TrackedFd(std::move(socket));
    pending.role = HandshakeRole::initiator;
    pending.memory = memory;
    pending.peer = peer;
    pending.since = now;
    pending.target = std::move(target);
    pending.handshake.emplace(HandshakeRole::initiator, options_.placement.secret, identity(memory),
                              peer);
    if (memory) send_proof(pending);
  }

  [[nodiscard]] bool memory_pending(Rank peer) const {
    return std::any_of(pending_.begin(), pending_.end(), [peer](const Pending& pending) {
      return pending.peer == peer && pending.memory && !pending.over &&
             pending.role == HandshakeRole::initiator;
    });
  }

  // ---- Accepting from higher ranks.

  Result<void> accept_all(int listener, bool memory, TimePoint now) {
    for (;;) {
      auto socket = accept_connection(listener);
      if (!socket) {
        if (socket.error().kind != ErrorKind::resource) return fail(socket.error());
        drop_oldest_stranger();
        return {};
      }
      if (!socket->valid()) return {};
      if (!same_user(socket->get())) {
        ++result_.strangers;
        continue;
      }
      Pending& pending = pending_.emplace_back();
      pending.socket = TrackedFd(std::move(*socket));
      pending.role = HandshakeRole::acceptor;
      pending.memory = memory;
      pending.since = now;
      pending.handshake.emplace(HandshakeRole::acceptor, options_.placement.secret,
                                identity(memory), Rank(-1));
      if (strangers() > kMostPending) drop_oldest_stranger();
    }
  }

  static bool is_stranger(const Pending& pending) {
    return !pending.over && pending.role == HandshakeRole::acceptor && pending.peer == Rank(-1);
  }
  [[nodiscard]] std::size_t strangers() const {
    return static_cast<std::size_t>(std::count_if(pending_.begin(), pending_.end(), is_stranger));
  }
  void drop_oldest_stranger() {
    const auto oldest = std::find_if(pending_.begin(), pending_.end(), is_stranger);
    if (oldest != pending_.end()) end(*oldest, "dropped");
  }

  // ---- The loop.

  Result<void> wait_and_act() {
    std::vector<pollfd> polled{{listeners_.tcp.get(), POLLIN, 0},
                               {listeners_.unix_socket.get(), POLLIN, 0}};
    std::vector<Pending*> who;
    for (Pending& pending : pending_) {
      const short events = pending.stage == Pending::Stage::connecting ? POLLOUT : POLLIN;
      polled.push_back({pending.socket.get(), events, 0});
      who.push_back(&pending);
    }
    const int patience_ms = static_cast<int>(
        to_ms(std::min<Duration>(options_.deadline.left(steady_now()), kLongestPoll)));
    ::poll(polled.data(), polled.size(), patience_ms);
    const TimePoint now = steady_now();
    for (std::size_t i = 0; i < who.size(); ++i) {
      Pending& pending = *who[i];
      if (pending.over) continue;
      if (polled[i + 2].revents != 0) act(pending);
      if (is_stranger(pending) && now - pending.since > kStrangerPatience) end(pending, "silent");
    }
    std::erase_if(pending_, [](const Pending& pending) { return pending.over; });
    if (polled[0].revents != 0) HORA_TRY(accept_all(polled[0].fd, false, now));
    if (polled[1].revents != 0) HORA_TRY(accept_all(polled[1].fd, true, now));
    return {};
  }

  void act(Pending& pending) {
    switch (pending.stage) {
      case Pending::Stage::connecting:
        return on_connected(pending);
      case Pending::Stage::proof:
        return on_proof_bytes(pending);
      case Pending::Stage::offer:
        return on_offer(pending);
      case Pending::Stage::verdict:
        return on_verdict(pending);
    }
  }

  void on_connected(Pending& pending) {
    if (auto connected = finish_connect_tcp(pending.socket.get(), pending.target); !connected) {
      return end(pending, connected.error().message);
    }
    pending.stage = Pending::Stage::proof;
    send_proof(pending);
  }

  void send_proof(Pending& pending) {
    const auto bytes = pending.handshake->take_output();
    const Deadline soon = Deadline::after(kSmallMessage);
    if (auto sent = send_all(pending.socket.get(), bytes, soon); !sent) {
      end(pending, sent.error().message);
    }
  }

  void on_proof_bytes(Pending& pending) {
    const std::size_t wants = pending.handshake->wants();
    const ssize_t got = ::recv(pending.socket.get(), pending.input.data() + pending.filled,
                               wants - pending.filled, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return end(pending, "closed during the handshake");
    pending.filled += static_cast<std::size_t>(got);
    if (pending.filled < wants) return;
    pending.filled = 0;
    auto fed = pending.handshake->feed(std::span(pending.input).first(wants));
    if (!fed) {
      send_proof(pending);  // A verdict, if there is one.
      return end(pending, fed.error().message);
    }
    if (!pending.handshake->done()) return send_proof(pending);
    const Identity& peer = pending.handshake->peer();
    if (!is_expected(peer, pending)) return end(pending, "belongs to another worker");
    send_proof(pending);
    if (pending.over) return;
    pending.peer = peer.rank;
    if (!pending.memory) return reach(pending);
    pending.stage = Pending::Stage::offer;
    if (pending.role == HandshakeRole::initiator) send_offer(pending, kRefused);
  }

  /// Is this the member it says, in the right direction, and still missing?
  [[nodiscard]] bool is_expected(const Identity& peer, const Pending& pending) const {
    if (peer.rank.value < 0 || peer.rank.value >= world_.size()) return false;
    const bool direction = pending.role == HandshakeRole::initiator ? peer.rank == pending.peer
                                                                    : peer.rank > world_.self;
    return direction && !reached_[index_of(peer.rank)] &&
           world_.members[index_of(peer.rank)].worker == peer.worker;
  }

  // ---- Exchange of memory.

  void send_offer(Pending& pending, std::uint32_t verdict) {
    if (!memory_.shared) return end(pending, "this worker shares no memory");
    MemoryMessage message{kMemoryMagic, verdict, memory_.offer};
    auto sent = send_with_fds(pending.socket.get(), std::as_bytes(std::span(&message, 1)),
                              {memory_.memfd, memory_.eventfd}, Deadline::after(kSmallMessage));
    if (!sent) end(pending, sent.error().message);
  }

  /// Takes the other side's offer; says whether its memory is mapped.
  Result<std::uint32_t> take_offer(Pending& pending) {
    MemoryMessage message;
    auto fds =
        receive_with_fds(pending.socket.get(), std::as_writable_bytes(std::span(&message, 1)),
                         Deadline::after(kSmallMessage));
    if (!fds) return fail(fds.error());
    if (message.magic != kMemoryMagic) return fail(ErrorKind::protocol, "not an offer of memory");
    auto arena =
        PeerArena::map(std::move((*fds)[0]), world_.members[index_of(pending.peer)].worker);
    if (!arena) return fail(arena.error());
    HORA_TRY(check_offer(message.offer, (*arena)->bytes(), options_.layout, world_.size()));
    pending.reached.arena = std::move(*arena);
    pending.reached.offer = message.offer;
    pending.reached.eventfd = std::move((*fds)[1]);
    return message.verdict;
  }

  void on_offer(Pending& pending) {
    auto verdict = take_offer(pending);
    if (pending.role == HandshakeRole::acceptor) {
      if (!verdict) note(pending.peer, verdict.error().message);
      pending.stage = Pending::Stage::verdict;
      return send_offer(pending, verdict ? kMapped : kRefused);
    }
    const bool both = verdict && *verdict == kMapped;
    const std::uint32_t last_word = both ? kMapped : kRefused;
    auto sent = send_all(pending.socket.get(), std::as_bytes(std::span(&last_word, 1)),
                         Deadline::after(kSmallMessage));
    if (!verdict) return end(pending, verdict.error().message);
    if (!both) return end(pending, "it could not map this worker's memory");
    if (!sent) return end(pending, sent.error().message);
    reach(pending);
  }

  void on_verdict(Pending& pending) {
    std::uint32_t verdict = kRefused;
    auto got = receive_exactly(pending.socket.get(), std::as_writable_bytes(std::span(&verdict, 1)),
                               Deadline::after(kSmallMessage));
    if (!got || verdict != kMapped || !pending.reached.arena || reached_[index_of(pending.peer)]) {
      return end(pending, "it could not map this worker's memory");
    }
    reach(pending);
  }

  // ---- Ends.

  void reach(Pending& pending) {
    const std::size_t peer = index_of(pending.peer);
    reached_[peer] = true;
    pending.socket.guard = ForkGuard();
    pending.reached.socket = std::move(pending.socket.fd);
    result_.peers[peer] = std::move(pending.reached);
    pending.over = true;
    // Other attempts for the same peer have lost the race.
    for (Pending& other : pending_) {
      if (other.peer == pending.peer && !other.over) end(other, "another connection was faster");
    }
  }

  void end(Pending& pending, const std::string& why) {
    if (is_stranger(pending)) ++result_.strangers;
    if (pending.role == HandshakeRole::initiator) {
      note(pending.peer, pending.target + ": " + why);
      // The next address need not wait.
      Way& way = ways_[index_of(pending.peer)];
      way.next_try = std::min(way.next_try, steady_now() + kRetryPause);
      // A later World: maybe the other one has not heard of it, and refuses strangers.
      if (pending.memory && pending.stage == Pending::Stage::proof && world_.epoch > Epoch(1) &&
          world_.min_size > 0) {
        way.memory_tried = false;
        way.memory_again = steady_now() + kRetryPause;
      }
    }
    pending.over = true;
    pending.socket.reset();
  }

  void note(Rank peer, const std::string& trouble) {
    if (index_of(peer) >= ways_.size()) return;
    std::string& text = ways_[index_of(peer)].trouble;
    if (text.find(trouble) != std::string::npos || text.size() > 500) return;
    text += (text.empty() ? "" : "; ") + trouble;
  }

  [[nodiscard]] Error missing_peer() const {
    const auto found = std::find(reached_.begin(), reached_.end(), false);
    const Rank peer(static_cast<std::int32_t>(found - reached_.begin()));
    std::string text = world_.describe(world_.self);
    if (peer < world_.self) {
      text += " cannot reach " + world_.describe(peer);
      for (const Pending& pending : pending_) {
        if (pending.peer == peer && !pending.over) text += "; no answer from " + pending.target;
      }
      const std::string& trouble = ways_[index_of(peer)].trouble;
      if (!trouble.empty()) text += "; " + trouble;
    } else {
      text += " waited in vain for " + world_.describe(peer) + " to connect";
      for (std::size_t i = 0; i < listeners_.addresses.size(); ++i) {
        text += (i == 0 ? " to " : ", ") + to_string(listeners_.addresses[i]);
      }
    }
    if (result_.strangers > 0) {
      text += "; " + std::to_string(result_.strangers) + " connections of strangers were dropped";
    }
    return {ErrorKind::timeout,
            text + ". Is that process alive, and do firewalls let the hosts reach each other?",
            peer};
  }

  const World& world_;
  const Listeners& listeners_;
  const OwnMemory& memory_;
  const SessionOptions& options_;
  MeshResult result_;
  std::vector<bool> reached_;
  std::vector<Way> ways_;       ///< To the lower ranks.
  std::list<Pending> pending_;  ///< In order of age.
};

}  // namespace

Result<MeshResult> connect_mesh(const World& world, const Listeners& listeners,
                                const OwnMemory& memory, const SessionOptions& options) {
  return Mesh(world, listeners, memory, options).run();
}

}  // namespace hora
