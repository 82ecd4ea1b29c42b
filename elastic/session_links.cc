// See session_links.h. Transports are made only if some link needs them.
#include "elastic/session_links.h"

#include <string>
#include <utility>

#include "elastic/net.h"
#include "ops/transport/tcp.h"
#include "runtime/base/fault.h"

namespace hora {

namespace {

/// Some other member may share memory with this one.
bool wants_memory(const World& world, const Arena& arena, const Config& config) {
  if (config.transport == "tcp" || arena.fd() < 0) return false;
  for (int value = 0; value < world.size(); ++value) {
    const Member& member = world.members[static_cast<std::size_t>(value)];
    if (Rank(value) != world.self && member.host_id == world.me().host_id &&
        !member.unix_name.empty() && !world.me().unix_name.empty()) {
      return true;
    }
  }
  return false;
}

}  // namespace

Result<MemorySide> offer_memory(const World& world, Arena& arena, WaitPoint& wait_point,
                                const LaneLayout& layout, const Config& config) {
  MemorySide side;
  if (!wants_memory(world, arena, config)) return side;
  auto made = ShmTransport::make(arena, layout, world.epoch, world.self, world.size());
  if (!made) return fail(made.error());
  side.transport = std::move(*made);
  if (const auto sends = fault_point(config.fault, "kill-at-publish")) {
    side.transport->set_fault_at_publish(*sends);
  }
  side.own = {true, arena.fd(), wait_point.eventfd(), side.transport->offer()};
  return side;
}

Result<void> link_up(Session& session, std::unique_ptr<ShmTransport> memory, MeshResult mesh,
                     Arena& arena, WaitPoint& wait_point, const Config& config) {
  const World& world = session.world;
  std::unique_ptr<TcpTransport> tcp;
  session.links.resize(world.members.size());
  session.witnesses.resize(world.members.size());
  bool memory_used = false;
  for (int value = 0; value < world.size(); ++value) {
    const Rank peer(value);
    if (peer == world.self) continue;
    Reached& reached = mesh.peers[index_of(peer)];
    if (reached.arena) {
      session.links[index_of(peer)] = memory->connect(peer, std::move(reached.arena), reached.offer,
                                                      std::move(reached.eventfd));
      session.witnesses[index_of(peer)] = std::move(reached.socket);
      memory_used = true;
      continue;
    }
    if (!tcp) {
      auto made =
          TcpTransport::make(arena, session.area_offset, session.layout, world.epoch, world.self);
      if (!made) return fail(made.error());
      tcp = std::move(*made);
      if (const auto bytes = fault_point(config.fault, "kill-mid-frame")) {
        tcp->set_fault_after_bytes(*bytes);
      }
    }
    const Member& member = world.members[index_of(peer)];
    std::string where = "pid " + std::to_string(member.pid) + " on " + member.host_name + ", tcp " +
                        peer_address(reached.socket.get());
    session.links[index_of(peer)] =
        tcp->connect(peer, std::move(reached.socket), std::move(where), config.congestion);
  }
  if (memory_used) session.transports.push_back(std::move(memory));
  if (tcp) {
    session.watch = std::make_unique<WatchGuard>(wait_point, tcp->poll_fd());
    session.transports.push_back(std::move(tcp));
  }
  return {};
}

}  // namespace hora
