// Handshake: four messages, after which both sides know that the other holds the job's secret.
//
//   initiator                                   acceptor
//   hello    (84 bytes: identity, nonce)   ->
//                                          <-   reply (84 bytes: verdict, identity, nonce)
//   proof    (32 bytes: HMAC)              ->
//                                          <-   proof (32 bytes: HMAC)
//
// A proof is HMAC-SHA256(secret, name of the role | hello | reply). The two greetings hold
// everything the parties must agree on - version, purpose, job, epoch, both ranks, both workers,
// both nonces - so a proof is worth nothing in any other conversation, and the name of the role
// keeps one side's proof from being returned to it as the other's. The initiator proves first:
// before that, nothing the acceptor has said depends on the secret, so that a stranger who connects
// gets no material to guess against.
//
// A greeting that is not Hora's gets no answer. One that is, but is meant for somebody else, gets a
// verdict, so that an operator reads "speaks Hora protocol 2, we speak 1" instead of "connection
// closed"; to a stranger of another job the reply holds nothing else. A verdict is advice and not
// authenticated: whoever can forge it can also cut the connection.
//
// The handshake authenticates who is at the other end when the connection is made. It
// does not encrypt what follows, nor protect it against somebody who can write into the
// middle of a TCP stream.
//
// Greeting, little-endian. Its size and first eight bytes are the same in every version of the
// protocol:
//
//   magic u32 | version u16 | purpose u16 | epoch u32 | rank i32
//   | hello: wanted rank i32, reply: verdict | job 16 | worker 16 | nonce 32
#include "runtime/base/handshake.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace hora {
namespace {

constexpr std::uint16_t kVersion = 1;
constexpr std::uint32_t kHelloMagic = 0x68726f48;  // "Horh"
constexpr std::uint32_t kReplyMagic = 0x72726f48;  // "Horr"
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kProofBytes = crypto_auth_hmacsha256_BYTES;
constexpr std::string_view kInitiatorName = "hora handshake: initiator";
constexpr std::string_view kAcceptorName = "hora handshake: acceptor!";

/// What the acceptor thinks of a hello.
enum class Verdict : std::int32_t { welcome = 0, version, job, purpose, epoch, rank, self };
constexpr std::int32_t kLastVerdict = static_cast<std::int32_t>(Verdict::self);

/// Hello and reply alike, in memory as on the wire.
struct Greeting {
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  std::uint16_t purpose = 0;
  std::uint32_t epoch = 0;
  std::int32_t rank = 0;
  std::int32_t wanted_or_verdict = 0;
  std::array<std::byte, 16> job{};
  std::array<std::byte, 16> worker{};
  std::array<std::byte, kNonceBytes> nonce{};
};
static_assert(sizeof(Greeting) == 84);
static_assert(std::endian::native == std::endian::little);

using GreetingBytes = std::array<std::byte, sizeof(Greeting)>;
using Proof = std::array<unsigned char, kProofBytes>;

Greeting greeting_of(const Identity& identity, std::uint32_t magic) {
  Greeting greeting;
  greeting.magic = magic;
  greeting.version = kVersion;
  greeting.purpose = identity.purpose;
  greeting.epoch = identity.epoch.value;
  greeting.rank = identity.rank.value;
  greeting.job = identity.job;
  greeting.worker = identity.worker.bytes;
  randombytes_buf(greeting.nonce.data(), greeting.nonce.size());
  return greeting;
}

Identity identity_of(const Greeting& greeting) {
  return {greeting.job, Epoch{greeting.epoch}, Rank{greeting.rank}, WorkerId{greeting.worker},
          greeting.purpose};
}

/// Both are the same process: a connection to oneself, or an own hello sent back. The launcher has
/// no worker id.
bool same_worker(const Greeting& theirs, const Identity& self) {
  return theirs.worker == self.worker.bytes && self.worker != WorkerId{};
}

Verdict judge(const Greeting& hello, const Identity& self) {
  if (hello.version != kVersion) return Verdict::version;
  if (hello.job != self.job) return Verdict::job;
  if (hello.purpose != self.purpose) return Verdict::purpose;
  if (hello.epoch != self.epoch.value) return Verdict::epoch;
  if (hello.wanted_or_verdict != -1 && hello.wanted_or_verdict != self.rank.value) {
    return Verdict::rank;
  }
  return same_worker(hello, self) ? Verdict::self : Verdict::welcome;
}

/// The sentence for a verdict: `they` is the greeting of the other side.
std::string explain(Verdict verdict, const Greeting& they, const Identity& self, Rank wanted) {
  switch (verdict) {
    case Verdict::version:
      return fmt::format("the other side speaks Hora protocol {}, we speak {}", they.version,
                         kVersion);
    case Verdict::job:
      return "the other side belongs to another job";
    case Verdict::purpose:
      return fmt::format("the other side expects connections of purpose {}, ours is {}",
                         they.purpose, self.purpose);
    case Verdict::epoch:
      return fmt::format("the other side is in epoch {}, we are in epoch {}", they.epoch,
                         self.epoch.value);
    case Verdict::rank:
      return fmt::format("the other side is rank {}, we wanted rank {}", they.rank, wanted.value);
    case Verdict::self:
      return "the connection leads back to this worker";
    case Verdict::welcome:
      break;
  }
  return "welcome";
}

}  // namespace

