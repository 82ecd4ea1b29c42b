// Environments are small (a hundred entries) and made once per worker, so a linear search is
// enough. Names that horarun sets are removed before they are set: of two equal names execve()
// passes on both, and which one a program sees is its own affair.
#include "launcher/environment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <fmt/format.h>
#include <sched.h>
#include <sys/random.h>

namespace hora {
namespace {

constexpr std::string_view kStartTimeout = "HORA_START_TIMEOUT_MS";
constexpr std::string_view kThreads = "OMP_NUM_THREADS";
constexpr std::string_view kHorovodCompat = "HORA_HOROVOD_COMPAT";
constexpr std::string_view kPythonPath = "PYTHONPATH";

constexpr std::array<std::string_view, 9> kOwnVariables = {
    "HORA_JOB",        "HORA_SECRET",     "HORA_RENDEZVOUS", "HORA_RANK",      "HORA_SIZE",
    "HORA_LOCAL_RANK", "HORA_LOCAL_SIZE", "HORA_CROSS_RANK", "HORA_CROSS_SIZE"};

bool assigns(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
}

void set(Environment& environment, std::string_view name, std::string_view value) {
  std::erase_if(environment, [&](const std::string& entry) { return assigns(entry, name); });
  environment.push_back(fmt::format("{}={}", name, value));
}

// Variables of a login, a terminal or a device: another host has its own.
bool stays_at_home(std::string_view name) {
  constexpr std::array kNames = {"HOME",
                                 "USER",
                                 "LOGNAME",
                                 "SHELL",
                                 "MAIL",
                                 "PWD",
                                 "OLDPWD",
                                 "SHLVL",
                                 "_",
                                 "HOSTNAME",
                                 "DISPLAY",
                                 "XAUTHORITY",
                                 "DBUS_SESSION_BUS_ADDRESS"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         name.starts_with("SSH_") || name.starts_with("XDG_") || name.starts_with("BASH_FUNC_") ||
         name.ends_with("CUDA_VISIBLE_DEVICES");
}

// Cores worth of time per period in control group v2, if there is a limit.
std::optional<double> cpu_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) return quota / period;
  return std::nullopt;  // no such file, or "max"
}

}  // namespace

