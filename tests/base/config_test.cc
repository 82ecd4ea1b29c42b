// Knobs: what they accept; what they refuse is named with variable, value and what is allowed.
#include "runtime/base/config.h"

#include <map>

#include <catch2/catch.hpp>

#include "runtime/base/fault.h"
#include "runtime/base/misspelt.h"

namespace hora::test {
namespace {

Result<Config> config_with(const std::map<std::string, std::string>& variables) {
  return read_config([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string refusal(const std::string& name, const std::string& value) {
  const auto config = config_with({{name, value}});
  REQUIRE(!config);
  CHECK(config.error().kind == ErrorKind::invalid_argument);
  CHECK(config.error().message.find(name + "='" + value + "'") != std::string::npos);
  return config.error().message;
}

}  // namespace

TEST_CASE("config: without variables every knob has its documented default") {
  const auto config = config_with({});
  REQUIRE(config);
  CHECK(config->window == Config{}.window);
  CHECK(config->log_level == "warning");
}

TEST_CASE("config: numbers take unit suffixes") {
  const auto config =
      config_with({{"HORA_FUSION_BYTES", "3M"}, {"HORA_STALL_CHECK_TIME_SECONDS", "0.5"}});
  REQUIRE(config);
  CHECK(config->fusion_bytes == 3u << 20);
  CHECK(config->stall_check_seconds == 0.5);
}

TEST_CASE("config: nonsense is refused with variable, value and what is allowed") {
  CHECK(refusal("HORA_FUSION_BYTES", "-1").find("whole number") != std::string::npos);
  CHECK(refusal("HORA_FUSION_BYTES", "3X").find("whole number") != std::string::npos);
  CHECK(refusal("HORA_WINDOW", "0").find("at least 1") != std::string::npos);
  CHECK(refusal("HORA_WINDOW", "99999999999").find("at most 4294967295") != std::string::npos);
  CHECK(refusal("HORA_LOG_LEVEL", "loud").find("warning") != std::string::npos);
  CHECK(refusal("HORA_TRANSPORT", "pigeon").find("shm, tcp") != std::string::npos);
  CHECK(refusal("HORA_ENGINE_THREAD", "yes").find("0 or 1") != std::string::npos);
  for (const char* plan : {"kill-before-task", "kill-before-task:", "kill-before-task:x", "kill:3",
                           "kill-mid-frame:3x", "kill-mid-frame:-1"}) {
    CHECK(refusal("HORA_FAULT", plan)
              .find("POINT:NUMBER, with POINT one of kill-before-task, "
                    "kill-after-task, kill-at-publish, kill-mid-frame") != std::string::npos);
  }
}

TEST_CASE("config: a plan of a fault is taken as it is") {
  const auto config = config_with({{"HORA_FAULT", "kill-mid-frame:131072"}});
  REQUIRE(config);
  CHECK(fault_point(config->fault, "kill-mid-frame") == 131072);
  CHECK(!fault_point(config->fault, "kill-at-publish"));
}

TEST_CASE("config: a variable that nobody reads is reported with the nearest that is read") {
  const auto sentences = unknown_variables({"PATH", "HORA_FUSION_BYTES", "HORA_RANK", "HORARUN",
                                            "HORA_FUSON_BYTES", "HORA_TIMELIN", "HORA_CHAOS_SEED"});
  REQUIRE(sentences.size() == 2);
  CHECK(sentences[0] ==
        "HORA_FUSON_BYTES is none of Hora's variables and has no effect; the nearest is "
        "HORA_FUSION_BYTES (horarun --help lists all)");
  CHECK(sentences[1].find("the nearest is HORA_TIMELINE ") != std::string::npos);
}

TEST_CASE("config: an empty variable is no variable") {
  const auto config = config_with({{"HORA_TRANSPORT", ""}});
  REQUIRE(config);
  CHECK(config->transport.empty());
}

TEST_CASE("config: Horovod's names work, in Horovod's units") {
  const auto config = config_with({{"HOROVOD_FUSION_THRESHOLD", "1048576"},
                                   {"HOROVOD_CACHE_CAPACITY", "7"},
                                   {"HOROVOD_START_TIMEOUT", "1.5"},
                                   {"HOROVOD_STALL_CHECK_DISABLE", "2"},
                                   {"HOROVOD_LOG_LEVEL", "FATAL"},
                                   {"HOROVOD_TIMELINE", "DYNAMIC"}});
  REQUIRE(config);
  CHECK(config->fusion_bytes == 1u << 20);
  CHECK(config->cache_capacity == 7);
  CHECK(config->start_timeout_ms == 1500);
  CHECK(config->stall_check_disable);
  CHECK(config->log_level == "error");
  CHECK(config->timeline.empty());
  REQUIRE(config->notes.size() == 6);
  CHECK(config->notes[1] ==
        "HOROVOD_FUSION_THRESHOLD=1048576 is used as HORA_FUSION_BYTES=1048576");
}

TEST_CASE("config: Hora's own name wins over Horovod's, and that is noted") {
  const auto config =
      config_with({{"HORA_FUSION_BYTES", "3"}, {"HOROVOD_FUSION_THRESHOLD", "nonsense"}});
  REQUIRE(config);
  CHECK(config->fusion_bytes == 3);
  CHECK(config->notes ==
        std::vector<std::string>{"HOROVOD_FUSION_THRESHOLD is ignored: HORA_FUSION_BYTES is set"});
}

TEST_CASE("config: nonsense under Horovod's name is refused under that name") {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"HOROVOD_FUSION_THRESHOLD", "much"},
                                          {"HOROVOD_START_TIMEOUT", "-1"},
                                          {"HOROVOD_START_TIMEOUT", "1e99"},
                                          {"HOROVOD_LOG_LEVEL", "loud"}}) {
    const auto config = config_with({{name, value}});
    REQUIRE(!config);
    CHECK(config.error().message.starts_with(name + "='" + value + "', read as HORA_"));
  }
}

TEST_CASE("config: every knob has a name of Horovod's, and no two the same") {
  std::map<std::string, std::string> seen;
  for (const Knob& row : knobs()) {
    REQUIRE(!row.horovod.empty());
    for (const HorovodName& known : row.horovod) {
      CAPTURE(known.name);
      CHECK(seen.emplace(known.name, row.name).second);
      CHECK(from_horovod(known.name, "1")->name == row.name);
    }
  }
  CHECK(!from_horovod("HOROVOD_CYCLE_TIME", "1"));
}

}  // namespace hora::test
