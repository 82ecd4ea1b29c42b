// First every setting is turned into (variable, value), the file's before the flags', so that a
// later one replaces an earlier one; then each variable is looked up in the table of knobs.
#include "launcher/tuning.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

namespace hora {
namespace {

using Kind = TuningKind;

constexpr const char* kAutotune = "HOROVOD_AUTOTUNE";
constexpr const char* kTimeline = "HOROVOD_TIMELINE";
constexpr const char* kFusion = "HOROVOD_FUSION_THRESHOLD";
constexpr const char* kNone = "";
constexpr const char* kHideTime = "HOROVOD_LOG_HIDE_TIME";

// A row that has been chosen, by a flag or by the file.
struct Choice {
  const TuningOption* row;
  std::string name;  ///< How the user wrote it.
  std::string value;
  bool by_flag;
};

tl::unexpected<Error> bad(std::string_view name, std::string_view text, std::string_view allowed) {
  return fail(ErrorKind::invalid_argument, fmt::format("{}: '{}' is not {}", name, text, allowed));
}

bool same_variable(const TuningOption& a, const TuningOption& b) {
  return *a.variable != '\0' && std::string_view(a.variable) == b.variable;
}

bool is_switch(const TuningOption& row) {
  return row.kind == Kind::on || row.kind == Kind::off;
}

Result<std::string> whole_value(const TuningOption& row, std::string_view name,
                                std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return bad(name, text, "a whole number >= 0");
  }
  if (row.variable != std::string_view(kFusion)) return std::to_string(number);
  if (number > std::numeric_limits<std::uint64_t>::max() >> 20) {
    return bad(name, text, "a size in MB that fits 64 bits");
  }
  return std::to_string(number << 20);
}

Result<std::string> value_for(const TuningOption& row, std::string_view name,
                              std::string_view text) {
  if (is_switch(row)) return std::string(row.fixed);
  if (row.kind == Kind::text) return std::string(text);
  if (row.kind == Kind::whole) return whole_value(row, name, text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool read = error == std::errc{} && end == text.data() + text.size();
  const double most = row.kind == Kind::fraction ? 1 : std::numeric_limits<double>::max();
  if (!read || !(number >= 0 && number <= most)) {
    return bad(name, text, row.kind == Kind::fraction ? "a number from 0 to 1" : "a number >= 0");
  }
  return std::string(text);
}

// The row of a key; of a switch's two rows the one for this value.
Result<const TuningOption*> row_of(const FileSetting& setting, std::string_view name) {
  const bool yes = setting.text == "true" || setting.text == "True" || setting.text == "yes";
  const bool no = setting.text == "false" || setting.text == "False" || setting.text == "no";
  bool known = false;
  for (const TuningOption& row : tuning_options()) {
    if (setting.key != row.key) continue;
    known = true;
    if (!is_switch(row) || (row.kind == Kind::on && yes) || (row.kind == Kind::off && no)) {
      return &row;
    }
  }
  if (known) return bad(name, setting.text, "true or false");
  return fail(ErrorKind::invalid_argument,
              fmt::format("{}: no such setting; horarun --help lists them", name));
}

Result<std::vector<Choice>> choices_of(const std::vector<GivenFlag>& flags,
                                       const std::vector<FileSetting>& settings,
                                       std::string_view file) {
  std::vector<Choice> choices;
  for (const FileSetting& setting : settings) {
    const std::string name = fmt::format("{}:{}: {}", file, setting.line, setting.key);
    if (setting.key == "controller") {  // Hora's own, whichever is named
      if (setting.text == "gloo" || setting.text == "mpi") continue;
      return bad(name, setting.text, "gloo or mpi");
    }
    Result<const TuningOption*> row = row_of(setting, name);
    if (!row) return fail(std::move(row.error()));
    Result<std::string> value = value_for(**row, name, setting.text);
    if (!value) return fail(std::move(value.error()));
    choices.push_back({*row, setting.key, std::move(*value), false});
  }
  for (const GivenFlag& given : flags) {
    const auto& rows = tuning_options();
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const TuningOption& candidate) {
      return given.flag == candidate.flag;
    });
    if (row == rows.end()) continue;  // the caller took the names from the table
    Result<std::string> value = value_for(*row, given.flag, given.text);
    if (!value) return fail(std::move(value.error()));
    choices.push_back({&*row, given.flag, std::move(*value), true});
  }
  return choices;
}

