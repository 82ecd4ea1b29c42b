// The command line of horarun.
//
// The names are horovodrun's, so that a launch line keeps working when its first word changes; long
// names may be cut short where that is no other name's beginning, too. What Hora has no use for is
// accepted, what it cannot do is refused in words.
// Behind this header sits CLI11; nobody else includes it. The worker's command begins at the first
// word that is neither an option nor an option's value; everything from there on is the worker's,
// dashes and all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/tuning.h"
#include "runtime/base/result.h"

namespace hora {

/// A job to run.
struct RunOptions {
  std::optional<int> num_proc;
  std::optional<int> min_np;      ///< The job goes on when ranks die, with as many.
  std::optional<int> max_np;      ///< The job has no more; it has what it starts with.
  std::string hosts;              ///< "localhost:4"; empty: this host.
  std::string hostfile;           ///< A path; empty: none. Not together with `hosts`.
  int ssh_port = 0;               ///< 0: ssh's own choice.
  std::string ssh_identity_file;  ///< Empty: ssh's own choice.
  std::string remote_horarun;     ///< Path or name on other hosts; empty: look for it.
  std::vector<std::string> network_interfaces;  ///< Empty: all.
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> assignments;  ///< --env
  std::optional<std::uint32_t> start_timeout_ms;
  std::string config_file;        ///< A path; empty: none.
  std::vector<GivenFlag> tuning;  ///< For plan_tuning().
  std::string output_directory;   ///< Empty: none.
  bool prefix_timestamp = false;
  bool horovod_compat = false;  ///< Scripts find Hora under Horovod's name.
  bool verbose = false;
  bool quiet = false;
};

/// A text to print, and nothing to run: --help, --version, --check-build.
struct Answer {
  std::string text;
};

/// Reads the command line without the program's name. Errors say what to write instead.
Result<std::variant<RunOptions, Answer>> parse_options(const std::vector<std::string>& arguments);

}  // namespace hora
