// Config: every knob, read in one place, once.
//
// A knob is one row of `knobs()`: name, default, meaning. `horarun --help`, docs/configuration.md
// and the Python docs are generated from the rows. Nobody else calls getenv.
//
// Scripts that were written for Horovod set HOROVOD_ variables. A row knows its names there: the
// same word behind HOROVOD_, and Horovod's own word where that is another one, with the unit
// turned into ours. They count where the HORA_ name is not set; `Config::notes` says so.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace hora {

/// The values of all knobs. A value type: tests build their own.
struct Config {
  std::string log_level = "warning";
  std::uint64_t fusion_bytes = 64ull << 20;        ///< Largest fused buffer.
  std::uint64_t fusion_target_bytes = 8ull << 20;  ///< Fusing stops waiting for more at this size.
  std::uint32_t fusion_hold_ms = 50;         ///< ... or after this long, or when somebody waits.
  std::uint32_t cache_capacity = 4096;       ///< Cached responses.
  std::uint64_t carry_bytes = 4096;          ///< Inputs that travel with negotiation.
  std::uint64_t arena_bytes = 0;             ///< 0: chosen from the memory limit.
  std::uint64_t segment_bytes = 0;           ///< 0: chosen from topology.
  std::uint32_t window = 4;                  ///< W: segments of a lane in flight.
  std::uint32_t submit_queue_limit = 65536;  ///< Tensors in flight at most.
  std::uint32_t start_timeout_ms = 60000;    ///< For all ranks to meet.
  std::uint32_t heartbeat_ms = 200;
  std::uint32_t heartbeat_timeout_ms = 2000;  ///< A silent rank is reported after this long.
  bool heartbeat_abort = false;               ///< ... and the job ended, if set.
  std::uint32_t shutdown_timeout_ms = 5000;   ///< How long an orderly shutdown waits for peers.
  bool stall_check_disable = false;
  double stall_check_seconds = 60;    ///< Report tensors that wait longer than this.
  double stall_shutdown_seconds = 0;  ///< End the job after this long; 0: never.
  /// Static process sets. Given to init, not read from the environment.
  std::vector<std::vector<std::int32_t>> process_sets;
  std::string timeline;                   ///< Chrome-trace file, or empty. %r is the rank.
  bool timeline_mark_cycles = false;      ///< A mark in it for each round of negotiation.
  std::string algorithm;                  ///< Force an algorithm by name; tests and benchmarks.
  std::string transport;                  ///< "", "shm" or "tcp": force it.
  std::string host_id;                    ///< Who shares my memory; default boot id + network ns.
  std::string network_interfaces;         ///< For peers of other hosts: these only, "eth0,eth1".
  std::string host_address;               ///< Which address of this host they shall try first.
  std::uint32_t host_timeout_ms = 30000;  ///< Silence between horarun and a host that ends both.
  std::string ssh = "ssh";                ///< Runs a command on another host.
  std::string congestion;                 ///< TCP congestion control, or empty.
  std::string fault;                      ///< Fault point for tests: docs/testing.md.
  bool engine_thread = true;              ///< false: only waiting callers make progress (tests).
  std::vector<std::string> notes;         ///< HOROVOD_ variables that were used: for the debug log.
  std::vector<std::string> warnings;      ///< About the environment: for the log of rank 0.
};

/// A variable of Horovod's that sets a knob.
struct HorovodName {
  std::string name;
  /// Horovod's text for a value, as the knob's.
  std::function<std::string(const std::string& text)> translate;
};

/// One row per knob.
struct Knob {
  std::string name;     ///< "HORA_FUSION_BYTES"
  std::string meaning;  ///< One sentence, with the unit.
  std::string default_value;
  std::function<Result<void>(Config&, const std::string& text)> set;
  std::vector<HorovodName> horovod;  ///< In the order in which they are looked for.
};

/// All knobs, in the order of the documentation.
const std::vector<Knob>& knobs();

/// Looks up a variable's value; `std::getenv` in production, a map in tests.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;
/// The process environment.
Lookup environment();
/// The names of all its variables.
std::vector<std::string> environment_names();

/// A variable and its value.
struct Assignment {
  std::string name;
  std::string value;

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

/// What HOROVOD_X=text is for Hora; nothing if no knob has that name.
std::optional<Assignment> from_horovod(const std::string& name, const std::string& text);

/// Reads every knob. An unparsable value is an invalid_argument that names variable, value
/// and what is allowed.
Result<Config> read_config(const Lookup& lookup);

}  // namespace hora
