// The proof is the handshake of every control connection; nothing is said after it, and the server
// takes the end of such a connection for what it is: nobody's.
#include "launcher/reach.h"

#include <algorithm>

#include <fmt/format.h>

#include "elastic/job.h"
#include "elastic/net.h"
#include "runtime/base/handshake.h"

namespace hora {
namespace {

constexpr Duration kPatience = 3s;  // one address may be a black hole, and others not

Result<Reached> try_endpoint(const std::string& text, const Identity& self,
                             const std::string& secret, Deadline deadline) {
  const Deadline soon{std::min(deadline.at, steady_now() + kPatience)};
  auto endpoints = parse_endpoints(text);
  if (!endpoints) return fail(endpoints.error());
  auto socket = connect_endpoint(endpoints->front(), soon);
  if (!socket) return fail(socket.error());
  auto proved = run_handshake(socket->get(), HandshakeRole::initiator, secret, self, Rank(-1),
                              to_ms(soon.left(steady_now())));
  if (!proved) {
    return fail(proved.error().kind, fmt::format("{}: something else than horarun answers ({})",
                                                 text, proved.error().message));
  }
  return Reached{text, own_address(socket->get())};
}

}  // namespace

Result<Reached> reach_rendezvous(const std::vector<std::string>& endpoints, const std::string& job,
                                 const std::string& secret, Rank rank, Deadline deadline) {
  const Identity self{job_id(job), Epoch(0), rank, make_worker_id(), kControlPurpose};
  std::string reasons;
  for (const std::string& endpoint : endpoints) {
    Result<Reached> reached = try_endpoint(endpoint, self, secret, deadline);
    if (reached) return reached;
    reasons += (reasons.empty() ? "" : "; ") + reached.error().message;
  }
  return fail(ErrorKind::timeout,
              fmt::format("cannot reach horarun from there ({}); is it behind a firewall, or does "
                          "--network-interfaces name another network?",
                          reasons.empty() ? "it has no address" : reasons));
}

Result<void> check_interfaces(const std::vector<std::string>& interfaces) {
  if (interfaces.empty() || !local_addresses(interfaces).empty()) return {};
  return fail(ErrorKind::invalid_argument,
              fmt::format("--network-interfaces: none of {} has an address there; it has {}",
                          fmt::join(interfaces, ", "), interface_names()));
}

}  // namespace hora