std::optional<std::string> find_variable(const Environment& environment, std::string_view name) {
  for (const std::string& entry : environment) {
    if (assigns(entry, name)) return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

Result<Environment> make_job_environment(const Environment& own,
                                         const EnvironmentOptions& options) {
  Environment result = own;
  // Python buffers whole blocks when stdout is a pipe: lines would come late, and
  // be lost in a crash.
  if (!find_variable(own, "PYTHONUNBUFFERED")) set(result, "PYTHONUNBUFFERED", "1");
  if (options.start_timeout_ms) {
    set(result, kStartTimeout, std::to_string(*options.start_timeout_ms));
  }
  if (!options.network_interfaces.empty()) {
    const std::string names = fmt::format("{}", fmt::join(options.network_interfaces, ","));
    set(result, "HORA_NETWORK_INTERFACES", names);
    set(result, "HOROVOD_GLOO_IFACE", options.network_interfaces.front());
    set(result, "NCCL_SOCKET_IFNAME", names);
  }
  if (options.horovod_compat) set(result, kHorovodCompat, "1");
  for (const Assignment& tuned : options.tuning)
    set(result, tuned.name, tuned.value);
  for (const auto& [name, value] : options.assignments) {
    if (std::find(kOwnVariables.begin(), kOwnVariables.end(), name) != kOwnVariables.end()) {
      return fail(ErrorKind::invalid_argument,
                  fmt::format("--env: {} is set by horarun itself for each rank", name));
    }
    set(result, name, value);
  }
  return result;
}

std::optional<int> share_out_threads(Environment& environment, int cores, int workers) {
  if (find_variable(environment, kThreads)) return std::nullopt;
  const int threads = omp_threads_for(cores, workers);
  set(environment, kThreads, std::to_string(threads));
  return threads;
}

Result<void> add_horovod_aliases(Environment& environment, const std::string& program) {
  if (find_variable(environment, kHorovodCompat) != "1") return {};
  // In the Python package: hora/bin/horarun, hora/horovod_compat/horovod.
  const auto folder = std::filesystem::path(program).parent_path().parent_path() / "horovod_compat";
  std::error_code error;
  if (!std::filesystem::is_directory(folder / "horovod", error)) {
    return fail(ErrorKind::unsupported,
                fmt::format("--horovod-compat: the package 'horovod' is looked for in {}, where it "
                            "is not; use the horarun that comes with the Python package hora",
                            folder.string()));
  }
  const std::string others = find_variable(environment, kPythonPath).value_or("");
  set(environment, kPythonPath, folder.string() + (others.empty() ? "" : ":") + others);
  return {};
}

Environment make_travelling_environment(const Environment& job_environment) {
  Environment result = job_environment;
  std::erase_if(result, [](const std::string& entry) {
    return stays_at_home(std::string_view(entry).substr(0, entry.find('=')));
  });
  return result;
}

Environment merge_environments(const Environment& travelled, const Environment& host) {
  Environment result = travelled;
  for (const std::string& entry : host) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    if (!find_variable(travelled, name)) result.push_back(entry);
  }
  return result;
}

Environment make_worker_environment(const Environment& job_environment, const JobFacts& job,
                                    const Slot& slot) {
  Environment result = job_environment;
  set(result, "HORA_JOB", job.id);
  set(result, "HORA_SECRET", job.secret);
  set(result, "HORA_RENDEZVOUS", job.rendezvous);
  if (!job.address.empty()) set(result, "HORA_HOST_ADDRESS", job.address);
  set(result, "HORA_RANK", std::to_string(slot.rank.value));
  set(result, "HORA_SIZE", std::to_string(slot.size));
  set(result, "HORA_LOCAL_RANK", std::to_string(slot.local_rank));
  set(result, "HORA_LOCAL_SIZE", std::to_string(slot.local_size));
  set(result, "HORA_CROSS_RANK", std::to_string(slot.cross_rank));
  set(result, "HORA_CROSS_SIZE", std::to_string(slot.cross_size));
  // Scripts written for Horovod look for its names before they initialize.
  set(result, "HOROVOD_HOSTNAME", slot.host);
  set(result, "HOROVOD_RANK", std::to_string(slot.rank.value));
  set(result, "HOROVOD_SIZE", std::to_string(slot.size));
  set(result, "HOROVOD_LOCAL_RANK", std::to_string(slot.local_rank));
  set(result, "HOROVOD_LOCAL_SIZE", std::to_string(slot.local_size));
  set(result, "HOROVOD_CROSS_RANK", std::to_string(slot.cross_rank));
  set(result, "HOROVOD_CROSS_SIZE", std::to_string(slot.cross_size));
  set(result, "HOROVOD_CONTROLLER", "gloo");
  set(result, "HOROVOD_CPU_OPERATIONS", "gloo");
  return result;
}

int omp_threads_for(int cores, int workers) {
  return std::max(1, cores / workers);
}

int usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  // Fails on machines with more than 1024 cores: then threads are scarce, not wrong.
  int cores = ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  if (const std::optional<double> quota = cpu_quota()) {
    cores = std::min(cores, static_cast<int>(std::ceil(*quota)));
  }
  return std::max(cores, 1);
}

Result<std::string> make_random_hex(std::size_t bytes) {
  std::vector<unsigned char> random(bytes);
  std::size_t have = 0;
  while (have < bytes) {
    const ssize_t got = ::getrandom(random.data() + have, bytes - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("getrandom");
    have += static_cast<std::size_t>(got);
  }
  std::string text;
  for (const unsigned char byte : random)
    text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace hora
