// Placement: which rank am I, of how many, and where do we meet?
//
// Four starters are known by their variables, and asked in this order, the innermost first:
//
//   HORA_RANK, HORA_SIZE, ...      horarun, or somebody by hand; HOROVOD_* names work too
//   RANK, WORLD_SIZE, ...          torchrun
//   OMPI_COMM_WORLD_RANK, ...      Open MPI's mpirun
//   SLURM_PROCID, ...              srun, inside a step only: an salloc shell is one process
//
// and a process without any of them is a job of one. Half a pair, or numbers that cannot be,
// is an error that names variables and values: guessing would start two jobs of one where a
// user meant one of two.
//
// The meeting place. horarun runs the rendezvous and says where (HORA_RENDEZVOUS). Under any other
// starter rank 0 runs it: on an abstract unix socket named after the job if all ranks are on one
// host, else on TCP at HORA_RENDEZVOUS, or at MASTER_ADDR with HORA_RENDEZVOUS_PORT or
// MASTER_PORT + 1 (MASTER_PORT itself belongs to torch's store).
//
// The secret. HORA_SECRET if set (horarun always sets it). Otherwise it is derived from the job's
// name and the user id, which keeps strangers and other jobs apart by mistake, not by intent: on
// one host the kernel's word about the peer's user id makes up for that; across hosts, HORA_SECRET
// should be set.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>

#include <unistd.h>

#include "elastic/control.h"
#include "elastic/job.h"
#include "elastic/net.h"

namespace hora {

namespace {

constexpr int kMostRanks = 65536;

/// A variable that was found: its name (of several spellings) and its value.
struct Variable {
  std::string name;
  std::string text;
};

std::optional<Variable> find(const Lookup& lookup, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto text = lookup(name); text && !text->empty()) return Variable{name, *text};
  }
  return std::nullopt;
}

std::string text_of(const Lookup& lookup, const char* name) {
  auto variable = find(lookup, {name});
  return variable ? variable->text : std::string();
}

std::string show(const Variable& variable) {
  return variable.name + "=" + variable.text;
}

Result<int> number(const Variable& variable) {
  int value = 0;
  const char* end = variable.text.data() + variable.text.size();
  const auto [stop, error] = std::from_chars(variable.text.data(), end, value);
  if (error != std::errc{} || stop != end || value < 0) {
    return fail(ErrorKind::invalid_argument,
                variable.name + "='" + variable.text + "' is not a whole number >= 0");
  }
  return value;
}

/// Reads "index of count"; nothing if neither is set.
Result<std::optional<std::pair<int, int>>> read_pair(
    const Lookup& lookup, std::initializer_list<const char*> index_names,
    std::initializer_list<const char*> count_names) {
  const auto index = find(lookup, index_names);
  const auto count = find(lookup, count_names);
  if (!index && !count) return std::nullopt;
  if (!index || !count) {
    const Variable& have = index ? *index : *count;
    const char* lacks = index ? *count_names.begin() : *index_names.begin();
    return fail(ErrorKind::invalid_argument, show(have) + " is set but " + lacks +
                                                 " is not; set both, or neither for a job of one");
  }
  auto value = number(*index);
  if (!value) return fail(value.error());
  auto limit = number(*count);
  if (!limit) return fail(limit.error());
  if (*limit < 1 || *limit > kMostRanks || *value >= *limit) {
    return fail(ErrorKind::invalid_argument,
                show(*index) + " and " + show(*count) +
                    " do not fit: 0 <= the first < the second <= " + std::to_string(kMostRanks));
  }
  return std::pair{*value, *limit};
}

using Pair = std::optional<std::pair<int, int>>;

/// Fills in hosts from what the starter said; missing cross numbers follow from equal,
/// consecutive hosts.
Result<void> place(Placement& placement, const std::pair<int, int>& world, const Pair& local,
                   const Pair& cross) {
  std::tie(placement.rank, placement.size) = world;
  std::tie(placement.local_rank, placement.local_size) = local.value_or(world);
  const int local_size = placement.local_size;
  if (local_size > placement.size || placement.local_rank > placement.rank) {
    return fail(ErrorKind::invalid_argument,
                placement.source + ": local rank " + std::to_string(placement.local_rank) + " of " +
                    std::to_string(local_size) + " does not fit rank " +
                    std::to_string(placement.rank) + " of " + std::to_string(placement.size));
  }
  const std::pair by_blocks{(placement.rank - placement.local_rank) / local_size,
                            (placement.size + local_size - 1) / local_size};
  std::tie(placement.cross_rank, placement.cross_size) = cross.value_or(by_blocks);
  return {};
}

