// The table of knobs, and the one call of getenv.
#include "runtime/base/config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include <unistd.h>

#include "runtime/base/fault.h"

namespace hora {

namespace {

tl::unexpected<Error> bad_value(const std::string& name, const std::string& text,
                                const std::string& allowed) {
  return fail(ErrorKind::invalid_argument, name + "='" + text + "' is not " + allowed);
}

template <class Number>
std::string show(Number value) {
  if constexpr (std::is_same_v<Number, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<Number, bool>) {
    return value ? "1" : "0";
  } else if constexpr (std::is_integral_v<Number>) {
    return std::to_string(value);
  } else {
    std::string text = std::to_string(value);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
    return text;
  }
}

/// A number with an optional unit suffix K, M or G (powers of 1024) for integers.
template <class Number>
Result<Number> parse_number(const std::string& name, const std::string& text) {
  constexpr bool kInteger = std::is_integral_v<Number>;
  const std::string allowed =
      kInteger ? "a whole number >= 0 (K, M, G may follow)" : "a number >= 0";
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    return bad_value(name, text, "at most " + show(std::numeric_limits<Number>::max()));
  }
  if (error != std::errc{} || stop == text.data() || value < Number{}) {
    return bad_value(name, text, allowed);
  }
  std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  if (suffix.empty()) return value;
  if constexpr (kInteger) {
    int shift = 0;
    if (suffix == "K") shift = 10;
    if (suffix == "M") shift = 20;
    if (suffix == "G") shift = 30;
    const Number shifted = static_cast<Number>(value << shift);
    if (shift > 0 && (shifted >> shift) == value) return shifted;
  }
  return bad_value(name, text, allowed);
}

std::string unchanged(const std::string& text) {
  return text;
}

/// Horovod reads a switch as a number: on if it is positive.
std::string as_switch(const std::string& text) {
  return std::strtol(text.c_str(), nullptr, 10) > 0 ? "1" : "0";
}

/// Horovod's levels in any case; its "fatal" is the most severe that we have.
std::string as_log_level(const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower == "fatal" ? "error" : lower;
}

/// "DYNAMIC" tells Horovod to wait for start_timeline: no file for now.
std::string as_timeline(const std::string& text) {
  return text == "DYNAMIC" ? "" : text;
}

/// What is no number of seconds is left as it is, for the knob to refuse.
std::string seconds_as_ms(const std::string& text) {
  double seconds = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc{} || stop != end || !(seconds >= 0 && seconds < 4e6)) return text;
  return std::to_string(std::llround(seconds * 1000));
}

template <class T>
Knob knob(const char* name, T Config::*member, const char* meaning) {
  Knob row{name, meaning, show(Config{}.*member), nullptr, {}};
  const std::string word(std::string_view(name).substr(std::string_view("HORA_").size()));
  row.horovod = {{"HOROVOD_" + word, std::is_same_v<T, bool> ? as_switch : unchanged}};
  row.set = [name, member](Config& config, const std::string& text) -> Result<void> {
    if constexpr (std::is_same_v<T, std::string>) {
      config.*member = text;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (text != "0" && text != "1") return bad_value(name, text, "0 or 1");
      config.*member = text == "1";
    } else {
      auto value = parse_number<T>(name, text);
      if (!value) return tl::unexpected<Error>(value.error());
      config.*member = *value;
    }
    return {};
  };
  return row;
}

/// The same knob, with values below `least` refused.
template <class T>
Knob at_least(T least, Knob row, T Config::*member) {
  row.set = [least, member, name = row.name, set = row.set](
                Config& config, const std::string& text) -> Result<void> {
    HORA_TRY(set(config, text));
    if (config.*member < least) return bad_value(name, text, "at least " + show(least));
    return {};
  };
  return row;
}

/// The same knob, with only these values.
Knob one_of(std::vector<std::string> values, Knob row) {
  row.set = [values = std::move(values), name = row.name, set = row.set](
                Config& config, const std::string& text) -> Result<void> {
    if (std::find(values.begin(), values.end(), text) != values.end()) return set(config, text);
    std::string names;
    for (const std::string& value : values)
      names += (names.empty() ? "" : ", ") + value;
    return bad_value(name, text, "one of " + names);
  };
  return row;
}

/// The same knob, with only plans of one fault: "POINT:NUMBER".
Knob fault_plan(Knob row) {
  row.set = [name = row.name, set = row.set](Config& config,
                                             const std::string& text) -> Result<void> {
    std::string points;
    for (const std::string_view point : kFaultPoints) {
      if (fault_point(text, point)) return set(config, text);
      points += (points.empty() ? "" : ", ") + std::string(point);
    }
    return bad_value(name, text, "POINT:NUMBER, with POINT one of " + points);
  };
  return row;
}

/// The same knob, known to Horovod by these names and no others.
Knob known_as(std::vector<HorovodName> names, Knob row) {
  row.horovod = std::move(names);
  return row;
}

