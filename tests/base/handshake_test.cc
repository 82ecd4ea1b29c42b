// Handshake: who gets in, who does not, and what each side says about it.
#include "runtime/base/handshake.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/socket.h>

#include "runtime/base/fd.h"

namespace hora {
namespace {

using Bytes = std::vector<std::byte>;

WorkerId worker(int number) {
  WorkerId id;
  id.bytes.fill(static_cast<std::byte>(number));
  return id;
}

Identity identity(int rank) {
  Identity self;
  self.job.fill(std::byte{0x4a});
  self.epoch = Epoch{3};
  self.rank = Rank{rank};
  self.worker = worker(rank + 1);
  self.purpose = 1;
  return self;
}

/// Both sides, and what each was told in the end.
struct Meeting {
  Handshake initiator;
  Handshake acceptor;
  Result<void> initiator_result;
  Result<void> acceptor_result;

  Meeting(const Identity& from, const Identity& to, Rank wanted,
          const std::string& from_secret = "s3cret", const std::string& to_secret = "s3cret")
      : initiator(HandshakeRole::initiator, from_secret, from, wanted),
        acceptor(HandshakeRole::acceptor, to_secret, to, Rank{-1}) {}

  /// Passes messages on until nobody has more to say. `tamper` may change the n-th message.
  template <class Tamper>
  void run(const Tamper& tamper) {
    int number = 0;
    for (bool more = true; more;) {
      more = pass(initiator, acceptor, acceptor_result, tamper, number);
      more = pass(acceptor, initiator, initiator_result, tamper, number) || more;
    }
  }
  void run() {
    run([](int, Bytes&) {});
  }

  [[nodiscard]] bool both_done() const { return initiator.done() && acceptor.done(); }

