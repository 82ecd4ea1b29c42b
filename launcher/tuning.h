// Tuning: Horovod's options that set a variable for the workers, as flags or in a --config-file.
//
//   --fusion-threshold-mb 32        or in a file:   params:
//                                                     fusion_threshold_mb: 32
//   is HOROVOD_FUSION_THRESHOLD=33554432, which is HORA_FUSION_BYTES=33554432
//
// One table has a row per flag: its key in the file, the variable of Horovod's that it sets, and
// what values it takes. What such a variable means for Hora is the table of knobs' affair
// (runtime/base/config.h): a flag whose variable no knob knows is accepted, so that launch lines
// keep working, and reported as without effect. A flag wins over the file, whatever their order.
// Pure: words in, assignments out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/result.h"

namespace hora {

/// What a flag's value may be.
enum class TuningKind {
  whole,     ///< A whole number >= 0.
  number,    ///< A number >= 0.
  fraction,  ///< A number from 0 to 1.
  text,
  on,   ///< No value: the flag itself, or `true` in the file.
  off,  ///< The same for `false`.
};

struct TuningOption {
  const char* flag;      ///< "--fusion-threshold-mb"
  const char* key;       ///< "params.fusion_threshold_mb"; empty: not in files.
  const char* variable;  ///< "HOROVOD_FUSION_THRESHOLD"; empty: never of any effect.
  TuningKind kind;
  const char* fixed;  ///< The variable's value, for `on` and `off`.
  const char* needs;  ///< Counts only if a row with this variable is set, too; empty: always.
  const char* meaning;
};

/// All rows, in the order of the help text.
const std::vector<TuningOption>& tuning_options();

/// A flag as given, "--cycle-time-ms" with "5"; the text of a switch is not looked at.
struct GivenFlag {
  std::string flag;
  std::string text;
};

/// A line of a config file, "params.cycle_time_ms" with "5".
struct FileSetting {
  std::string key;
  std::string text;
  int line = 0;
};

struct Tuning {
  std::vector<Assignment> assignments;      ///< HORA_ variables for the workers.
  std::vector<std::string> without_effect;  ///< Flags, or keys of the file.
};

/// Flags and file together. `file` names the file in errors. Values that a row does not take,
/// keys that no row has and flags that contradict each other are errors.
Result<Tuning> plan_tuning(const std::vector<GivenFlag>& flags,
                           const std::vector<FileSetting>& settings, std::string_view file);

}  // namespace hora
