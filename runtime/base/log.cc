// The adapter of spdlog: the one file that includes it.
//
// Every Log writes through one process-wide stderr sink of spdlog's, which serializes lines. A line
// is written even from a thread that holds no lock of ours.
#include "runtime/base/log.h"

#include <array>
#include <utility>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace hora {

namespace {

constexpr std::array<std::pair<std::string_view, LogLevel>, 7> kLevels = {
    {{"trace", LogLevel::trace},
     {"debug", LogLevel::debug},
     {"info", LogLevel::info},
     {"warning", LogLevel::warning},
     {"warn", LogLevel::warning},
     {"error", LogLevel::error},
     {"off", LogLevel::off}}};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return spdlog::level::trace;
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::warn;
}

spdlog::logger& logger() {
  // Never destroyed: exit handlers of the host program may still log.
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("hora", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->set_pattern("hora %H:%M:%S.%e %l %v");
    return made;
  }();
  return *instance;
}

}  // namespace

LogLevel log_level_from(std::string_view name) {
  std::string lower(name);
  for (char& c : lower)
    c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (const auto& [text, level] : kLevels) {
    if (text == lower) return level;
  }
  return LogLevel::warning;
}

void Log::write(LogLevel level, std::string_view text) const {
  if (!on(level)) return;
  try {
    logger().log(to_spdlog(level), "[{}] {}", prefix_, text);
  } catch (const std::exception&) {  // A full disk behind stderr must not end the training.
  }
}

}  // namespace hora