 private:
  template <class Tamper>
  static bool pass(Handshake& from, Handshake& to, Result<void>& result, const Tamper& tamper,
                   int& number) {
    Bytes message = from.take_output();
    if (message.empty()) return false;
    tamper(number++, message);
    if (to.wants() == 0) return false;
    CHECK(to.wants() <= 256);
    if (message.size() < to.wants()) return false;  // The rest never comes.
    result = to.feed(std::span(message).first(to.wants()));
    return true;
  }
};

TEST_CASE("handshake: two members of a job meet and know each other") {
  Meeting meeting(identity(2), identity(0), Rank{0});
  meeting.run();
  REQUIRE(meeting.both_done());
  CHECK(meeting.initiator.peer().rank == Rank{0});
  CHECK(meeting.initiator.peer().worker == worker(1));
  CHECK(meeting.acceptor.peer().rank == Rank{2});
  CHECK(meeting.acceptor.peer().worker == worker(3));
  CHECK(meeting.acceptor.peer().epoch == Epoch{3});
  CHECK(meeting.initiator.wants() == 0);
  CHECK(meeting.acceptor.wants() == 0);
}

TEST_CASE("handshake: one who does not care about the rank reaches any") {
  Identity launcher = identity(-1);
  launcher.worker = WorkerId{};
  Meeting meeting(launcher, identity(5), Rank{-1});
  meeting.run();
  REQUIRE(meeting.both_done());
  CHECK(meeting.acceptor.peer().rank == Rank{-1});
}

TEST_CASE("handshake: another secret is refused before the acceptor has proved anything") {
  const std::string secret = GENERATE("", "s3creu", "s3cret ", "S3cret");
  Meeting meeting(identity(1), identity(0), Rank{0}, secret);
  meeting.run();
  CHECK_FALSE(meeting.initiator.done());
  CHECK_FALSE(meeting.acceptor.done());
  REQUIRE_FALSE(meeting.acceptor_result);
  CHECK(meeting.acceptor_result.error().kind == ErrorKind::protocol);
  CHECK_THAT(meeting.acceptor_result.error().message, Catch::Contains("secret"));
  CHECK_THAT(meeting.acceptor_result.error().message, !Catch::Contains("s3cret"));
  CHECK(meeting.acceptor.take_output().empty());
}

TEST_CASE("handshake: who is in the wrong place is told why") {
  Identity from = identity(1);
  Identity to = identity(0);
  Rank wanted{0};
  std::string why;
  SECTION("job") {
    to.job[7] ^= std::byte{1};
    why = "another job";
  }
  SECTION("epoch") {
    to.epoch = Epoch{4};
    why = "the other side is in epoch 4, we are in epoch 3";
  }
  SECTION("purpose") {
    to.purpose = 2;
    why = "purpose 2, ours is 1";
  }
  SECTION("rank") {
    wanted = Rank{6};
    why = "the other side is rank 0, we wanted rank 6";
  }
  SECTION("oneself") {
    to.worker = from.worker;
    why = "leads back to this worker";
  }
  Meeting meeting(from, to, wanted);
  meeting.run();
  CHECK_FALSE(meeting.initiator.done());
  CHECK_FALSE(meeting.acceptor.done());
  REQUIRE_FALSE(meeting.acceptor_result);
  REQUIRE_FALSE(meeting.initiator_result);
  CHECK(meeting.initiator_result.error().kind == ErrorKind::protocol);
  CHECK_THAT(meeting.initiator_result.error().message, Catch::Contains(why));
}

TEST_CASE("handshake: another version is named, and a stranger's job is not told ours") {
  Handshake newer(HandshakeRole::initiator, "s3cret", identity(1), Rank{0});
  Handshake acceptor(HandshakeRole::acceptor, "s3cret", identity(0), Rank{-1});
  Bytes hello = newer.take_output();
  SECTION("version") {
    hello[4] = std::byte{2};
    const Result<void> result = acceptor.feed(hello);
    REQUIRE_FALSE(result);
    CHECK_THAT(result.error().message, Catch::Contains("speaks Hora protocol 2, we speak 1"));
    Bytes reply = acceptor.take_output();
    reply[4] = std::byte{9};
    const Result<void> told = newer.feed(reply);
    REQUIRE_FALSE(told);
    CHECK_THAT(told.error().message, Catch::Contains("speaks Hora protocol 9, we speak 1"));
  }
  SECTION("job") {
    hello[20] ^= std::byte{1};
    CHECK_FALSE(acceptor.feed(hello));
    const Bytes reply = acceptor.take_output();
    REQUIRE(reply.size() == 84);
    CHECK(
        std::all_of(reply.begin() + 20, reply.end(), [](std::byte b) { return b == std::byte{}; }));
  }
}

TEST_CASE("handshake: one turned bit anywhere, and nobody is let in") {
  const int message = GENERATE(0, 1, 2, 3);
  const std::size_t size = message < 2 ? 84 : 32;
  for (std::size_t byte = 0; byte < size; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      Meeting meeting(identity(1), identity(0), Rank{0});
      meeting.run([&](int number, Bytes& bytes) {
        if (number != message) return;
        REQUIRE(bytes.size() == size);
        bytes[byte] ^= static_cast<std::byte>(1 << bit);
      });
      CAPTURE(message, byte, bit);
      REQUIRE_FALSE(meeting.initiator.done());
      // Only the last message comes after the acceptor has made up its mind.
      REQUIRE(meeting.acceptor.done() == (message == 3));
    }
  }
}

TEST_CASE("handshake: a message that was cut short or is of the wrong size is refused") {
  const int message = GENERATE(0, 1, 2, 3);
  Meeting cut(identity(1), identity(0), Rank{0});
  cut.run([&](int number, Bytes& bytes) {
    if (number == message) bytes.pop_back();
  });
  CHECK_FALSE(cut.initiator.done());

  Handshake acceptor(HandshakeRole::acceptor, "s3cret", identity(0), Rank{-1});
  const std::size_t size = GENERATE(0, 1, 83, 85);
  const Result<void> result = acceptor.feed(Bytes(size));
  REQUIRE_FALSE(result);
  CHECK(result.error().kind == ErrorKind::protocol);
  CHECK(acceptor.take_output().empty());
  CHECK(acceptor.wants() == 0);
}

TEST_CASE("handshake: what is not Hora gets no answer") {
  Handshake acceptor(HandshakeRole::acceptor, "s3cret", identity(0), Rank{-1});
  Bytes request(84);
  std::memcpy(request.data(), "GET / HTTP/1.1\r\nHost: localhost\r\n", 33);
  CHECK_FALSE(acceptor.feed(request));
  CHECK(acceptor.take_output().empty());
}

TEST_CASE("handshake: a recorded conversation opens no door") {
  std::vector<Bytes> recorded;
  Meeting meeting(identity(1), identity(0), Rank{0});
  meeting.run([&](int, Bytes& bytes) { recorded.push_back(bytes); });
  REQUIRE(meeting.both_done());
  REQUIRE(recorded.size() == 4);

  SECTION("to the acceptor") {
    Handshake acceptor(HandshakeRole::acceptor, "s3cret", identity(0), Rank{-1});
    REQUIRE(acceptor.feed(recorded[0]));
    CHECK(acceptor.take_output() != recorded[1]);
    CHECK_FALSE(acceptor.feed(recorded[2]));
    CHECK_FALSE(acceptor.done());
  }
  SECTION("to the initiator") {
    Handshake initiator(HandshakeRole::initiator, "s3cret", identity(1), Rank{0});
    REQUIRE(initiator.feed(recorded[1]));
    CHECK_FALSE(initiator.feed(recorded[3]));
    CHECK_FALSE(initiator.done());
  }
}

TEST_CASE("handshake: what one says cannot be said back to it") {
  SECTION("the hello is not a reply") {
    Handshake initiator(HandshakeRole::initiator, "s3cret", identity(1), Rank{-1});
    CHECK_FALSE(initiator.feed(initiator.take_output()));
  }
  SECTION("nor is the proof of one role that of the other") {
    // Somebody without the secret answers with a well-made reply and returns the proof it gets.
    Handshake honest(HandshakeRole::acceptor, "unknown", identity(0), Rank{-1});
    Handshake initiator(HandshakeRole::initiator, "s3cret", identity(1), Rank{0});
    REQUIRE(honest.feed(initiator.take_output()));
    REQUIRE(initiator.feed(honest.take_output()));
    const Bytes proof = initiator.take_output();
    REQUIRE(proof.size() == 32);
    CHECK_FALSE(initiator.feed(proof));
    CHECK_FALSE(initiator.done());
  }
  SECTION("nor does a worker let itself in through a relay") {
    Meeting meeting(identity(1), identity(1), Rank{-1});
    meeting.run();
    CHECK_FALSE(meeting.acceptor.done());
  }
}

std::pair<Fd, Fd> socket_pair() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

/// Runs both roles over a socket; the initiator's outcome first.
std::pair<Result<Identity>, Result<Identity>> over_socket(const std::string& secret,
                                                          const Identity& to, std::string& rest) {
  auto [one, other] = socket_pair();
  Result<Identity> accepted = fail(ErrorKind::system, "never ran");
  std::thread acceptor([&, socket = std::move(other)]() mutable {
    accepted = run_handshake(socket.get(), HandshakeRole::acceptor, "s3cret", to, Rank{-1}, 30'000);
    if (accepted) (void)!::send(socket.get(), "data", 4, MSG_NOSIGNAL);
    socket.reset();
  });
  Result<Identity> initiated =
      run_handshake(one.get(), HandshakeRole::initiator, secret, identity(1), Rank{0}, 30'000);
  acceptor.join();
  char after[8];
  const ssize_t got = ::recv(one.get(), after, sizeof after, MSG_DONTWAIT);
  if (got > 0) rest.assign(after, static_cast<std::size_t>(got));
  return {std::move(initiated), std::move(accepted)};
}

TEST_CASE("handshake: over a socket it takes its own bytes and not one more") {
  std::string rest;
  const auto [initiated, accepted] = over_socket("s3cret", identity(0), rest);
  REQUIRE(initiated);
  REQUIRE(accepted);
  CHECK(initiated->rank == Rank{0});
  CHECK(accepted->rank == Rank{1});
  CHECK(rest == "data");
}

TEST_CASE("handshake: over a socket both sides read what was wrong") {
  std::string rest;
  SECTION("secret") {
    const auto [initiated, accepted] = over_socket("other", identity(0), rest);
    REQUIRE_FALSE(initiated);
    CHECK_THAT(initiated.error().message, Catch::Contains("different job secrets"));
    REQUIRE_FALSE(accepted);
    CHECK_THAT(accepted.error().message, Catch::Contains("does not know this job's secret"));
  }
  SECTION("epoch") {
    Identity to = identity(0);
    to.epoch = Epoch{8};
    const auto [initiated, accepted] = over_socket("s3cret", to, rest);
    REQUIRE_FALSE(initiated);
    CHECK_THAT(initiated.error().message, Catch::Contains("is in epoch 8, we are in epoch 3"));
    REQUIRE_FALSE(accepted);
    CHECK_THAT(accepted.error().message, Catch::Contains("is in epoch 3, we are in epoch 8"));
  }
}

TEST_CASE("handshake: a silent peer is given up at the deadline, a gone one at once") {
  auto [one, other] = socket_pair();
  SECTION("silent") {
    const auto result =
        run_handshake(one.get(), HandshakeRole::acceptor, "s3cret", identity(0), Rank{-1}, 10);
    REQUIRE_FALSE(result);
    CHECK(result.error().kind == ErrorKind::timeout);
  }
  SECTION("gone") {
    other.reset();
    const HandshakeRole role = GENERATE(HandshakeRole::acceptor, HandshakeRole::initiator);
    const auto result = run_handshake(one.get(), role, "s3cret", identity(0), Rank{-1}, 30'000);
    REQUIRE_FALSE(result);
    CHECK(result.error().kind == ErrorKind::peer_lost);
  }
}

}  // namespace
}  // namespace hora