/// Where rank 0 serves when no launcher does. `job` is what makes this job
/// different from others here.
Result<void> meet_at_rank_0(const Lookup& lookup, Placement& placement) {
  if (placement.size == 1) return {};
  if (const std::string job = text_of(lookup, "HORA_JOB"); !job.empty()) placement.job = job;
  const std::string given = text_of(lookup, "HORA_RENDEZVOUS");
  if (placement.job.empty() && given.empty()) {
    return fail(ErrorKind::invalid_argument,
                placement.source + ": nothing names this job, so its " +
                    std::to_string(placement.size) +
                    " ranks cannot find each other; set HORA_JOB to a name of your choice, the "
                    "same on all ranks, or start them with horarun");
  }
  if (placement.job.empty()) placement.job = given;
  const std::string owner = placement.job + "\n" + std::to_string(::geteuid());
  placement.secret = text_of(lookup, "HORA_SECRET");
  if (placement.secret.empty()) placement.secret = hash_text("hora secret\n" + owner, 32);
  placement.serve = placement.rank == 0;
  if (!given.empty()) {
    placement.rendezvous = given;
    return {};
  }
  if (placement.local_size == placement.size) {
    placement.rendezvous = "unix:hora-" + hash_text("hora socket\n" + owner, 16);
    return {};
  }
  const auto host = find(lookup, {"MASTER_ADDR"});
  Endpoint endpoint;
  if (host) endpoint.host = host->text;
  if (const auto port = find(lookup, {"HORA_RENDEZVOUS_PORT", "MASTER_PORT"}); port && host) {
    auto value = number(*port);
    if (!value) return fail(value.error());
    const int wanted = *value + (port->name == "MASTER_PORT" ? 1 : 0);
    if (wanted < 1 || wanted > 65535) {
      return fail(ErrorKind::invalid_argument, show(*port) + " leaves no port for the rendezvous");
    }
    endpoint.port = static_cast<std::uint16_t>(wanted);
    placement.rendezvous = to_string(endpoint);
    return {};
  }
  return fail(ErrorKind::invalid_argument,
              placement.source +
                  ": the ranks are on several hosts and need a place to meet; set HORA_RENDEZVOUS "
                  "to ip:port of rank 0's host (any free port), the same on all ranks");
}

/// horarun, or HORA_* variables set by hand.
Result<std::optional<Placement>> from_hora(const Lookup& lookup) {
  auto world = read_pair(lookup, {"HORA_RANK", "HOROVOD_RANK"}, {"HORA_SIZE", "HOROVOD_SIZE"});
  if (!world) return fail(world.error());
  if (!*world) return std::nullopt;
  auto local = read_pair(lookup, {"HORA_LOCAL_RANK", "HOROVOD_LOCAL_RANK"},
                         {"HORA_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE"});
  if (!local) return fail(local.error());
  auto cross = read_pair(lookup, {"HORA_CROSS_RANK", "HOROVOD_CROSS_RANK"},
                         {"HORA_CROSS_SIZE", "HOROVOD_CROSS_SIZE"});
  if (!cross) return fail(cross.error());
  Placement placement;
  placement.source = "environment";
  HORA_TRY(place(placement, **world, *local, *cross));
  const std::string rendezvous = text_of(lookup, "HORA_RENDEZVOUS");
  if (rendezvous.empty()) {
    HORA_TRY(meet_at_rank_0(lookup, placement));
    return placement;
  }
  placement.source = "horarun";
  placement.rendezvous = rendezvous;
  placement.job = text_of(lookup, "HORA_JOB");
  placement.secret = text_of(lookup, "HORA_SECRET");
  if (placement.job.empty() || placement.secret.empty()) {
    return fail(ErrorKind::invalid_argument,
                "HORA_RANK and HORA_RENDEZVOUS=" + rendezvous + " are set, but " +
                    (placement.job.empty() ? "HORA_JOB" : "HORA_SECRET") +
                    " is not; horarun sets all of them: does something clear the environment?");
  }
  return placement;
}