struct Handshake::State {
  enum class Step { greeting, proof, done, failed };

  HandshakeRole role;
  std::string secret;
  Identity self;
  Rank wanted;  ///< Initiator: what it wants; acceptor: its own.
  Step step = Step::greeting;
  GreetingBytes hello{};
  GreetingBytes reply{};
  Identity peer;
  std::vector<std::byte> output;

  State(HandshakeRole r, std::string s, const Identity& i, Rank w)
      : role(r), secret(std::move(s)), self(i), wanted(w) {}
  ~State() { sodium_memzero(secret.data(), secret.size()); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void say(std::span<const std::byte> bytes) {
    output.insert(output.end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] Proof prove(HandshakeRole prover) const;
  void say_proof();
  Result<void> on_hello(std::span<const std::byte> bytes);
  Result<void> on_reply(std::span<const std::byte> bytes);
  Result<void> on_proof(std::span<const std::byte> bytes);
};

Proof Handshake::State::prove(HandshakeRole prover) const {
  const std::string_view name = prover == HandshakeRole::initiator ? kInitiatorName : kAcceptorName;
  const auto bytes_of = [](const auto& range) {
    return reinterpret_cast<const unsigned char*>(range.data());
  };
  crypto_auth_hmacsha256_state mac;
  crypto_auth_hmacsha256_init(&mac, bytes_of(secret), secret.size());
  crypto_auth_hmacsha256_update(&mac, bytes_of(name), name.size());
  crypto_auth_hmacsha256_update(&mac, bytes_of(hello), hello.size());
  crypto_auth_hmacsha256_update(&mac, bytes_of(reply), reply.size());
  Proof proof;
  crypto_auth_hmacsha256_final(&mac, proof.data());
  sodium_memzero(&mac, sizeof mac);
  return proof;
}

void Handshake::State::say_proof() {
  const Proof proof = prove(role);
  say(std::as_bytes(std::span(proof)));
}

Result<void> Handshake::State::on_hello(std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, hello.begin());
  const auto theirs = std::bit_cast<Greeting>(hello);
  if (theirs.magic != kHelloMagic) {
    return fail(ErrorKind::protocol, "handshake: not a Hora connection");
  }
  const Verdict verdict = judge(theirs, self);
  Greeting ours = greeting_of(self, kReplyMagic);
  if (verdict == Verdict::version || verdict == Verdict::job) {
    ours = Greeting{.magic = kReplyMagic, .version = kVersion};
  }
  ours.wanted_or_verdict = static_cast<std::int32_t>(verdict);
  reply = std::bit_cast<GreetingBytes>(ours);
  say(reply);
  if (verdict != Verdict::welcome) {
    return fail(ErrorKind::protocol,
                "handshake: " + explain(verdict, theirs, self, Rank{theirs.wanted_or_verdict}));
  }
  peer = identity_of(theirs);
  step = Step::proof;
  return {};
}

Result<void> Handshake::State::on_reply(std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, reply.begin());
  const auto theirs = std::bit_cast<Greeting>(reply);
  if (theirs.magic != kReplyMagic) {
    return fail(ErrorKind::protocol, "handshake: the other side does not speak Hora's protocol");
  }
  Verdict verdict = Verdict::welcome;
  if (theirs.wanted_or_verdict > 0 && theirs.wanted_or_verdict <= kLastVerdict) {
    verdict = static_cast<Verdict>(theirs.wanted_or_verdict);
  } else if (theirs.version != kVersion) {
    verdict = Verdict::version;
  } else if (theirs.wanted_or_verdict != 0) {
    return fail(ErrorKind::protocol, "handshake: the other side gave an unknown verdict");
  } else {
    // What the acceptor claims must be what we asked for, whatever its verdict.
    Greeting claim = theirs;
    claim.wanted_or_verdict = -1;
    verdict = judge(claim, self);
    if (verdict == Verdict::welcome && wanted.value != -1 && theirs.rank != wanted.value) {
      verdict = Verdict::rank;
    }
  }
  if (verdict != Verdict::welcome) {
    return fail(ErrorKind::protocol, "handshake: " + explain(verdict, theirs, self, wanted));
  }
  peer = identity_of(theirs);
  say_proof();
  step = Step::proof;
  return {};
}