// One choice per variable: the last, which is a flag if there is one.
Result<std::vector<Choice>> settle(std::vector<Choice> choices) {
  std::vector<Choice> settled;
  for (Choice& choice : choices) {
    const auto earlier = std::find_if(settled.begin(), settled.end(), [&](const Choice& other) {
      return other.row == choice.row || same_variable(*other.row, *choice.row);
    });
    if (earlier == settled.end()) {
      settled.push_back(std::move(choice));
      continue;
    }
    if (earlier->by_flag && choice.by_flag && earlier->row != choice.row &&
        earlier->value != choice.value) {
      return fail(ErrorKind::invalid_argument,
                  fmt::format("{} and {} contradict each other", earlier->name, choice.name));
    }
    *earlier = std::move(choice);
  }
  return settled;
}

bool has_needed(const std::vector<Choice>& choices, const TuningOption& row) {
  if (*row.needs == '\0') return true;
  return std::any_of(choices.begin(), choices.end(), [&](const Choice& other) {
    return other.row->variable == std::string_view(row.needs) && other.value != "0";
  });
}

}  // namespace

const std::vector<TuningOption>& tuning_options() {
  static const std::vector<TuningOption> rows = {
      {"--fusion-threshold-mb", "params.fusion_threshold_mb", kFusion, Kind::whole, "", "",
       "largest fused buffer in MB; 0: no fusion"},
      {"--cycle-time-ms", "params.cycle_time_ms", "HOROVOD_CYCLE_TIME", Kind::number, "", "",
       "milliseconds between two rounds of negotiation"},
      {"--cache-capacity", "params.cache_capacity", "HOROVOD_CACHE_CAPACITY", Kind::whole, "", "",
       "tensors known by one bit each; 0: none"},
      {"--hierarchical-allreduce", "params.hierarchical_allreduce",
       "HOROVOD_HIERARCHICAL_ALLREDUCE", Kind::on, "1", "", "reduce inside hosts first"},
      {"--no-hierarchical-allreduce", "params.hierarchical_allreduce",
       "HOROVOD_HIERARCHICAL_ALLREDUCE", Kind::off, "0", "", "... never"},
      {"--hierarchical-allgather", "params.hierarchical_allgather",
       "HOROVOD_HIERARCHICAL_ALLGATHER", Kind::on, "1", "", "gather inside hosts first"},
      {"--no-hierarchical-allgather", "params.hierarchical_allgather",
       "HOROVOD_HIERARCHICAL_ALLGATHER", Kind::off, "0", "", "... never"},
      {"--torus-allreduce", "params.torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", Kind::on, "1", "",
       "reduce along the rows and columns of a torus"},
      {"--no-torus-allreduce", "params.torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", Kind::off, "0",
       "", "... never"},
      {"--autotune", "autotune.enabled", kAutotune, Kind::on, "1", "",
       "choose parameters while training"},
      {"--no-autotune", "autotune.enabled", kAutotune, Kind::off, "0", "", "... never"},
      {"--autotune-log-file", "autotune.log_file", "HOROVOD_AUTOTUNE_LOG", Kind::text, "",
       kAutotune, "write what was tried to this file"},
      {"--autotune-warmup-samples", "autotune.warmup_samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
       Kind::whole, "", kAutotune, "samples to discard first"},
      {"--autotune-steps-per-sample", "autotune.steps_per_sample",
       "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", Kind::whole, "", kAutotune, "steps a sample"},
      {"--autotune-bayes-opt-max-samples", "autotune.bayes_opt_max_samples",
       "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", Kind::whole, "", kAutotune, "samples at most"},
      {"--autotune-gaussian-process-noise", "autotune.gaussian_process_noise",
       "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", Kind::fraction, "", kAutotune,
       "noise that the tuner expects, 0 to 1"},
      {"--timeline-filename", "timeline.filename", kTimeline, Kind::text, "", "",
       "write a Chrome trace to this file"},
      {"--timeline-mark-cycles", "timeline.mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", Kind::on,
       "1", kTimeline, "mark rounds of negotiation in it"},
      {"--no-timeline-mark-cycles", "timeline.mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES",
       Kind::off, "0", kTimeline, "... never"},
      {"--stall-check", "stall_check.enabled", "HOROVOD_STALL_CHECK_DISABLE", Kind::on, "0", "",
       "report tensors that wait for some ranks"},
      {"--no-stall-check", "stall_check.enabled", "HOROVOD_STALL_CHECK_DISABLE", Kind::off, "1", "",
       "... never"},
      {"--stall-check-warning-time-seconds", "stall_check.warning_time_seconds",
       "HOROVOD_STALL_CHECK_TIME_SECONDS", Kind::whole, "", "", "... after this many seconds"},
      {"--stall-check-shutdown-time-seconds", "stall_check.shutdown_time_seconds",
       "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", Kind::whole, "", "",
       "... and end the job after this many; 0: never"},
      {"--log-level", "logging.level", "HOROVOD_LOG_LEVEL", Kind::text, "", "",
       "trace, debug, info, warning or error"},
      {"--log-with-timestamp", "logging.with_timestamp", kHideTime, Kind::on, "0", "",
       "times in the log"},
      {"--log-without-timestamp", "logging.with_timestamp", kHideTime, Kind::off, "1", "",
       "no times in the log"},
      {"--log-hide-timestamp", "", kHideTime, Kind::on, "1", "", "old name of the last"},
      {"--no-log-hide-timestamp", "", kHideTime, Kind::off, "0", "", "old name of the one before"},
      {"--mpi-threads-disable", "library_options.mpi_threads_disable",
       "HOROVOD_MPI_THREADS_DISABLE", Kind::on, "1", "", "for MPI"},
      {"--no-mpi-threads-disable", "library_options.mpi_threads_disable",
       "HOROVOD_MPI_THREADS_DISABLE", Kind::off, "0", "", "for MPI"},
      {"--num-nccl-streams", "library_options.num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS",
       Kind::whole, "", "", "streams of NCCL"},
      {"--thread-affinity", "library_options.thread_affinity", "HOROVOD_THREAD_AFFINITY",
       Kind::text, "", "", "cores of the background threads"},
      {"--gloo-timeout-seconds", "library_options.gloo_timeout_seconds",
       "HOROVOD_GLOO_TIMEOUT_SECONDS", Kind::whole, "", "", "for Gloo"},
      {"--mpi-args", "", kNone, Kind::text, "", "", "for mpirun"},
      {"--binding-args", "", kNone, Kind::text, "", "", "for mpirun"},
      {"--tcp", "", kNone, Kind::on, "1", "", "for mpirun"},
      {"--disable-cache", "", kNone, Kind::on, "1", "", "check hosts anew; Hora always does"},
  };
  return rows;
}

Result<Tuning> plan_tuning(const std::vector<GivenFlag>& flags,
                           const std::vector<FileSetting>& settings, std::string_view file) {
  Result<std::vector<Choice>> all = choices_of(flags, settings, file);
  if (!all) return fail(std::move(all.error()));
  Result<std::vector<Choice>> choices = settle(std::move(*all));
  if (!choices) return fail(std::move(choices.error()));
  Tuning tuning;
  for (const Choice& choice : *choices) {
    auto assignment = from_horovod(choice.row->variable, choice.value);
    if (assignment && has_needed(*choices, *choice.row)) {
      tuning.assignments.push_back(std::move(*assignment));
    } else {
      tuning.without_effect.push_back(choice.name);
    }
  }
  return tuning;
}

}  // namespace hora
