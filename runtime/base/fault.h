// Fault points: where a test makes this process kill itself (HORA_FAULT, docs/testing.md).
//
// A death from outside comes between any two instructions, so a test that sends signals rarely
// meets the one that matters. A fault point is such a place with a name; the plan says at which of
// its passes the process dies.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace hora {

/// All that there are.
inline constexpr std::array<std::string_view, 4> kFaultPoints = {
    "kill-before-task", "kill-after-task", "kill-at-publish", "kill-mid-frame"};

/// The number behind "`point`:" if the plan names that point. A plan is one "point:number".
inline std::optional<std::uint64_t> fault_point(std::string_view plan, std::string_view point) {
  if (!plan.starts_with(point) || plan.size() <= point.size() || plan[point.size()] != ':') {
    return std::nullopt;
  }
  plan.remove_prefix(point.size() + 1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(plan.data(), plan.data() + plan.size(), number);
  if (error != std::errc{} || end != plan.data() + plan.size()) return std::nullopt;
  return number;
}

}  // namespace hora