Result<std::optional<Placement>> from_torchrun(const Lookup& lookup) {
  auto world = read_pair(lookup, {"RANK"}, {"WORLD_SIZE"});
  if (!world) return fail(world.error());
  if (!*world) return std::nullopt;
  auto local = read_pair(lookup, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"});
  if (!local) return fail(local.error());
  auto cross = read_pair(lookup, {"GROUP_RANK"}, {"GROUP_WORLD_SIZE"});
  if (!cross) return fail(cross.error());
  const std::string host = text_of(lookup, "MASTER_ADDR");
  const bool one_host =
      host.empty() || host == "localhost" || host == "::1" || host.starts_with("127.");
  if (!*local && !one_host) {
    return fail(ErrorKind::invalid_argument,
                "RANK and WORLD_SIZE are set but LOCAL_RANK and LOCAL_WORLD_SIZE are not; "
                "torchrun sets all four: set the other two as well");
  }
  Placement placement;
  placement.source = "torchrun";
  HORA_TRY(place(placement, **world, *local, *cross));
  const std::string run = text_of(lookup, "TORCHELASTIC_RUN_ID");
  const std::string port = text_of(lookup, "MASTER_PORT");
  if (!run.empty() || !port.empty()) {
    placement.job = "torchrun:" + run + ":" + host + ":" + port + ":" +
                    text_of(lookup, "TORCHELASTIC_RESTART_COUNT");
  }
  HORA_TRY(meet_at_rank_0(lookup, placement));
  return placement;
}

Result<std::optional<Placement>> from_openmpi(const Lookup& lookup) {
  auto world = read_pair(lookup, {"OMPI_COMM_WORLD_RANK"}, {"OMPI_COMM_WORLD_SIZE"});
  if (!world) return fail(world.error());
  if (!*world) return std::nullopt;
  auto local = read_pair(lookup, {"OMPI_COMM_WORLD_LOCAL_RANK"}, {"OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (!local) return fail(local.error());
  Placement placement;
  placement.source = "openmpi";
  HORA_TRY(place(placement, **world, *local, std::nullopt));
  if (const auto job = find(lookup, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})) {
    placement.job = "openmpi:" + job->text;
  }
  HORA_TRY(meet_at_rank_0(lookup, placement));
  return placement;
}

/// Tasks on node `node` of Slurm's run-length list, such as "4(x2),3".
Result<int> tasks_on_node(const Variable& list, int node) {
  std::size_t at = 0;
  int skipped = 0;
  while (at < list.text.size()) {
    const std::size_t comma = std::min(list.text.find(',', at), list.text.size());
    const std::string run = list.text.substr(at, comma - at);
    const std::size_t open = run.find("(x");
    auto tasks = number({list.name, run.substr(0, open)});
    int repeat = 1;
    if (open != std::string::npos && run.ends_with(")")) {
      auto times = number({list.name, run.substr(open + 2, run.size() - open - 3)});
      if (!times) return fail(times.error());
      repeat = *times;
    }
    if (!tasks) return fail(tasks.error());
    if (node - skipped < repeat) return *tasks;
    skipped += repeat;
    at = comma + 1;
  }
  return fail(ErrorKind::invalid_argument,
              show(list) + " says nothing about node " + std::to_string(node));
}

/// (local rank, local size) of a Slurm task.
Result<Pair> slurm_local(const Lookup& lookup, const std::pair<int, int>& world, const Pair& node) {
  const auto local_rank = find(lookup, {"SLURM_LOCALID"});
  if (!local_rank) {
    return fail(ErrorKind::invalid_argument, "SLURM_PROCID is set but SLURM_LOCALID is not");
  }
  auto index = number(*local_rank);
  if (!index) return fail(index.error());
  int count = world.second;
  if (node && node->second > 1) {
    const auto list = find(
        lookup, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"});
    if (!list) {
      return fail(ErrorKind::invalid_argument,
                  "several Slurm nodes, but SLURM_STEP_TASKS_PER_NODE is not set");
    }
    // The last of the three is one number for all nodes.
    auto tasks = tasks_on_node(*list, list->name == "SLURM_NTASKS_PER_NODE" ? 0 : node->first);
    if (!tasks) return fail(tasks.error());
    count = *tasks;
  }
  if (*index >= count) {
    return fail(ErrorKind::invalid_argument, show(*local_rank) + " does not fit " +
                                                 std::to_string(count) + " tasks on this node");
  }
  return Pair{std::pair{*index, count}};
}

Result<std::optional<Placement>> from_slurm(const Lookup& lookup) {
  const std::string step = text_of(lookup, "SLURM_STEP_ID");
  if (step.empty() || !find(lookup, {"SLURM_PROCID"})) return std::nullopt;
  auto world =
      read_pair(lookup, {"SLURM_PROCID"}, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  if (!world) return fail(world.error());
  // Some steps (batch scripts) have a procid but are one process by nature; a size of 1 says so.
  auto node = read_pair(lookup, {"SLURM_NODEID"},
                        {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (!node) return fail(node.error());
  auto local = slurm_local(lookup, **world, *node);
  if (!local) return fail(local.error());
  Placement placement;
  placement.source = "slurm";
  HORA_TRY(place(placement, **world, *local, *node));
  placement.job = "slurm:" + text_of(lookup, "SLURM_JOB_ID") + "." + step;
  HORA_TRY(meet_at_rank_0(lookup, placement));
  return placement;
}

}  // namespace

Result<Placement> read_placement(const Lookup& lookup) {
  for (const auto source : {from_hora, from_torchrun, from_openmpi, from_slurm}) {
    auto placement = source(lookup);
    if (!placement) return fail(placement.error());
    if (!*placement) continue;
    if (!(*placement)->rendezvous.empty()) {
      if (auto parsed = parse_endpoints((*placement)->rendezvous); !parsed) {
        return fail(parsed.error());
      }
    }
    return std::move(**placement);
  }
  Placement placement;
  placement.source = "single process";
  return placement;
}

}  // namespace hora