std::vector<Knob> make_knobs() {
  return {
      known_as({{"HOROVOD_LOG_LEVEL", as_log_level}},
               one_of({"trace", "debug", "info", "warning", "error", "off"},
                      knob("HORA_LOG_LEVEL", &Config::log_level,
                           "trace, debug, info, warning, error or off."))),
      known_as({{"HOROVOD_FUSION_THRESHOLD", unchanged}},
               knob("HORA_FUSION_BYTES", &Config::fusion_bytes,
                    "Largest fused buffer, in bytes; 0: no fusion.")),
      knob("HORA_FUSION_TARGET_BYTES", &Config::fusion_target_bytes,
           "Tensors that nobody waits for are held until this many bytes are ready."),
      knob("HORA_FUSION_HOLD_MS", &Config::fusion_hold_ms,
           "... or until they have been held this long."),
      knob("HORA_CACHE_CAPACITY", &Config::cache_capacity,
           "Tensors known by one bit each; 0: every request travels whole."),
      knob("HORA_CARRY_BYTES", &Config::carry_bytes,
           "Known tensors that are waited for, of up to this many bytes together, are reduced by "
           "rank 0 while the ranks agree on them; 0: none."),
      knob("HORA_ARENA_BYTES", &Config::arena_bytes,
           "Shared memory of a rank; 0: 256 MB, or an eighth of the memory limit over the ranks of "
           "the host if that is less."),
      knob("HORA_SEGMENT_BYTES", &Config::segment_bytes,
           "Bytes that go through a collective as one; 0: chosen from the topology."),
      at_least(1u, knob("HORA_WINDOW", &Config::window, "Segments of a lane in flight."),
               &Config::window),
      at_least(1u,
               knob("HORA_SUBMIT_QUEUE_LIMIT", &Config::submit_queue_limit,
                    "Tensors in flight at most."),
               &Config::submit_queue_limit),
      known_as({{"HOROVOD_START_TIMEOUT", seconds_as_ms}},
               knob("HORA_START_TIMEOUT_MS", &Config::start_timeout_ms,
                    "How long init waits for all ranks.")),
      at_least(1u, knob("HORA_HEARTBEAT_MS", &Config::heartbeat_ms, "Time between heartbeats."),
               &Config::heartbeat_ms),
      knob("HORA_HEARTBEAT_TIMEOUT_MS", &Config::heartbeat_timeout_ms,
           "A rank silent for this long is reported by name."),
      knob("HORA_HEARTBEAT_ABORT", &Config::heartbeat_abort, "1: a silent rank counts as lost."),
      knob("HORA_SHUTDOWN_TIMEOUT_MS", &Config::shutdown_timeout_ms,
           "How long an orderly shutdown waits for the other ranks."),
      knob("HORA_STALL_CHECK_DISABLE", &Config::stall_check_disable, "1: no stall reports."),
      knob("HORA_STALL_CHECK_TIME_SECONDS", &Config::stall_check_seconds,
           "A tensor that waits for some ranks this long is reported."),
      knob("HORA_STALL_SHUTDOWN_TIME_SECONDS", &Config::stall_shutdown_seconds,
           "... and ends the job after this long; 0: never."),
      known_as({{"HOROVOD_TIMELINE", as_timeline}},
               knob("HORA_TIMELINE", &Config::timeline,
                    "Write a Chrome trace to this file (%r: the rank; without it rank 0 alone).")),
      knob("HORA_TIMELINE_MARK_CYCLES", &Config::timeline_mark_cycles,
           "1: a mark in it for each round of negotiation."),
      knob("HORA_ALGORITHM", &Config::algorithm,
           "Use this all-reduce algorithm only (for comparison)."),
      one_of({"shm", "tcp"},
             knob("HORA_TRANSPORT", &Config::transport, "shm or tcp: use this transport only.")),
      knob("HORA_HOST_ID", &Config::host_id,
           "Ranks with equal ids share memory; default: boot id and network namespace."),
      knob("HORA_NETWORK_INTERFACES", &Config::network_interfaces,
           "Ranks of other hosts reach this one through these interfaces only, as in eth0,eth1."),
      knob("HORA_HOST_ADDRESS", &Config::host_address,
           "... and try this address first; horarun sets it."),
      at_least(1000u,
               knob("HORA_HOST_TIMEOUT_MS", &Config::host_timeout_ms,
                    "horarun gives up a host that is silent for so long, and the host its ranks."),
               &Config::host_timeout_ms),
      knob("HORA_SSH", &Config::ssh,
           "Command that horarun reaches other hosts with, and its options; called as ssh is."),
      knob("HORA_CONGESTION", &Config::congestion, "TCP congestion control of data sockets."),
      fault_plan(knob("HORA_FAULT", &Config::fault,
                      "Kill this rank at a point, for tests: docs/testing.md.")),
      knob("HORA_ENGINE_THREAD", &Config::engine_thread,
           "0: only callers that wait make progress (for measurements)."),
  };
}

}  // namespace

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> rows = make_knobs();
  return rows;
}

Lookup environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view assignment(*entry);
    names.emplace_back(assignment.substr(0, assignment.find('=')));
  }
  return names;
}

std::optional<Assignment> from_horovod(const std::string& name, const std::string& text) {
  for (const Knob& row : knobs()) {
    for (const HorovodName& known : row.horovod) {
      if (known.name == name) return Assignment{row.name, known.translate(text)};
    }
  }
  return std::nullopt;
}

Result<Config> read_config(const Lookup& lookup) {
  Config config;
  for (const Knob& row : knobs()) {
    const auto own = lookup(row.name);
    const bool has_own = own && !own->empty();
    if (has_own) HORA_TRY(row.set(config, *own));
    for (const HorovodName& known : row.horovod) {
      const auto text = lookup(known.name);
      if (!text || text->empty()) continue;
      if (has_own) {
        config.notes.push_back(known.name + " is ignored: " + row.name + " is set");
        break;
      }
      if (auto set = row.set(config, known.translate(*text)); !set) {
        return fail(set.error().kind,
                    known.name + "='" + *text + "', read as " + set.error().message);
      }
      config.notes.push_back(known.name + "=" + *text + " is used as " + row.name + "=" +
                             known.translate(*text));
      break;
    }
  }
  return config;
}

}  // namespace hora
