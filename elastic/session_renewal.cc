#include "elastic/session_renewal.h"

#include <chrono>
#include <string>
#include <system_error>
#include <utility>

namespace hora {

SessionRenewal::SessionRenewal(const RenewalOptions& options, Listeners listeners)
    : options_(options), listeners_(std::move(listeners)) {}

SessionRenewal::~SessionRenewal() {
  give_up();
}

void SessionRenewal::give_up() {
  given_up_.store(true, std::memory_order_relaxed);
  thread_.join();
  given_up_.store(false, std::memory_order_relaxed);
  met_.store(false, std::memory_order_relaxed);
  mesh_.reset();
  memory_.reset();
  failed_.reset();
}

void SessionRenewal::start(const World& world) {
  give_up();
  world_ = world;
  if (world.size() == 1) return;
  // Behind the slots, which stay, everything is laid out anew.
  options_.arena.release_from(options_.area_offset +
                              static_cast<std::size_t>(options_.layout.area_bytes()));
  auto memory =
      offer_memory(world_, options_.arena, options_.wait_point, options_.layout, options_.config);
  if (!memory) {
    failed_ = memory.error();
    return;
  }
  memory_ = std::move(memory->transport);
  const OwnMemory own = memory->own;
  const auto meet = [this, own] {
    const auto cancelled = [this]() -> std::optional<Error> {
      if (!given_up_.load(std::memory_order_relaxed)) return std::nullopt;
      return Error{ErrorKind::interrupted, "another World follows", std::nullopt};
    };
    const SessionOptions options{
        options_.config, options_.placement, options_.layout,
        Deadline::after(std::chrono::milliseconds(options_.config.start_timeout_ms)), cancelled};
    mesh_.emplace(connect_mesh(world_, listeners_, own, options));
    met_.store(true, std::memory_order_release);
    options_.wait_point.wake();
  };
  try {
    thread_.start("hora-mesh", meet);
  } catch (const std::system_error& e) {
    failed_ = Error{ErrorKind::resource,
                    std::string("no thread to meet the next World: ") + e.what(), std::nullopt};
  }
}

Result<std::unique_ptr<Session>> SessionRenewal::poll() {
  if (failed_) return fail(*failed_);
  auto session = std::make_unique<Session>();
  session->world = world_;
  session->layout = options_.layout;
  session->area_offset = options_.area_offset;
  if (world_.size() == 1) {
    session->links.resize(1);
    session->witnesses.resize(1);
    return session;
  }
  if (!met_.load(std::memory_order_acquire)) return nullptr;
  thread_.join();
  met_.store(false, std::memory_order_relaxed);
  if (!*mesh_) return fail(mesh_->error());
  MeshResult mesh = std::move(**mesh_);
  mesh_.reset();
  HORA_TRY(link_up(*session, std::move(memory_), std::move(mesh), options_.arena,
                   options_.wait_point, options_.config));
  return session;
}

}  // namespace hora
