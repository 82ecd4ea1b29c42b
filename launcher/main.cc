// horarun: reads the command line, checks everything that can be checked before a process is
// started, and runs the job under a guard.
//
// Exit codes:
//
//   the first failed worker's   128 + n if signal n killed it; 0 if none failed. With --min-np:
//                               of the one with which too few were left
//   128 + n                     signal n ended horarun
//   1                           another host cannot be used; 255: it was lost while workers ran
//   2                           a mistake on the command line or in a HORA_ variable
//   126, 127                    as in a shell: the command cannot be run, or is not found
#include <cstdio>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "launcher/agent.h"
#include "launcher/config_file.h"
#include "launcher/environment.h"
#include "launcher/guard.h"
#include "launcher/options.h"
#include "launcher/plan.h"
#include "launcher/reach.h"
#include "launcher/spawn.h"
#include "launcher/supervisor.h"
#include "launcher/this_host.h"
#include "runtime/base/config.h"

namespace hora {
namespace {

constexpr int kUsageError = 2;

int complain(int code, std::string_view message) {
  fmt::print(stderr, "horarun: {}\n", message);
  return code;
}

// A closed standard descriptor would be taken by the next pipe, and a worker's output go astray.
void open_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

Result<std::string> read_text_file(const std::string& path) {
  constexpr std::size_t kMostBytes = 1 << 20;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return fail_errno(fmt::format("cannot open '{}'", path));
  std::string text(kMostBytes + 1, '\0');
  std::size_t have = 0;
  ssize_t got = 0;
  while (have < text.size() &&
         (got = ::read(file.get(), text.data() + have, text.size() - have)) > 0) {
    have += static_cast<std::size_t>(got);
  }
  if (got < 0) return fail_errno(fmt::format("cannot read '{}'", path));
  if (have > kMostBytes) {
    return fail(ErrorKind::invalid_argument, fmt::format("'{}' is larger than 1 MB", path));
  }
  text.resize(have);
  return text;
}

Result<std::vector<Host>> read_hosts(const RunOptions& options) {
  if (!options.hosts.empty()) return parse_hosts(options.hosts);
  if (options.hostfile.empty()) return std::vector<Host>();
  Result<std::string> text = read_text_file(options.hostfile);
  if (!text) return fail(text.error().kind, "--hostfile: " + text.error().message);
  return parse_hostfile(*text, options.hostfile);
}

// Deals the slots, and tells those of this host from the others'.
Result<void> plan_job(const RunOptions& options, Job& job) {
  Result<std::vector<Host>> hosts = read_hosts(options);
  if (!hosts) return fail(std::move(hosts.error()));
  Result<std::vector<Slot>> slots = plan_slots(*hosts, options.num_proc);
  if (!slots) return fail(std::move(slots.error()));
  job.slots = std::move(*slots);
  for (const std::vector<Slot>& group : group_by_host(job.slots)) {
    if (is_this_host(group.front().host)) {
      job.local_slots.insert(job.local_slots.end(), group.begin(), group.end());
    } else {
      job.remote_slots.push_back(group);
    }
  }
  return {};
}

Result<void> plan_remote_access(const RunOptions& options, const Config& config, Job& job) {
  job.remote.interfaces = options.network_interfaces;
  job.remote.start_timeout = std::chrono::milliseconds(config.start_timeout_ms);
  job.remote.silence_limit = std::chrono::milliseconds(config.host_timeout_ms);
  HORA_TRY(check_interfaces(options.network_interfaces));
  if (job.remote_slots.empty()) return {};
  SshOptions& ssh = job.remote.ssh;
  ssh.program = split_words(config.ssh);
  if (ssh.program.empty()) return fail(ErrorKind::invalid_argument, "HORA_SSH is empty");
  ssh.port = options.ssh_port;
  ssh.identity_file = options.ssh_identity_file;
  ssh.own_horarun = own_program();
  ssh.remote_horarun = options.remote_horarun;
  ssh.connect_timeout_s = static_cast<int>(config.start_timeout_ms / 1000) + 1;
  auto program = find_program(ssh.program.front(), find_variable(job.own_environment, "PATH"));
  if (!program) {
    return fail(ErrorKind::system,
                fmt::format("to reach host '{}': {}", job.remote_slots.front().front().host,
                            program.error().message));
  }
  job.remote.ssh_program = std::move(*program);
  return {};
}

Result<Tuning> read_tuning(const RunOptions& options) {
  std::vector<FileSetting> settings;
  if (!options.config_file.empty()) {
    Result<std::string> text = read_text_file(options.config_file);
    if (!text) return fail(text.error().kind, "--config-file: " + text.error().message);
    auto parsed = parse_config_file(*text, options.config_file);
    if (!parsed) return fail(std::move(parsed.error()));
    settings = std::move(*parsed);
  }
  return plan_tuning(options.tuning, settings, options.config_file);
}

// The workers would all reject a bad HORA_ variable; it is better said once, here.
Result<Config> read_knobs(const Environment& environment) {
  return read_config([&](const std::string& name) { return find_variable(environment, name); });
}

// What the user should know although nothing is wrong.
void tell_choices(const Tuning& tuning, const std::optional<int>& threads, std::size_t workers) {
  if (threads) {
    fmt::print(stderr,
               "horarun: OMP_NUM_THREADS={} for each rank ({} cores, {} ranks); set it to choose\n",
               *threads, usable_cores(), workers);
  }
  if (!tuning.without_effect.empty()) {
    fmt::print(stderr, "horarun: accepted, but without effect in Hora: {}\n",
               fmt::join(tuning.without_effect, ", "));
  }
}

int run_job(const RunOptions& options, const Environment& own, const Inherited& inherited) {
  Job job;
  if (auto planned = plan_job(options, job); !planned) {
    return complain(kUsageError, planned.error().message);
  }
  job.min_size = options.min_np.value_or(0);
  if (job.min_size > static_cast<int>(job.slots.size())) {
    return complain(kUsageError, fmt::format("--min-np {} is more than the {} ranks of the job",
                                             job.min_size, job.slots.size()));
  }
  if (options.max_np && *options.max_np < static_cast<int>(job.slots.size())) {
    return complain(kUsageError, fmt::format("--max-np {} is less than the {} ranks of the job",
                                             *options.max_np, job.slots.size()));
  }
  Result<Tuning> tuning = read_tuning(options);
  if (!tuning) return complain(kUsageError, tuning.error().message);
  Result<Environment> environment = make_job_environment(
      own, {options.assignments, options.start_timeout_ms, std::move(tuning->assignments),
            options.network_interfaces, options.horovod_compat});
  if (!environment) return complain(kUsageError, environment.error().message);
  job.environment = std::move(*environment);
  job.own_environment = own;
  const Result<Config> config = read_knobs(job.environment);
  if (!config) return complain(kUsageError, config.error().message);
  job.heartbeat_limit = std::chrono::milliseconds(config->heartbeat_timeout_ms);
  job.log_level = log_level_from(config->log_level);
  if (auto planned = plan_remote_access(options, *config, job); !planned) {
    return complain(kUsageError, planned.error().message);
  }
  if (!job.local_slots.empty()) {
    auto program = find_program(options.command.front(), find_variable(job.environment, "PATH"));
    if (!program) return complain(program.error().exit_code, program.error().message);
    job.program = std::move(*program);
  }
  job.arguments = options.command;
  job.output.workers = static_cast<int>(job.slots.size());
  job.output.directory = options.output_directory;
  job.output.timestamp = options.prefix_timestamp;
  job.inherited = inherited;
  job.verbose = options.verbose;
  job.quiet = options.quiet;
  // Other hosts have other cores, and Horovod's aliases elsewhere: their agents see to both.
  job.travelling_environment = make_travelling_environment(job.environment);
  if (auto added = add_horovod_aliases(job.environment, own_program()); !added) {
    return complain(kUsageError, added.error().message);
  }
  const std::size_t here = job.local_slots.size();
  const std::optional<int> threads =
      here == 0 ? std::nullopt
                : share_out_threads(job.environment, usable_cores(), static_cast<int>(here));
  if (!options.quiet) tell_choices(*tuning, threads, here);
  const Result<int> code =
      run_guarded(inherited, [&](Fd signals) { return supervise(job, std::move(signals)); });
  return code ? *code : complain(1, code.error().message);
}

// The other end of a horarun on another host.
int run_agent_command(const Environment& own, const Inherited& inherited) {
  const Result<int> code = run_guarded(
      inherited, [&](Fd signals) { return run_agent(inherited, own, std::move(signals)); });
  return code ? *code : complain(1, code.error().message);
}

int run_command_line(int argc, char** argv, char** envp) {
  open_standard_descriptors();
  const Inherited inherited = read_inherited();
  Environment own;
  for (char** entry = envp; *entry != nullptr; ++entry)
    own.emplace_back(*entry);
  if (argc == 2 && std::string_view(argv[1]) == "--host-agent") {
    return run_agent_command(own, inherited);
  }
  auto parsed = parse_options({argv + 1, argv + argc});
  if (!parsed) return complain(kUsageError, parsed.error().message);
  if (const Answer* answer = std::get_if<Answer>(&*parsed)) {
    fmt::print("{}", answer->text);
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  return run_job(std::get<RunOptions>(*parsed), own, inherited);
}

}  // namespace
}  // namespace hora

int main(int argc, char** argv, char** envp) {
  return hora::run_command_line(argc, argv, envp);
}
