// Horovod's tuning options: flags and files become variables, and nothing is lost unsaid.
#include "launcher/tuning.h"

#include <map>
#include <set>

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Catch::Matchers::Contains;
using Names = std::vector<std::string>;

Tuning tuned(const std::vector<GivenFlag>& flags, const std::vector<FileSetting>& file = {}) {
  auto tuning = plan_tuning(flags, file, "c.yaml");
  if (!tuning) FAIL(tuning.error().message);
  return std::move(*tuning);
}

std::string mistake(const std::vector<GivenFlag>& flags,
                    const std::vector<FileSetting>& file = {}) {
  const auto tuning = plan_tuning(flags, file, "c.yaml");
  return tuning ? "no mistake" : tuning.error().message;
}

TEST_CASE("a flag sets the knob that its variable names, in the knob's unit") {
  CHECK(tuned({{"--fusion-threshold-mb", "32"}, {"--log-level", "FATAL"}}).assignments ==
        std::vector<Assignment>{{"HORA_FUSION_BYTES", "33554432"}, {"HORA_LOG_LEVEL", "error"}});
  CHECK(tuned({{"--no-stall-check", ""}}).assignments ==
        std::vector<Assignment>{{"HORA_STALL_CHECK_DISABLE", "1"}});
  CHECK(tuned({{"--stall-check", ""}}).assignments ==
        std::vector<Assignment>{{"HORA_STALL_CHECK_DISABLE", "0"}});
}

TEST_CASE("what no knob knows is accepted and named") {
  const Tuning tuning = tuned({{"--cycle-time-ms", "3.5"}, {"--tcp", ""}, {"--mpi-args", "-x"}},
                              {{"library_options.num_nccl_streams", "2", 1}});
  CHECK(tuning.assignments.empty());
  CHECK(tuning.without_effect ==
        Names{"library_options.num_nccl_streams", "--cycle-time-ms", "--tcp", "--mpi-args"});
}

TEST_CASE("a flag wins over the file, and the last of two equal flags counts") {
  CHECK(tuned({{"--cache-capacity", "1"}, {"--cache-capacity", "2"}},
              {{"params.cache_capacity", "9", 1}, {"stall_check.enabled", "false", 2}})
            .assignments ==
        std::vector<Assignment>{{"HORA_CACHE_CAPACITY", "2"}, {"HORA_STALL_CHECK_DISABLE", "1"}});
  CHECK(tuned({{"--stall-check", ""}}, {{"stall_check.enabled", "false", 2}}).assignments ==
        std::vector<Assignment>{{"HORA_STALL_CHECK_DISABLE", "0"}});
}

TEST_CASE("settings that need another are without effect when it is not there") {
  CHECK(tuned({{"--timeline-mark-cycles", ""}}).without_effect == Names{"--timeline-mark-cycles"});
  CHECK(tuned({{"--timeline-filename", "t.json"}}).assignments ==
        std::vector<Assignment>{{"HORA_TIMELINE", "t.json"}});
  CHECK(tuned({{"--no-autotune", ""}, {"--autotune-log-file", "x"}}).without_effect.back() ==
        "--autotune-log-file");
}

TEST_CASE("values and keys that cannot be are refused") {
  for (const char* flag : {"--fusion-threshold-mb", "--cache-capacity", "--num-nccl-streams"}) {
    for (const char* text : {"", "-1", "1.5", "x", "99999999999999999999"}) {
      CAPTURE(flag, text);
      CHECK_THAT(mistake({{flag, text}}), Contains(flag) && Contains("is not a whole number >= 0"));
    }
  }
  for (const char* text : {"-0.1", "nan", "", "1x"}) {
    CHECK_THAT(mistake({{"--cycle-time-ms", text}}), Contains("is not a number >= 0"));
  }
  CHECK_THAT(mistake({{"--autotune-gaussian-process-noise", "1.1"}}), Contains("from 0 to 1"));
  CHECK_THAT(mistake({{"--fusion-threshold-mb", "99999999999999"}}), Contains("fits 64 bits"));
  CHECK_THAT(mistake({{"--autotune", ""}, {"--no-autotune", ""}}),
             Contains("--autotune and --no-autotune contradict each other"));
  CHECK(mistake({{"--log-without-timestamp", ""}, {"--log-hide-timestamp", ""}}) == "no mistake");
  CHECK_THAT(mistake({}, {{"params.cache_capacity", "x", 7}}),
             Contains("c.yaml:7: params.cache_capacity: 'x'"));
  CHECK_THAT(mistake({}, {{"stall_check.enabled", "maybe", 2}}), Contains("true or false"));
  CHECK_THAT(mistake({}, {{"controller", "pigeon", 1}}), Contains("is not gloo or mpi"));
  CHECK(mistake({}, {{"controller", "mpi", 1}}) == "no mistake");
  CHECK_THAT(mistake({}, {{"params.fusion", "1", 3}}),
             Contains("c.yaml:3: params.fusion: no such setting"));
}

TEST_CASE("every switch of the table can be turned on and off in a file") {
  std::map<std::string, std::set<TuningKind>> kinds;
  for (const TuningOption& row : tuning_options())
    if (*row.key != '\0') kinds[row.key].insert(row.kind);
  for (const auto& [key, set] : kinds) {
    CAPTURE(key);
    CHECK(set.count(TuningKind::on) == set.count(TuningKind::off));
  }
}

}  // namespace
}  // namespace hora
