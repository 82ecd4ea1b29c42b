// The environment of a worker: what is set, what is left alone, and what a user may not set.
//
// Values are looked up, not counted: execve() takes the first of two equal names, so
// there must be one.
#include "launcher/environment.h"

#include <algorithm>
#include <filesystem>

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a worker learns its place, and the parent's stale one is gone") {
  const Slot slot = {"localhost", Rank(2), 4, 1, 2, 1, 2};
  const Environment result = make_worker_environment({"PATH=/bin", "HORA_RANK=7"},
                                                     {"job", "secret", "127.0.0.1:5", ""}, slot);
  const std::vector<std::pair<const char*, const char*>> expected = {
      {"PATH", "/bin"},
      {"HORA_JOB", "job"},
      {"HORA_SECRET", "secret"},
      {"HORA_RENDEZVOUS", "127.0.0.1:5"},
      {"HORA_RANK", "2"},
      {"HORA_SIZE", "4"},
      {"HORA_LOCAL_RANK", "1"},
      {"HORA_LOCAL_SIZE", "2"},
      {"HORA_CROSS_RANK", "1"},
      {"HORA_CROSS_SIZE", "2"},
      {"HOROVOD_HOSTNAME", "localhost"},
      {"HOROVOD_RANK", "2"},
      {"HOROVOD_SIZE", "4"},
      {"HOROVOD_LOCAL_RANK", "1"},
      {"HOROVOD_LOCAL_SIZE", "2"},
      {"HOROVOD_CROSS_RANK", "1"},
      {"HOROVOD_CROSS_SIZE", "2"},
      {"HOROVOD_CONTROLLER", "gloo"},
      {"HOROVOD_CPU_OPERATIONS", "gloo"}};
  for (const auto& [name, value] : expected) {
    CAPTURE(name);
    CHECK(find_variable(result, name) == std::optional<std::string>(value));
  }
  CHECK(result.size() == expected.size());
}

TEST_CASE("threads and buffering are set only when the user has not") {
  Environment fresh = make_job_environment({}, {}).value();
  CHECK(share_out_threads(fresh, 6, 2) == 3);
  CHECK(find_variable(fresh, "OMP_NUM_THREADS") == std::optional<std::string>("3"));
  CHECK(find_variable(fresh, "PYTHONUNBUFFERED") == std::optional<std::string>("1"));
  Environment own = make_job_environment({"OMP_NUM_THREADS=8", "PYTHONUNBUFFERED="}, {}).value();
  CHECK(share_out_threads(own, 6, 2) == std::nullopt);
  CHECK(find_variable(own, "OMP_NUM_THREADS") == std::optional<std::string>("8"));
  CHECK(find_variable(own, "PYTHONUNBUFFERED") == std::optional<std::string>(""));
}

TEST_CASE("the command line wins over the environment") {
  const EnvironmentOptions options = {{{"A", "2"}, {"OMP_NUM_THREADS", "5"}, {"HORA_WINDOW", "3"}},
                                      1500,
                                      {{"HORA_WINDOW", "2"}, {"HORA_LOG_LEVEL", "info"}},
                                      {"eth0", "eth1"}};
  const Environment result =
      make_job_environment({"A=1", "HORA_START_TIMEOUT_MS=9"}, options).value();
  CHECK(find_variable(result, "A") == std::optional<std::string>("2"));
  CHECK(find_variable(result, "OMP_NUM_THREADS") == std::optional<std::string>("5"));
  CHECK(find_variable(result, "HORA_START_TIMEOUT_MS") == std::optional<std::string>("1500"));
  CHECK(find_variable(result, "HORA_LOG_LEVEL") == std::optional<std::string>("info"));
  CHECK(find_variable(result, "HORA_WINDOW") == std::optional<std::string>("3"));  // --env is last
  CHECK(find_variable(result, "HORA_NETWORK_INTERFACES") ==
        std::optional<std::string>("eth0,eth1"));
  CHECK(std::count(result.begin(), result.end(), "A=1") == 0);
}

TEST_CASE("what horarun sets itself cannot be assigned") {
  const auto refused = make_job_environment({}, {{{"HORA_RANK", "1"}}, std::nullopt, {}, {}});
  CHECK_THAT(refused.error().message, Contains("HORA_RANK is set by horarun itself"));
}

TEST_CASE("what describes a host or a login stays there") {
  const Environment travelling =
      make_travelling_environment({"A=1", "HOME=/root", "SSH_AUTH_SOCK=x", "CUDA_VISIBLE_DEVICES=0",
                                   "BASH_FUNC_f%%=() { :; }", "PWD=/", "PATH=/bin"});
  CHECK(travelling == Environment{"A=1", "PATH=/bin"});
  CHECK(merge_environments(travelling, {"HOME=/there", "PATH=/usr/bin", "B=2"}) ==
        Environment{"A=1", "PATH=/bin", "HOME=/there", "B=2"});
}

TEST_CASE("a variable is found by its whole name") {
  CHECK(find_variable({"AB=1"}, "A") == std::nullopt);
  CHECK(find_variable({"A"}, "A") == std::nullopt);
  CHECK(find_variable({"A=b=c"}, "A") == std::optional<std::string>("b=c"));
}

TEST_CASE("cores are shared out, and every rank has at least one thread") {
  CHECK(omp_threads_for(8, 2) == 4);
  CHECK(omp_threads_for(8, 3) == 2);
  CHECK(omp_threads_for(2, 8) == 1);
}

TEST_CASE("random names are of the asked length and never equal") {
  const std::string one = make_random_hex(32).value();
  CHECK(one.size() == 64);
  CHECK(one.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(one != make_random_hex(32).value());
}

TEST_CASE("Horovod's name is found beside the program, before what was there") {
  namespace fs = std::filesystem;
  const fs::path package = fs::temp_directory_path() / make_random_hex(8).value();
  const std::string program = (package / "bin" / "horarun").string();
  const std::string aliases = (package / "horovod_compat").string();
  const Environment asked = {"PYTHONPATH=/old", "HORA_HOROVOD_COMPAT=1"};

  Environment without = {"PYTHONPATH=/old"};
  CHECK(add_horovod_aliases(without, program).has_value());
  CHECK(find_variable(without, "PYTHONPATH") == std::optional<std::string>("/old"));

  Environment missing = asked;
  const auto refused = add_horovod_aliases(missing, program);
  REQUIRE_FALSE(refused.has_value());
  CHECK_THAT(refused.error().message, Contains("--horovod-compat") && Contains(aliases));

  fs::create_directories(package / "horovod_compat" / "horovod");
  Environment found = asked;
  CHECK(add_horovod_aliases(found, program).has_value());
  CHECK(find_variable(found, "PYTHONPATH") == std::optional<std::string>(aliases + ":/old"));
  EnvironmentOptions flag;
  flag.horovod_compat = true;
  Environment first = make_job_environment({}, flag).value();
  CHECK(add_horovod_aliases(first, program).has_value());
  CHECK(find_variable(first, "PYTHONPATH") == std::optional<std::string>(aliases));
  fs::remove_all(package);
}

}  // namespace
}  // namespace hora
