#include "tests/transport/link_world.h"

#include <algorithm>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "ops/transport/shm.h"
#include "ops/transport/tcp.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"

namespace hora::test {

namespace {

constexpr Epoch kEpoch{7};

Rank rank_of(std::size_t i) {
  return Rank{static_cast<std::int32_t>(i)};
}

void link_loopback(LinkWorld& world, FaultPlan plan) {
  world.hub = LoopbackHub::make(static_cast<int>(world.members.size()), std::move(plan));
  for (std::size_t i = 0; i < world.members.size(); ++i) {
    Member& member = world.members[i];
    auto end = world.hub->open(rank_of(i), *member.arena, member.area_offset, world.layout, kEpoch,
                               *member.wait_point);
    member.transport = std::move(end.transport);
    member.links = std::move(end.links);
  }
}

void link_tcp(LinkWorld& world) {
  for (std::size_t i = 0; i < world.members.size(); ++i) {
    Member& member = world.members[i];
    auto tcp =
        *TcpTransport::make(*member.arena, member.area_offset, world.layout, kEpoch, rank_of(i));
    member.wait_point->watch(tcp->poll_fd());
    member.transport = std::move(tcp);
    member.links.resize(world.members.size());
  }
  for (std::size_t i = 0; i < world.members.size(); ++i) {
    for (std::size_t j = i + 1; j < world.members.size(); ++j) {
      auto [one, other] = tcp_pair();
      const auto connect = [&](std::size_t self, std::size_t peer, Fd socket) {
        auto& tcp = static_cast<TcpTransport&>(*world.members[self].transport);
        world.members[self].links[peer] =
            tcp.connect(rank_of(peer), std::move(socket), "tcp 127.0.0.1", "");
      };
      connect(i, j, std::move(one));
      connect(j, i, std::move(other));
    }
  }
}

void link_shm(LinkWorld& world) {
  const int size = static_cast<int>(world.members.size());
  for (std::size_t i = 0; i < world.members.size(); ++i) {
    Member& member = world.members[i];
    member.transport = *ShmTransport::make(*member.arena, world.layout, kEpoch, rank_of(i), size);
    member.links.resize(world.members.size());
  }
  for (std::size_t i = 0; i < world.members.size(); ++i) {
    for (std::size_t j = 0; j < world.members.size(); ++j) {
      if (i == j) continue;
      auto& own = static_cast<ShmTransport&>(*world.members[i].transport);
      Member& peer = world.members[j];
      auto mapped = *PeerArena::map(Fd(::fcntl(peer.arena->fd(), F_DUPFD_CLOEXEC, 0)), WorkerId{});
      world.members[i].links[j] = own.connect(
          rank_of(j), std::move(mapped), static_cast<ShmTransport&>(*peer.transport).offer(),
          Fd(::fcntl(peer.wait_point->eventfd(), F_DUPFD_CLOEXEC, 0)));
    }
  }
}

}  // namespace

const char* to_string(Medium medium) {
  switch (medium) {
    case Medium::loopback:
      return "loopback";
    case Medium::tcp:
      return "tcp";
    case Medium::shm:
      return "shm";
  }
  return "?";
}

std::span<std::byte> Member::slot(const LaneLayout& layout, std::uint16_t lane,
                                  std::uint64_t position) {
  return {arena->at(area_offset + layout.slot_offset(lane, position)), layout.slot_bytes};
}

bool Member::step() {
  const bool moved = transport->progress();
  transport->flush();
  return moved;
}

LaneLayout test_layout() {
  return {.lanes = 2, .window = 4, .slot_bytes = (1 << 20) + 4096, .tags = 8};
}

Member make_member(const LaneLayout& layout, bool shared) {
  Member member;
  const std::size_t bytes = kFirstArea + layout.area_bytes() + (std::size_t{4} << 20);
  member.arena = *Arena::make(bytes, WorkerId{}, shared);
  member.area_offset = *member.arena->reserve(layout.area_bytes(), "slots");
  member.wait_point = *WaitPoint::make(member.arena->doorbell());
  return member;
}

LinkWorld::LinkWorld(Medium medium, int size, const LaneLayout& lane_layout, FaultPlan plan)
    : layout(lane_layout) {
  for (int i = 0; i < size; ++i)
    members.push_back(make_member(layout, medium == Medium::shm));
  if (medium == Medium::loopback) link_loopback(*this, std::move(plan));
  if (medium == Medium::tcp) link_tcp(*this);
  if (medium == Medium::shm) link_shm(*this);
}

bool LinkWorld::step_until(const std::function<bool()>& done) {
  const Deadline deadline = Deadline::after(30s);
  while (!done()) {
    for (Member& member : members)
      member.step();
    if (deadline.passed(steady_now())) return false;
  }
  return true;
}

void LinkWorld::settle() {
  // A socket of this host hands over what was written to it before the write returns; two rounds
  // more cost nothing.
  for (int quiet = 0; quiet < 3; ++quiet) {
    for (Member& member : members) {
      if (member.step()) quiet = 0;
    }
  }
}

std::pair<Fd, Fd> tcp_pair() {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  HORA_CHECK(::bind(listener.get(), generic, length) == 0, "a free port");
  HORA_CHECK(::listen(listener.get(), 1) == 0, "a listener");
  HORA_CHECK(::getsockname(listener.get(), generic, &length) == 0, "its port");
  Fd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  HORA_CHECK(::connect(one.get(), generic, length) == 0, "a connection to this host");
  Fd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  HORA_CHECK(other.valid(), "the other end of it");
  return {std::move(one), std::move(other)};
}

namespace {

/// splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Calls `body(offset, bytes, count)` for the eight pseudo-random bytes at each offset.
template <class Body>
bool for_words(std::size_t size, std::uint64_t seed, const Body& body) {
  const std::uint64_t start = mix(seed);
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = mix(start + at / 8);
    if (!body(at, &word, std::min<std::size_t>(8, size - at))) return false;
  }
  return true;
}

}  // namespace

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for_words(bytes.size(), seed, [&](std::size_t at, const void* word, std::size_t count) {
    std::memcpy(bytes.data() + at, word, count);
    return true;
  });
}

bool holds(std::span<const std::byte> bytes, std::uint64_t seed) {
  return for_words(bytes.size(), seed, [&](std::size_t at, const void* word, std::size_t count) {
    return std::memcmp(bytes.data() + at, word, count) == 0;
  });
}

}  // namespace hora::test
