// See rendezvous_client.h. An attempt ends in one of three ways: a World, an error for the caller,
// or words for "try again". Pauses between rounds of attempts double from 5 to 200 ms, so that
// ranks that start together meet quickly and a late rank 0 is not flooded.
#include "elastic/rendezvous_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "elastic/job.h"
#include "elastic/net.h"
#include "runtime/base/handshake.h"

namespace hora {

namespace {

constexpr auto kConnectPatience = 3s;  // One address may be a black hole; others may not.
constexpr auto kHandshakePatience = 5s;
constexpr auto kFirstPause = 5ms;
constexpr auto kLongestPause = 200ms;
constexpr auto kInterruptPeriod = 50ms;
constexpr int kMostRejections = 16;  // Two or three seconds of trying.

/// One attempt: a meeting, an error to be given to the caller, or one to be tried again.
struct Attempt {
  std::optional<Meeting> meeting;
  std::optional<Error> final_error;
  std::string last_try;
  bool rejected = false;  ///< Somebody answered, and it was not our rendezvous.
};

Attempt try_again(std::string why) {
  return {std::nullopt, std::nullopt, std::move(why), false};
}

/// Where to knock. Rank 0 serves on all addresses and finds itself on loopback, whatever it is
/// called by others.
Result<std::vector<Endpoint>> endpoints_of(const Placement& placement) {
  auto endpoints = parse_endpoints(placement.rendezvous);
  if (!endpoints || !placement.serve || !endpoints->front().unix_name.empty()) return endpoints;
  const std::uint16_t port = endpoints->front().port;
  return std::vector<Endpoint>{{"", "127.0.0.1", port}, {"", "::1", port}};
}

tl::unexpected<Error> was_interrupted() {
  return fail(ErrorKind::interrupted, "meeting the other ranks was interrupted");
}

/// Reads until the next message.
Result<Message> next_message(int socket, MessageReader& reader, Deadline deadline,
                             const Interrupted& interrupted) {
  std::array<std::byte, 16 << 10> buffer;
  for (;;) {
    auto message = reader.next();
    if (!message) return fail(message.error());
    if (*message) return std::move(**message);
    const TimePoint now = steady_now();
    if (!wait_socket(socket, POLLIN, {std::min(deadline.at, now + kInterruptPeriod)})) {
      if (interrupted && interrupted()) return was_interrupted();
      if (deadline.passed(steady_now())) return fail(ErrorKind::timeout, "no answer");
      continue;
    }
    const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0) return fail(ErrorKind::system, "the rendezvous closed the connection");
    if (got > 0) {
      reader.feed(std::span(buffer).first(static_cast<std::size_t>(got)));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return fail_errno("waiting for the World");
    }
  }
}

/// How long the rendezvous shall wait for others: a little less than we do, because its answer
/// knows who is missing and ours does not.
std::uint32_t wait_ms(Deadline deadline) {
  const long long left = to_ms(deadline.left(steady_now()));
  return static_cast<std::uint32_t>(
      std::max<long long>(left - std::min<long long>(left / 10, 500), 1));
}

Attempt wait_for_world(Meeting meeting, const Placement& placement, const Member& self,
                       Deadline deadline, const Interrupted& interrupted) {
  const Rank rank(placement.rank);
  const auto join = encode(Join{rank, placement.size, wait_ms(deadline), self});
  if (auto sent = send_all(meeting.socket.get(), join, deadline); !sent) {
    return try_again(sent.error().message);
  }
  auto message = next_message(meeting.socket.get(), meeting.reader, deadline, interrupted);
  if (!message && message.error().kind == ErrorKind::interrupted) {
    return {std::nullopt, std::move(message.error()), "", false};
  }
  if (!message) return try_again(message.error().message);
  if (auto* refuse = std::get_if<Refuse>(&*message)) {
    return {std::nullopt, std::move(refuse->error), "", false};
  }
  auto* welcome = std::get_if<Welcome>(&*message);
  if (welcome == nullptr) return try_again("the rendezvous answered something else than a World");
  meeting.world = std::move(welcome->world);
  // Where some ranks have died for good the others move up: the place follows from the worker.
  const auto& members = meeting.world.members;
  const auto me = std::find_if(members.begin(), members.end(), [&self](const Member& member) {
    return member.worker == self.worker;
  });
  if (me == members.end() || meeting.world.size() > placement.size) {
    return try_again("the rendezvous made a World without this rank");
  }
  meeting.world.self = Rank(static_cast<std::int32_t>(me - members.begin()));
  return {std::move(meeting), std::nullopt, "", false};
}

Attempt attempt(const Endpoint& endpoint, const Config& config, const Placement& placement,
                const Member& self, Deadline deadline, const Interrupted& interrupted) {
  const auto soon = [deadline](Duration patience) {
    return Deadline{std::min(deadline.at, steady_now() + patience)};
  };
  auto socket = connect_endpoint(endpoint, soon(kConnectPatience));
  if (!socket) return try_again(socket.error().message);
  Meeting meeting;
  meeting.socket = TrackedFd(std::move(*socket));
  const auto limit = std::chrono::milliseconds(config.heartbeat_timeout_ms);
  tune_control_socket(meeting.socket.get(), std::max<Duration>(4 * limit, kHandshakePatience));

  const Identity identity{job_id(placement.job), Epoch(0), Rank(placement.rank), self.worker,
                          kControlPurpose};
  const Deadline until = soon(kHandshakePatience);
  auto proved = run_handshake(meeting.socket.get(), HandshakeRole::initiator, placement.secret,
                              identity, Rank(-1), to_ms(until.left(steady_now())));
  if (!proved) {
    auto failed = try_again(to_string(endpoint) + ": " + proved.error().message);
    failed.rejected = proved.error().kind != ErrorKind::timeout;
    return failed;
  }
  return wait_for_world(std::move(meeting), placement, self, deadline, interrupted);
}

std::string host_of_rendezvous(const Placement& placement) {
  return placement.source == "horarun" ? "horarun" : "rank 0";
}

}  // namespace

