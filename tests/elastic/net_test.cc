// The socket helpers: endpoints in words, abstract sockets, descriptors that travel, deadlines.
//
// Everything runs on socket pairs and fresh names, so tests can run side by side.
#include "elastic/net.h"

#include <algorithm>
#include <array>

#include <catch2/catch.hpp>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hora::test {

namespace {

std::array<Fd, 2> socket_pair() {
  std::array<int, 2> fds{-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

TEST_CASE("net: endpoints are read and written in one spelling") {
  for (const std::string text :
       {"10.0.0.1:4000", "[fd00::1]:65535", "node-1.cluster:1", "unix:hora-x"}) {
    const auto endpoints = parse_endpoints(text);
    REQUIRE(endpoints);
    REQUIRE(endpoints->size() == 1);
    CHECK(to_string(endpoints->front()) == text);
  }
  const auto several = parse_endpoints("10.0.0.1:4000,[::1]:4001");
  REQUIRE(several);
  REQUIRE(several->size() == 2);
  CHECK((*several)[1].host == "::1");
  CHECK((*several)[1].port == 4001);
}

TEST_CASE("net: what is no endpoint is refused with its text") {
  for (const std::string text : {"", "host", "host:", ":80", "host:0", "host:65536", "host:8x",
                                 "fd00::1:80", "[]:80", "unix:", "a:1,"}) {
    INFO(text);
    const auto endpoints = parse_endpoints(text);
    REQUIRE_FALSE(endpoints);
    CHECK(endpoints.error().kind == ErrorKind::invalid_argument);
  }
  CHECK_FALSE(parse_endpoints("unix:" + std::string(108, 'x')));
}

TEST_CASE("net: an abstract socket has one owner") {
  const std::string name = "hora-test-" + to_string(make_worker_id());
  const auto first = listen_unix(name);
  REQUIRE(first);
  CHECK_FALSE(listen_unix(name));
  CHECK(connect_unix(name));
  CHECK_FALSE(connect_unix(name + "x"));
}

TEST_CASE("net: two descriptors travel with their bytes") {
  auto [left, right] = socket_pair();
  const Fd one(::eventfd(5, EFD_CLOEXEC | EFD_NONBLOCK)), two(::eventfd(6, EFD_CLOEXEC));
  const Deadline soon = Deadline::after(5s);
  REQUIRE(send_with_fds(left.get(), bytes_of("hello"), {one.get(), two.get()}, soon));
  std::array<std::byte, 5> got{};
  auto fds = receive_with_fds(right.get(), got, soon);
  REQUIRE(fds);
  CHECK(got[1] == std::byte{'e'});
  eventfd_t value = 0;
  REQUIRE(::eventfd_read((*fds)[1].get(), &value) == 0);
  CHECK(value == 6);
}

TEST_CASE("net: bytes without descriptors are refused where descriptors are due") {
  auto [left, right] = socket_pair();
  const Deadline soon = Deadline::after(5s);
  REQUIRE(send_all(left.get(), bytes_of("hello"), soon));
  std::array<std::byte, 5> got{};
  const auto fds = receive_with_fds(right.get(), got, soon);
  REQUIRE_FALSE(fds);
  CHECK(fds.error().kind == ErrorKind::protocol);
}

TEST_CASE("net: a wait ends at its deadline, and at the other side's end") {
  auto [left, right] = socket_pair();
  std::array<std::byte, 4> got{};
  const auto nothing = receive_exactly(right.get(), got, Deadline::after(1ms));
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().kind == ErrorKind::timeout);
  left.reset();
  const auto closed = receive_exactly(right.get(), got, Deadline::after(5s));
  REQUIRE_FALSE(closed);
  CHECK(closed.error().kind == ErrorKind::system);
}

TEST_CASE("net: our own user is recognized") {
  auto [left, right] = socket_pair();
  CHECK(same_user(left.get()));
}

TEST_CASE("net: local addresses are numeric and end with loopback") {
  const auto addresses = local_addresses({});
  for (const std::string& ip : addresses)
    CHECK(parse_endpoints(to_string(Address{ip, 1})));
  const auto loopback = std::find(addresses.begin(), addresses.end(), "127.0.0.1");
  if (loopback != addresses.end()) {
    for (auto it = loopback; it != addresses.end(); ++it)
      CHECK((*it == "127.0.0.1" || *it == "::1" || it->starts_with("127.")));
  }
}

}  // namespace hora::test
