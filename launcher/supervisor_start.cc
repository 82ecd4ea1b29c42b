// Until the workers run: the rendezvous, the other hosts, the processes.
//
// Nothing is started anywhere before every host is ready. While hosts are dialed the loop runs as
// it does later: signals are answered, and what ssh says is read.
#include <algorithm>
#include <csignal>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "elastic/net.h"
#include "launcher/children.h"
#include "launcher/supervision.h"
#include "launcher/this_host.h"

namespace hora {
namespace {

// For an agent to find the rendezvous.
constexpr Duration kReachPatience = 10s;
constexpr std::size_t kMostEndpoints = 16;
constexpr std::size_t kReadBytes = 64 << 10;

}  // namespace

Supervisor::Supervisor(const Job& job, Fd signals, std::unique_ptr<Output> output)
    : job_(job),
      signals_(std::move(signals)),
      output_(std::move(output)),
      termination_(job.times),
      buffer_(kReadBytes),
      seats_(job.slots.size()),
      fleet_(fleet_options(), remote_events()) {}

FleetOptions Supervisor::fleet_options() {
  FleetOptions options;
  options.start_timeout = job_.remote.start_timeout;
  for (const std::vector<Slot>& slots : job_.remote_slots) {
    RemoteHostOptions host;
    host.slots = slots;
    host.command = make_ssh_command(job_.remote.ssh, slots.front().host);
    host.program = job_.remote.ssh_program;
    host.silence_limit = job_.remote.silence_limit;
    host.verbose = job_.verbose;
    host.make_prepare = [this, &slots](const Hello& hello) { return prepare_host(hello, slots); };
    options.hosts.push_back(std::move(host));
    for (const Slot& slot : slots)
      seats_[index_of(slot.rank)].host = slot.host;
  }
  return options;
}

RemoteEvents Supervisor::remote_events() {
  RemoteEvents events;
  events.on_started = [this](Rank rank, std::int64_t pid) {
    seats_[index_of(rank)].pid = pid;
    if (job_.verbose) {
      output_->say(fmt::format("horarun: rank {} is pid {} on {}", rank.value, pid,
                               seats_[index_of(rank)].host));
    }
  };
  events.is_full = [this](Stream stream) { return output_->sink(stream).full(); };
  events.on_output = [this](Rank rank, Stream stream, std::string_view bytes) {
    output_->on_bytes(rank, stream, bytes);
  };
  events.on_output_end = [this](Rank rank, Stream stream) { output_->on_end(rank, stream); };
  events.on_exit = [this](Rank rank, const ExitStatus& status) { on_exit(rank, status); };
  events.say = [this](const std::string& line) { output_->say(line); };
  return events;
}

// The rendezvous under every name it may have over there, the one that ssh used first.
Prepare Supervisor::prepare_host(const Hello& hello, const std::vector<Slot>& slots) const {
  std::vector<std::string> ips = local_addresses(job_.remote.interfaces);
  const auto known = std::find(ips.begin(), ips.end(), hello.ssh_client);
  if (known != ips.end()) {
    std::rotate(ips.begin(), known, known + 1);
  } else if (!hello.ssh_client.empty() && job_.remote.interfaces.empty()) {
    ips.insert(ips.begin(), hello.ssh_client);  // behind a translated address
  }
  Prepare prepare;
  prepare.job = facts_.id;
  prepare.secret = facts_.secret;
  for (const std::string& ip : ips) {
    if (prepare.endpoints.size() < kMostEndpoints) {
      prepare.endpoints.push_back(to_string(Address{ip, server_->port()}));
    }
  }
  prepare.interfaces = job_.remote.interfaces;
  prepare.arguments = job_.arguments;
  prepare.environment = job_.travelling_environment;
  prepare.directory = current_directory(find_variable(job_.own_environment, "PWD").value_or(""));
  prepare.slots = slots;
  prepare.silence_ms = static_cast<std::uint32_t>(to_ms(job_.remote.silence_limit));
  prepare.patience_ms = static_cast<std::uint32_t>(
      to_ms(std::min<Duration>(kReachPatience, job_.remote.silence_limit / 2)));
  return prepare;
}

Result<void> Supervisor::prepare() {
  raise_open_files(job_.inherited);
  Result<Fd> children = adopt_and_watch_children();
  if (!children) return fail(std::move(children.error()));
  children_ = std::move(*children);
  Result<std::string> id = make_random_hex(16);
  Result<std::string> secret = make_random_hex(32);
  if (!id) return fail(std::move(id.error()));
  if (!secret) return fail(std::move(secret.error()));
  facts_.id = std::move(*id);
  facts_.secret = std::move(*secret);
  return start_server();
}

Result<void> Supervisor::start_server() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("pipe");
  notices_ = Fd(fds[0]);
  notices_write_ = Fd(fds[1]);
  JobServerOptions options;
  options.job = facts_.id;
  options.secret = facts_.secret;
  options.size = static_cast<int>(job_.slots.size());
  options.min_size = job_.min_size;
  options.all_interfaces = !fleet_.empty();
  options.heartbeat_limit = job_.heartbeat_limit;
  options.log_level = job_.log_level;
  // One line per message, written whole or not at all; a full pipe loses one of very many.
  const auto post = [fd = fds[1]](char kind, std::string_view text) {
    std::string line = kind + std::string(text.substr(0, PIPE_BUF - 2));
    std::replace(line.begin(), line.end(), '\n', ' ');
    line += '\n';
    [[maybe_unused]] const ssize_t written = ::write(fd, line.data(), line.size());
  };
  options.on_notice = [post](const std::string& text) { post(kNotice, text); };
  options.on_last_words = [post](Rank rank) { post(kLastWords, std::to_string(rank.value)); };
  options.on_left_out = [post](Rank rank) { post(kLeftOut, std::to_string(rank.value)); };
  Result<std::unique_ptr<JobServer>> server = start_rendezvous(std::move(options));
  if (!server) return fail(std::move(server.error()));
  server_ = std::move(*server);
  facts_.rendezvous = to_string(Address{"127.0.0.1", server_->port()});
  return {};
}

