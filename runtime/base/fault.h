// Fault points: where a test makes this process kill itself (HORA_FAULT, docs/testing.md).
//
// A death from outside comes between any two instructions, so a test that sends signals rarely
// meets the one that matters. A fault point is such a place with a name; the plan says at which of
// its passes the process dies.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace hora {

/// The number behind "`point`:" if the plan names that point. A plan is one "point:number".
inline std::optional<std::uint64_t> fault_point(const std::string& plan, std::string_view point) {
  if (!plan.starts_with(point) || plan.size() <= point.size() || plan[point.size()] != ':') {
    return std::nullopt;
  }
  return std::strtoull(plan.c_str() + point.size() + 1, nullptr, 10);
}

}  // namespace hora