Result<Meeting> meet(const Config& config, const Placement& placement, const Member& self,
                     const Interrupted& interrupted) {
  auto endpoints = endpoints_of(placement);
  if (!endpoints) return fail(endpoints.error());
  const auto patience = std::chrono::milliseconds(config.start_timeout_ms);
  const Deadline deadline = Deadline::after(patience);
  const std::string who = "rank " + std::to_string(placement.rank);
  Duration pause = kFirstPause;
  std::string last_try = "none";
  int rejections = 0;
  while (!deadline.passed(steady_now())) {
    for (const Endpoint& endpoint : *endpoints) {
      Attempt result = attempt(endpoint, config, placement, self, deadline, interrupted);
      if (result.meeting) return std::move(*result.meeting);
      if (result.final_error) return fail(std::move(*result.final_error));
      last_try = std::move(result.last_try);
      if (result.rejected && ++rejections >= kMostRejections) {
        return fail(ErrorKind::protocol,
                    who + ": what answers at the rendezvous does not accept this rank (" +
                        last_try +
                        "). Do all ranks have the same HORA_JOB and HORA_SECRET, and does another "
                        "job use this address?");
      }
    }
    for (Duration left = std::min(pause, deadline.left(steady_now())); left > Duration::zero();
         left -= kInterruptPeriod) {
      std::this_thread::sleep_for(std::min<Duration>(left, kInterruptPeriod));
      if (interrupted && interrupted()) return was_interrupted();
    }
    pause = std::min<Duration>(2 * pause, kLongestPause);
  }
  return fail(ErrorKind::timeout,
              who + ": no World from the rendezvous at " + placement.rendezvous + " within " +
                  std::to_string(config.start_timeout_ms) + " ms (last try: " + last_try + "). " +
                  host_of_rendezvous(placement) +
                  " runs it: is it alive? HORA_START_TIMEOUT_MS sets the limit");
}

}  // namespace hora