int Supervisor::connect_hosts() {
  const auto dialed = fleet_.dial(job_.own_environment, job_.inherited,
                                  [this](pid_t pid) { workers_.add_helper(pid); });
  Fleet::Start start = Fleet::Start::failed;
  if (!dialed) output_->say("horarun: " + dialed.error().message);
  while (dialed && termination_.phase() == Termination::Phase::running && !termination_.signal()) {
    fleet_.step(steady_now());
    start = fleet_.check_start(steady_now());
    if (start != Fleet::Start::waiting) break;
    wait(fleet_.deadline());
  }
  if (start != Fleet::Start::ready) {
    close_fleet();
    flush_while([&] { return !output_->sink(Stream::err).empty(); }, {});
    return termination_.signal() ? termination_.exit_code() : fleet_.start_exit_code();
  }
  // The address that the first of them found is the one that others know this host by.
  const auto endpoint = parse_endpoints(fleet_.hosts().front()->ready().endpoint);
  if (endpoint) facts_.address = endpoint->front().host;
  return 0;
}

Result<void> Supervisor::start_workers() {
  const bool first_is_here = !job_.local_slots.empty() && job_.local_slots.front().rank == Rank(0);
  if (first_is_here) {
    HORA_TRY(workers_.open_stdin());
  } else if (auto none = workers_.open_remote_stdin(false); !none) {
    return fail(std::move(none.error()));
  }
  if (!fleet_.empty()) fleet_.start_workers();
  for (const Slot& slot : job_.local_slots) {
    const Environment environment = make_worker_environment(job_.environment, facts_, slot);
    HORA_TRY(workers_.start({job_.program, job_.arguments, environment, job_.inherited}, slot));
    seats_[index_of(slot.rank)].pid = workers_.find(slot.rank)->pid;
    if (!job_.verbose) continue;
    output_->say(fmt::format("horarun: rank {} is pid {} (local rank {} of {}): {}",
                             slot.rank.value, seats_[index_of(slot.rank)].pid, slot.local_rank,
                             slot.local_size, fmt::join(job_.arguments, " ")));
  }
  return {};
}

}  // namespace hora
