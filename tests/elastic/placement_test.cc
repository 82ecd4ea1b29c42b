// Where a process stands, from every starter's variables: tables of environments.
//
// The environment is a map here; nothing is read from the one the test runs in.
#include <map>
#include <string>

#include <catch2/catch.hpp>

#include "elastic/control.h"

namespace hora::test {

namespace {

using Variables = std::map<std::string, std::string>;

Result<Placement> place(const Variables& variables) {
  return read_placement([variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string error_of(const Variables& variables) {
  const auto placement = place(variables);
  if (placement) return "";
  return std::string(to_string(placement.error().kind)) + ": " + placement.error().message;
}

Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes)
    base[name] = value;
  return base;
}

const Variables kHorarun{{"HORA_RANK", "3"},       {"HORA_SIZE", "4"},
                         {"HORA_LOCAL_RANK", "1"}, {"HORA_LOCAL_SIZE", "2"},
                         {"HORA_CROSS_RANK", "1"}, {"HORA_CROSS_SIZE", "2"},
                         {"HORA_JOB", "j"},        {"HORA_RENDEZVOUS", "10.0.0.1:4000"},
                         {"HORA_SECRET", "s"}};
const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"GROUP_RANK", "1"},
                          {"GROUP_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "none"}};
const Variables kSlurm{{"SLURM_PROCID", "9"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_JOB_ID", "77"},
                       {"SLURM_STEP_NUM_TASKS", "11"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_STEP_NUM_NODES", "3"},
                       {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                       {"HORA_RENDEZVOUS", "10.0.0.1:4000"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "ns-1"}};

}  // namespace

TEST_CASE("placement: without a starter a process is a job of one") {
  const auto placement = place({});
  REQUIRE(placement);
  CHECK(placement->source == "single process");
  CHECK(placement->rank == 0);
  CHECK(placement->size == 1);
  CHECK_FALSE(placement->serve);
}

TEST_CASE("placement: horarun's variables are taken as they are") {
  const auto placement = place(kHorarun);
  REQUIRE(placement);
  CHECK(placement->source == "horarun");
  CHECK(placement->rank == 3);
  CHECK(placement->size == 4);
  CHECK(placement->local_rank == 1);
  CHECK(placement->local_size == 2);
  CHECK(placement->cross_rank == 1);
  CHECK(placement->cross_size == 2);
  CHECK(placement->rendezvous == "10.0.0.1:4000");
  CHECK(placement->secret == "s");
  CHECK(placement->job == "j");
  CHECK_FALSE(placement->serve);
}

TEST_CASE("placement: under horarun rank 0 does not serve") {
  const auto placement = place(with(kHorarun, {{"HORA_RANK", "0"}, {"HORA_LOCAL_RANK", "0"}}));
  REQUIRE(placement);
  CHECK_FALSE(placement->serve);
}

TEST_CASE("placement: Horovod's names are understood") {
  const auto placement =
      place({{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}, {"HORA_JOB", "by hand"}});
  REQUIRE(placement);
  CHECK(placement->source == "environment");
  CHECK(placement->rank == 1);
  CHECK(placement->local_rank == 1);
  CHECK(placement->local_size == 2);
  CHECK(placement->cross_size == 1);
  CHECK(placement->rendezvous.rfind("unix:hora-", 0) == 0);
}

TEST_CASE("placement: torchrun on one host meets on a unix socket, and rank 0 serves") {
  Variables zero = with(kTorchrun, {{"RANK", "0"},
                                    {"LOCAL_RANK", "0"},
                                    {"LOCAL_WORLD_SIZE", "8"},
                                    {"GROUP_RANK", "0"},
                                    {"GROUP_WORLD_SIZE", "1"}});
  const Variables one = with(zero, {{"RANK", "1"}, {"LOCAL_RANK", "1"}});
  const auto first = place(zero), second = place(one);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->source == "torchrun");
  CHECK(first->serve);
  CHECK_FALSE(second->serve);
  CHECK(first->rendezvous.rfind("unix:hora-", 0) == 0);
  CHECK(first->rendezvous == second->rendezvous);
  CHECK(first->secret == second->secret);
  CHECK(first->job == second->job);

  const auto other = place(with(zero, {{"MASTER_PORT", "29501"}}));
  REQUIRE(other);
  CHECK(other->rendezvous != first->rendezvous);
  CHECK(other->secret != first->secret);
}

TEST_CASE("placement: torchrun on several hosts meets beside torch's own port") {
  const auto placement = place(kTorchrun);
  REQUIRE(placement);
  CHECK(placement->rendezvous == "node0:29501");
  CHECK(placement->cross_rank == 1);
  CHECK(placement->cross_size == 2);

  const auto moved = place(with(kTorchrun, {{"HORA_RENDEZVOUS_PORT", "4711"}}));
  REQUIRE(moved);
  CHECK(moved->rendezvous == "node0:4711");

  const auto given = place(
      with(kTorchrun,
           {{"HORA_RENDEZVOUS", "[fd00::1]:99"}, {"HORA_SECRET", "mine"}, {"HORA_JOB", "named"}}));
  REQUIRE(given);
  CHECK(given->rendezvous == "[fd00::1]:99");
  CHECK(given->secret == "mine");
  CHECK(given->job == "named");
  CHECK(given->source == "torchrun");
}

TEST_CASE("placement: Slurm counts the tasks of each node") {
  const auto placement = place(kSlurm);
  REQUIRE(placement);
  CHECK(placement->source == "slurm");
  CHECK(placement->rank == 9);
  CHECK(placement->size == 11);
  CHECK(placement->local_rank == 1);
  CHECK(placement->local_size == 3);
  CHECK(placement->cross_rank == 2);
  CHECK(placement->cross_size == 3);
  CHECK(placement->job == "slurm:77.0");
}

TEST_CASE("placement: a Slurm allocation without a step is one process") {
  const auto placement = place({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}});
  REQUIRE(placement);
  CHECK(placement->size == 1);
}

TEST_CASE("placement: Open MPI on one host") {
  const auto placement = place(kOpenMpi);
  REQUIRE(placement);
  CHECK(placement->source == "openmpi");
  CHECK(placement->rank == 1);
  CHECK(placement->local_size == 2);
  CHECK(placement->job == "openmpi:ns-1");
}

TEST_CASE("placement: the innermost starter wins") {
  Variables nested = with(kSlurm, kOpenMpi);
  auto placement = place(nested);
  REQUIRE(placement);
  CHECK(placement->source == "openmpi");
  placement = place(with(nested, kTorchrun));
  REQUIRE(placement);
  CHECK(placement->source == "torchrun");
  placement = place(with(nested, kHorarun));
  REQUIRE(placement);
  CHECK(placement->source == "horarun");
}

TEST_CASE("placement: half a pair is an error that names both variables") {
  CHECK(error_of({{"RANK", "1"}}) ==
        "invalid_argument: RANK=1 is set but WORLD_SIZE is not; set both, or neither for a job of "
        "one");
  CHECK(error_of({{"HORA_SIZE", "2"}}) ==
        "invalid_argument: HORA_SIZE=2 is set but HORA_RANK is not; set both, or neither for a job "
        "of one");
}

TEST_CASE("placement: nonsense is an error that names variable and value") {
  struct Row {
    Variables variables;
    std::string says;
  };
  const std::vector<Row> rows{
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 and WORLD_SIZE=2 do not fit"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK='-1' is not a whole number"},
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "RANK='one' is not a whole number"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "RANK=0 and WORLD_SIZE=0 do not fit"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, "WORLD_SIZE='99999999999'"},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4 do not fit"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "local rank 1 of 9 does not fit"},
      {with(kTorchrun, {{"MASTER_PORT", "http"}}), "MASTER_PORT='http'"},
      {with(kTorchrun, {{"MASTER_PORT", "65535"}}), "MASTER_PORT=65535 leaves no port"},
      {with(kHorarun, {{"HORA_RENDEZVOUS", "nowhere"}}), "rendezvous 'nowhere' is not ip:port"},
      {with(kHorarun, {{"HORA_SECRET", ""}}), "but HORA_SECRET is not; horarun sets all of them"},
      {{{"HORA_RANK", "0"}, {"HORA_SIZE", "2"}}, "set HORA_JOB to a name of your choice"},
      {with(kSlurm, {{"HORA_RENDEZVOUS", ""}}), "set HORA_RENDEZVOUS to ip:port"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4(x"}}), "SLURM_STEP_TASKS_PER_NODE"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}}), "says nothing about node 2"},
      {with(kSlurm, {{"SLURM_LOCALID", "3"}}), "SLURM_LOCALID=3 does not fit 3 tasks"},
  };
  for (const Row& row : rows) {
    CHECK_THAT(error_of(row.variables), Catch::StartsWith("invalid_argument: "));
    CHECK_THAT(error_of(row.variables), Catch::Contains(row.says));
  }
}

TEST_CASE("placement: a size of one needs no place to meet") {
  const auto placement = place({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  REQUIRE(placement);
  CHECK(placement->size == 1);
  CHECK(placement->rendezvous.empty());
  CHECK_FALSE(placement->serve);
}

}  // namespace hora::test
