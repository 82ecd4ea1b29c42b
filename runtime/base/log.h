// Leveled logs: one line, one write, to stderr.
//
//   hora 12:03:04.123 WARN [rank 2 epoch 1] text
//
// Behind this header sits spdlog; nobody else includes it. Any thread may log. Levels are those of
// HORA_LOG_LEVEL: trace, debug, info, warning, error, off.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/ids.h"

namespace hora {

enum class LogLevel { trace, debug, info, warning, error, off };

/// "warning" -> LogLevel::warning; unknown names give warning.
LogLevel log_level_from(std::string_view name);

/// Writes lines of one Runtime (or launcher). Copyable value: prefix and level. Thread-safe.
class Log {
 public:
  Log() = default;
  Log(LogLevel level, std::string prefix) : level_(level), prefix_(std::move(prefix)) {}

  [[nodiscard]] bool on(LogLevel level) const { return level >= level_ && level_ != LogLevel::off; }
  void write(LogLevel level, std::string_view text) const;
  void debug(std::string_view text) const { write(LogLevel::debug, text); }
  void info(std::string_view text) const { write(LogLevel::info, text); }
  void warning(std::string_view text) const { write(LogLevel::warning, text); }
  void error(std::string_view text) const { write(LogLevel::error, text); }

 private:
  LogLevel level_ = LogLevel::warning;
  std::string prefix_ = "hora";
};

}  // namespace hora
