// Session: a World plus its live links and mappings. Built whole, thrown away whole.
//
// Building: every pair of members makes one connection, the higher rank connects. Members whose
// host ids agree meet on an abstract unix socket, prove the job's secret, and pass memfd and
// eventfd; if that does not work, or HORA_TRANSPORT says so, they use TCP like everybody else.
// Strangers are dropped and counted.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/control.h"
#include "elastic/world.h"
#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/config.h"
#include "runtime/base/wait_point.h"

namespace hora {

/// Watches a transport's descriptor as long as it lives; the WaitPoint lives longer.
class WatchGuard {
 public:
  WatchGuard(WaitPoint& wait_point, int fd) : wait_point_(wait_point), fd_(fd) {
    wait_point_.watch(fd_);
  }
  ~WatchGuard() { wait_point_.unwatch(fd_); }
  WatchGuard(const WatchGuard&) = delete;
  WatchGuard& operator=(const WatchGuard&) = delete;

 private:
  WaitPoint& wait_point_;
  int fd_;
};

/// Live links to all members. Owner: the progress token. Destroyed before its arena and wait point.
struct Session {
  World world;
  LaneLayout layout;
  std::size_t area_offset = 0;                         ///< Of the slots in the own arena.
  std::vector<std::unique_ptr<Transport>> transports;  // destroyed after links
  std::unique_ptr<WatchGuard> watch;                   ///< Of the sockets, if there are any.
  std::vector<std::unique_ptr<Link>> links;            ///< By rank; null at self.
  /// By rank; valid where memory was passed: the socket over which it was. Its end proves a death,
  /// and the io thread may watch it (Control::watch).
  std::vector<Fd> witnesses;

  /// All links share memory: receives are views, landing buffers are not laid out.
  [[nodiscard]] bool views_only() const;
};

struct SessionOptions {
  const Config& config;
  const Placement& placement;  ///< For the secret.
  LaneLayout layout;
  Deadline deadline;
  /// Asked every 50 ms or so: why it makes no sense to go on (a member is lost), if anything.
  std::function<std::optional<Error>()> given_up{};
};

/// Builds the session of `world`. Errors name the peer and the address that could not be reached.
Result<std::unique_ptr<Session>> build_session(const World& world, Listeners& listeners,
                                               Arena& arena, WaitPoint& wait_point,
                                               const SessionOptions& options);

/// Opens the listeners of this worker: an abstract unix socket unless HORA_TRANSPORT=tcp, and TCP
/// on all addresses, or on loopback alone if all ranks are on one host. A job of one opens nothing.
Result<Listeners> open_listeners(const Config& config, const Placement& placement);

/// Names the memory that this process can share: config.host_id, or boot id and network namespace.
std::string host_id(const Config& config);
/// For messages; never resolved.
std::string host_name();

}  // namespace hora