Result<void> Handshake::State::on_proof(std::span<const std::byte> bytes) {
  const bool initiator = role == HandshakeRole::initiator;
  const Proof expected = prove(initiator ? HandshakeRole::acceptor : HandshakeRole::initiator);
  if (sodium_memcmp(expected.data(), bytes.data(), kProofBytes) != 0) {
    return fail(ErrorKind::protocol, "handshake: the other side does not know this job's secret");
  }
  if (!initiator) say_proof();
  step = Step::done;
  return {};
}

Handshake::Handshake(HandshakeRole role, std::string secret, Identity self, Rank expected) {
  HORA_CHECK(sodium_init() >= 0, "libsodium needs the system's random source");
  const bool initiator = role == HandshakeRole::initiator;
  state_ = std::make_unique<State>(role, std::move(secret), self, initiator ? expected : self.rank);
  if (!initiator) return;
  Greeting hello = greeting_of(self, kHelloMagic);
  hello.wanted_or_verdict = expected.value;
  state_->hello = std::bit_cast<GreetingBytes>(hello);
  state_->say(state_->hello);
}

Handshake::~Handshake() = default;
Handshake::Handshake(Handshake&&) noexcept = default;

std::vector<std::byte> Handshake::take_output() {
  return std::exchange(state_->output, {});
}

std::size_t Handshake::wants() const {
  switch (state_->step) {
    case State::Step::greeting:
      return sizeof(Greeting);
    case State::Step::proof:
      return kProofBytes;
    case State::Step::done:
    case State::Step::failed:
      break;
  }
  return 0;
}

Result<void> Handshake::feed(std::span<const std::byte> bytes) {
  State& state = *state_;
  if (bytes.size() != wants() || bytes.empty()) {
    state.step = State::Step::failed;
    return fail(ErrorKind::protocol, "handshake: a message of the wrong size");
  }
  const bool initiator = state.role == HandshakeRole::initiator;
  Result<void> result = state.step == State::Step::proof ? state.on_proof(bytes)
                        : initiator                      ? state.on_reply(bytes)
                                                         : state.on_hello(bytes);
  if (!result) state.step = State::Step::failed;
  return result;
}

bool Handshake::done() const {
  return state_->step == State::Step::done;
}

const Identity& Handshake::peer() const {
  HORA_CHECK(done(), "nobody knows who the peer is before the handshake is done");
  return state_->peer;
}

namespace {

/// Waits until `socket` is ready for `events`, or until the deadline.
Result<void> wait_ready(int socket, short events, Deadline deadline) {
  for (;;) {
    const TimePoint now = steady_now();
    if (deadline.passed(now)) {
      return fail(ErrorKind::timeout, "handshake: the other side did not answer in time");
    }
    const long long left_ms = std::min(to_ms(deadline.left(now)), 60'000LL);
    pollfd waiting{.fd = socket, .events = events, .revents = 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(left_ms));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return fail_errno("handshake: poll");
  }
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

Result<void> send_all(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (would_block()) {
      HORA_TRY(wait_ready(socket, POLLOUT, deadline));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return fail(ErrorKind::peer_lost, "handshake: the other side closed the connection");
    } else if (errno != EINTR) {
      return fail_errno("handshake: send");
    }
  }
  return {};
}

/// Fills `bytes` and never takes more: what follows the handshake belongs to somebody else.
Result<void> receive_all(int socket, std::span<std::byte> bytes, Deadline deadline,
                         const char* if_closed) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      return fail(ErrorKind::peer_lost, if_closed);
    } else if (would_block()) {
      HORA_TRY(wait_ready(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return fail_errno("handshake: recv");
    }
  }
  return {};
}

}  // namespace

Result<Identity> run_handshake(int socket, HandshakeRole role, const std::string& secret,
                               const Identity& self, Rank expected, long long deadline_ms) {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(deadline_ms));
  Handshake handshake(role, secret, self, expected);
  std::array<std::byte, 256> input;
  for (;;) {
    HORA_TRY(send_all(socket, handshake.take_output(), deadline));
    if (handshake.done()) return handshake.peer();
    const auto wanted = std::span(input).first(handshake.wants());
    const bool proved = role == HandshakeRole::initiator && wanted.size() == kProofBytes;
    const char* if_closed = proved
                                ? "handshake: the other side closed the connection when it saw our "
                                  "proof: the two sides have different job secrets"
                                : "handshake: the other side closed the connection";
    HORA_TRY(receive_all(socket, wanted, deadline, if_closed));
    if (Result<void> fed = handshake.feed(wanted); !fed) {
      // A verdict, if there is one, is small enough for any send buffer.
      const std::vector<std::byte> verdict = handshake.take_output();
      if (!verdict.empty()) {
        (void)!::send(socket, verdict.data(), verdict.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      }
      return fail(std::move(fed.error()));
    }
  }
}

}  // namespace hora
