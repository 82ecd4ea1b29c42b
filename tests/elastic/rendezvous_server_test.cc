// The server against strangers: what they cost is bounded, and members do not notice them.
//
// Strangers send random bytes or nothing; descriptors and connections are counted before and after.
#include "elastic/rendezvous_server.h"

#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "elastic/net.h"
#include "tests/elastic/job_threads.h"

namespace hora::test {

namespace {

std::unique_ptr<RendezvousServer> tcp_server(int size) {
  auto options = server_options(size);
  options.unix_name.clear();
  auto server = RendezvousServer::start(options);
  REQUIRE(server);
  return std::move(*server);
}

Fd connect_to(const RendezvousServer& server) {
  auto endpoint = parse_endpoints(server.endpoint());
  REQUIRE(endpoint);
  auto socket = connect_endpoint(endpoint->front(), Deadline::after(10s));
  REQUIRE(socket);
  return std::move(*socket);
}

/// Waits until the server has dropped so many strangers; false after 20 s.
bool wait_for_strangers(const RendezvousServer& server, std::uint64_t count) {
  const Deadline deadline = Deadline::after(20s);
  while (server.stats().strangers < count) {
    if (deadline.passed(steady_now())) return false;
    std::this_thread::yield();
  }
  return true;
}

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes)
    byte = std::byte(random() % 256);
  return bytes;
}

}  // namespace

TEST_CASE("server: a thousand strangers with random bytes are dropped without a word") {
  const auto server = tcp_server(2);
  const std::size_t before = open_descriptors();
  std::mt19937 random(7);
  std::size_t answered = 0;
  for (int i = 0; i < 1000; ++i) {
    const Fd socket = connect_to(*server);
    const auto bytes = random_bytes(random, 84 + random() % 200);
    (void)send_all(socket.get(), bytes, Deadline::after(5s));
    std::array<std::byte, 1> answer{};
    answered += receive_exactly(socket.get(), answer, Deadline::after(10s)) ? 1 : 0;
  }
  CHECK(answered == 0);
  CHECK(wait_for_strangers(*server, 1000));
  CHECK(server->stats().connections == 0);
  CHECK(open_descriptors() == before);
}

TEST_CASE("server: strangers that say nothing take 128 places at most, and ranks still get in") {
  const auto server = tcp_server(2);
  std::vector<Fd> silent;
  for (int i = 0; i < 300; ++i)
    silent.push_back(connect_to(*server));
  CHECK(wait_for_strangers(*server, 300 - 128));
  CHECK(server->stats().connections <= 128);
  const auto joined = on_all_ranks<std::string>(2, [&](int rank) -> std::string {
    Member member;
    member.worker = make_worker_id();
    auto control = Control::join(quick_config(), placement_at(server->endpoint(), rank, 2), member,
                                 [](ControlEvent) {});
    return control ? "joined" : control.error().message;
  });
  CHECK(joined == std::vector<std::string>{"joined", "joined"});
}

TEST_CASE("server: a place that is taken is an error that names it") {
  auto options = server_options(2);
  const auto first = RendezvousServer::start(options);
  REQUIRE(first);
  const auto second = RendezvousServer::start(options);
  REQUIRE_FALSE(second);
  CHECK_THAT(second.error().message, Catch::Contains(options.unix_name));
  CHECK_THAT(second.error().message, Catch::Contains("in use"));
}

TEST_CASE("server: it may end at any time, with strangers and waiting ranks connected") {
  auto server = tcp_server(2);
  const Fd stranger = connect_to(*server);
  Config config = quick_config();
  config.start_timeout_ms = 500;
  auto waiting = std::async(std::launch::async, [&, endpoint = server->endpoint()] {
    Member member;
    member.worker = make_worker_id();
    auto control = Control::join(config, placement_at(endpoint, 1, 2), member, [](ControlEvent) {});
    return control ? ErrorKind::system : control.error().kind;
  });
  const Deadline deadline = Deadline::after(20s);
  while (server->stats().connections < 2 && !deadline.passed(steady_now()))
    std::this_thread::yield();
  server.reset();
  CHECK(waiting.get() == ErrorKind::timeout);
}

TEST_CASE("server: the kernel's word about a process is put in words") {
  CHECK_THAT(process_state(::getpid()),
             Catch::StartsWith("state R") || Catch::StartsWith("state S"));
  CHECK(process_state(0x7fffffff).empty());
}

}  // namespace hora::test
