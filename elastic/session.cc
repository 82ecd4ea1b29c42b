// See session.h. The mesh brings connected, proved sockets and mapped memory; session_links.cc
// makes links of them. Whatever fails, the arena's areas are given back, so that building can be
// tried again.
#include "elastic/session.h"

#include <utility>

#include "elastic/session_links.h"

namespace hora {

namespace {

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
  auto memory = offer_memory(world, arena, wait_point, options.layout, options.config);
  if (!memory) return fail(memory.error());
  auto mesh = connect_mesh(world, listeners, memory->own, options);
  if (!mesh) return fail(mesh.error());
  if (world.min_size == 0) {  // Otherwise the members of the next World come to them.
    listeners.tcp.reset();
    listeners.unix_socket.reset();
  }
  HORA_TRY(link_up(*session, std::move(memory->transport), std::move(*mesh), arena, wait_point,
                   options.config));
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
