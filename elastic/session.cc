// See session.h. The mesh brings connected, proved sockets and mapped memory; here they become
// links. Transports are made only if some link needs them. Whatever fails, the arena's areas are
// given back, so that building can be tried again.
#include "elastic/session.h"

#include <string>
#include <utility>

#include "elastic/mesh.h"
#include "elastic/net.h"
#include "ops/transport/shm.h"
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

/// Makes the transports that are needed and a link from everybody who was reached.
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

Result<std::unique_ptr<Session>> build(const World& world, Listeners& listeners, Arena& arena,
                                       WaitPoint& wait_point, const SessionOptions& options,
                                       std::size_t area_offset) {
  auto session = std::make_unique<Session>();
  session->world = world;
  session->layout = options.layout;
  session->area_offset = area_offset;
  if (world.size() == 1) {
    session->links.resize(1);
    session->witnesses.resize(1);
    return session;
  }
  std::unique_ptr<ShmTransport> memory;
  OwnMemory own;
  if (wants_memory(world, arena, options.config)) {
    auto made = ShmTransport::make(arena, options.layout, world.epoch, world.self, world.size());
    if (!made) return fail(made.error());
    memory = std::move(*made);
    if (const auto sends = fault_point(options.config.fault, "kill-at-publish")) {
      memory->set_fault_at_publish(*sends);
    }
    own = {true, arena.fd(), wait_point.eventfd(), memory->offer()};
  }
  auto mesh = connect_mesh(world, listeners, own, options);
  if (!mesh) return fail(mesh.error());
  listeners.tcp.reset();
  listeners.unix_socket.reset();
  HORA_TRY(
      link_up(*session, std::move(memory), std::move(*mesh), arena, wait_point, options.config));
  return session;
}

}  // namespace

bool Session::views_only() const {
  for (const auto& link : links) {
    if (link && !link->shares_memory()) return false;
  }
  return true;
}

Result<std::unique_ptr<Session>> build_session(const World& world, Listeners& listeners,
                                               Arena& arena, WaitPoint& wait_point,
                                               const SessionOptions& options) {
  auto area = arena.reserve(static_cast<std::size_t>(options.layout.area_bytes()), "slots");
  if (!area) return fail(area.error());
  auto session = build(world, listeners, arena, wait_point, options, *area);
  if (!session) arena.release_from(*area);
  return session;
}

}  // namespace hora
