// The names that Hora reads: the knobs, and what tells a process its place in the job. Distances
// are Levenshtein's: letters put in, left out or replaced.
#include "runtime/base/misspelt.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "runtime/base/config.h"

namespace hora {

namespace {

constexpr std::string_view kPrefix = "HORA_";

/// Read by elastic/placement.cc and the Python package; set by horarun.
constexpr std::array<std::string_view, 14> kPlaces = {
    "HORA_RANK",
    "HORA_SIZE",
    "HORA_LOCAL_RANK",
    "HORA_LOCAL_SIZE",
    "HORA_CROSS_RANK",
    "HORA_CROSS_SIZE",
    "HORA_JOB",
    "HORA_SECRET",
    "HORA_RENDEZVOUS",
    "HORA_ELASTIC",
    "HORA_HOROVOD_COMPAT",
    "HORA_RUN_KEY",
    "HORA_RUN_PORT",
    "HORA_RENDEZVOUS_PORT",
};

/// Read by Hora's own tests and builds.
constexpr std::array<std::string_view, 3> kForeign = {"HORA_CHAOS_", "HORA_TEST_", "HORA_BENCH_"};

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> unknown_variables(const std::vector<std::string>& names) {
  std::vector<std::string> known(kPlaces.begin(), kPlaces.end());
  for (const Knob& knob : knobs())
    known.push_back(knob.name);
  std::vector<std::string> sentences;
  for (const std::string& name : names) {
    const bool foreign =
        !name.starts_with(kPrefix) ||
        std::any_of(kForeign.begin(), kForeign.end(),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (foreign || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto nearest = std::min_element(known.begin(), known.end(),
                                          [&](const std::string& a, const std::string& b) {
                                            return distance(name, a) < distance(name, b);
                                          });
    sentences.push_back(name + " is none of Hora's variables and has no effect; the nearest is " +
                        *nearest + " (horarun --help lists all)");
  }
  return sentences;
}

}  // namespace hora
