// The JobServer of a real job: elastic/rendezvous_server.h, on the loopback address as long as all
// workers are here.
//
// The supervisor's word explains a death better than the end of a socket does, so the server waits
// a second for it: waitpid() answers within milliseconds, unless this host is very busy.
#include "launcher/job_server.h"

#include "elastic/net.h"
#include "elastic/rendezvous_server.h"
#include "launcher/this_host.h"

namespace hora {
namespace {

constexpr Duration kEvidenceGrace = 1s;

class RendezvousJobServer final : public JobServer {
 public:
  RendezvousJobServer(std::unique_ptr<RendezvousServer> server, std::uint16_t port)
      : server_(std::move(server)), port_(port) {}

  [[nodiscard]] std::uint16_t port() const override { return port_; }
  void announce_exit(Rank rank, const std::string& how) override {
    server_->announce_exit(rank, how);
  }
  [[nodiscard]] std::uint64_t strangers() const override { return server_->stats().strangers; }

 private:
  std::unique_ptr<RendezvousServer> server_;
  std::uint16_t port_;
};

// "::" takes IPv4 as well, where the kernel has IPv6 at all.
Result<std::unique_ptr<RendezvousServer>> start_server(RendezvousServerOptions options,
                                                       bool all_interfaces) {
  if (!all_interfaces) return RendezvousServer::start(std::move(options));
  options.ip = "::";
  auto server = RendezvousServer::start(options);
  if (server) return server;
  options.ip = "0.0.0.0";
  return RendezvousServer::start(std::move(options));
}

}  // namespace

Result<std::unique_ptr<JobServer>> start_rendezvous(JobServerOptions options) {
  RendezvousServerOptions server_options;
  server_options.size = options.size;
  server_options.min_size = options.min_size;
  server_options.job = std::move(options.job);
  server_options.secret = std::move(options.secret);
  server_options.heartbeat_limit = options.heartbeat_limit;
  server_options.evidence_grace = kEvidenceGrace;
  server_options.log = Log(options.log_level, "horarun");
  server_options.inspect = [here = own_name()](const Member& member) {
    return member.host_name == here ? process_state(member.pid) : std::string();
  };
  server_options.on_changed = options.on_notice;
  server_options.on_left_out = [left_out = std::move(options.on_left_out)](
                                   Rank rank, const std::string&) { left_out(rank); };
  const auto pass_on = [notice = std::move(options.on_notice)](Rank, const std::string& text) {
    notice(text);
  };
  // Not on_lost: the supervisor itself reports the end of a process, with its last lines.
  server_options.on_silent = pass_on;
  server_options.on_back = pass_on;
  server_options.on_report = [last_words = std::move(options.on_last_words)](
                                 Rank rank, const std::string&) { last_words(rank); };
  auto server = start_server(std::move(server_options), options.all_interfaces);
  if (!server) return fail(std::move(server.error()));
  auto endpoint = parse_endpoints((*server)->endpoint());
  if (!endpoint) return fail(std::move(endpoint.error()));
  return std::make_unique<RendezvousJobServer>(std::move(*server), endpoint->front().port);
}

}  // namespace hora
