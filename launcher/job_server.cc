// The JobServer of a real job: elastic/rendezvous_server.h, on the loopback address.
//
// The supervisor's word explains a death better than the end of a socket does, so the server waits
// a second for it: waitpid() answers within milliseconds, unless this host is very busy.
#include "launcher/job_server.h"

#include "elastic/rendezvous_server.h"

namespace hora {
namespace {

constexpr Duration kEvidenceGrace = 1s;

class RendezvousJobServer final : public JobServer {
 public:
  explicit RendezvousJobServer(std::unique_ptr<RendezvousServer> server)
      : server_(std::move(server)) {}

  [[nodiscard]] std::string address() const override { return server_->endpoint(); }
  void announce_exit(Rank rank, const std::string& how) override {
    server_->announce_exit(rank, how);
  }

 private:
  std::unique_ptr<RendezvousServer> server_;
};

}  // namespace

Result<std::unique_ptr<JobServer>> start_rendezvous(JobServerOptions options) {
  RendezvousServerOptions server_options;
  server_options.size = options.size;
  server_options.job = std::move(options.job);
  server_options.secret = std::move(options.secret);
  server_options.heartbeat_limit = options.heartbeat_limit;
  server_options.evidence_grace = kEvidenceGrace;
  server_options.log = Log(options.log_level, "horarun");
  server_options.inspect = [](const Member& member) { return process_state(member.pid); };
  const auto pass_on = [notice = std::move(options.on_notice)](Rank, const std::string& text) {
    notice(text);
  };
  // Not on_lost: the supervisor itself reports the end of a process, with its last lines.
  server_options.on_silent = pass_on;
  server_options.on_back = pass_on;
  server_options.on_report = [last_words = std::move(options.on_last_words)](
                                 Rank rank, const std::string&) { last_words(rank); };
  Result<std::unique_ptr<RendezvousServer>> server =
      RendezvousServer::start(std::move(server_options));
  if (!server) return fail(std::move(server.error()));
  return std::make_unique<RendezvousJobServer>(std::move(*server));
}

}  // namespace hora
