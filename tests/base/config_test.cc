// Knobs: what they accept; what they refuse is named with variable, value and what is allowed.
#include "runtime/base/config.h"

#include <map>

#include <catch2/catch.hpp>

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
}

TEST_CASE("config: an empty variable is no variable") {
  const auto config = config_with({{"HORA_TRANSPORT", ""}});
  REQUIRE(config);
  CHECK(config->transport.empty());
}

}  // namespace hora::test
