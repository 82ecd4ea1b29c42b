// CLI11 is told the options; what it cannot know is done before: long names with one dash are
// turned into their canonical ones, and the words from the worker's command on are kept away from
// it. Its exceptions end here.
#include "launcher/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "runtime/base/config.h"

namespace hora {
namespace {

constexpr const char* kUsage =
    "horarun -np N [options] command [arguments]\n\n"
    "Starts N workers of a Hora job on this and other hosts, shows their output line by line "
    "behind\n"
    "[rank]<stdout>: or [rank]<stderr>:, and ends the whole job when one of them fails (but see\n"
    "--min-np). The exit code is that of the worker whose failure ended the job (128 + n if signal "
    "n "
    "killed\n"
    "it), 0 if none did.\n";

constexpr const char* kCheckBuild =
    "Hora v" HORA_VERSION
    ":\n\n"
    "Available Frameworks:\n"
    "    [X] PyTorch\n    [X] NumPy\n    [ ] TensorFlow\n    [ ] MXNet\n\n"
    "Available Controllers:\n"
    "    [X] Hora (in Gloo's place)\n    [ ] MPI\n\n"
    "Available Tensor Operations:\n"
    "    [X] shared memory\n    [X] TCP\n"
    "    [ ] NCCL\n    [ ] DDL\n    [ ] CCL\n    [ ] MPI\n\n"
    "Launch:\n"
    "    [X] this host\n    [X] other hosts (ssh)\n"
    "    [X] as torchrun's, Slurm's or Open MPI's workers\n";

// Options of Horovod's elastic jobs, whose hosts come and go. They take a value each.
constexpr std::array kElastic = {"--host-discovery-script", "--slots-per-host", "--elastic-timeout",
                                 "--reset-limit", "--blacklist-cooldown-range"};

// What CLI11 fills in; turned into RunOptions when it is complete.
struct Raw {
  std::string num_proc;
  std::string min_np, max_np;
  std::string start_timeout_s;
  std::vector<std::string> assignments;
  std::vector<std::string> tuning;  ///< The values, one per row of tuning_options().
  std::vector<std::string> elastic;
  bool check_build = false;
  RunOptions run;
};

std::string knob_table() {
  std::string text = "Environment variables, read by every worker (and passed on by horarun):\n";
  for (const Knob& knob : knobs()) {
    text += fmt::format("  {:<30} {} [{}]\n", knob.name, knob.meaning, knob.default_value);
  }
  return text;
}

void add_tuning_options(CLI::App& app, Raw& raw) {
  const auto& rows = tuning_options();
  raw.tuning.resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TuningOption& row = rows[i];
    const bool without_value = row.kind == TuningKind::on || row.kind == TuningKind::off;
    CLI::Option* const option = without_value
                                    ? app.add_flag(row.flag)->description(row.meaning)
                                    : app.add_option(row.flag, raw.tuning[i], row.meaning)
                                          ->type_name(row.kind == TuningKind::text ? "TEXT" : "N")
                                          ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->group("Tuning (the names are Horovod's; what has no effect here is said)");
  }
}

// Options that choose between things of which Hora has one, and those of elastic jobs.
void add_compatible_options(CLI::App& app, Raw& raw) {
  const std::string group = "Horovod's other options";
  CLI::Option* const gloo = app.add_flag("--gloo");
  CLI::Option* const mpi = app.add_flag("--mpi");
  gloo->group(group)->description("accepted: Hora stands in Gloo's place");
  mpi->group(group)->description("accepted: no MPI is used")->excludes(gloo);
  for (const char* names : kElastic) {
    app.add_option(names, raw.elastic, "not yet: the hosts of a job are fixed")
        ->type_name("...")
        ->expected(std::string_view(names) == "--blacklist-cooldown-range" ? 2 : 1)
        ->group(group);
  }
}

void add_options(CLI::App& app, Raw& raw) {
  app.set_version_flag("-v,--version", "horarun " HORA_VERSION);
  app.set_help_flag("-h,--help", "print this and exit");
  app.add_option("--num-proc,-n", raw.num_proc, "number of processes; also written -np")
      ->type_name("N");
  app.add_option("--min-np,--min-num-proc", raw.min_np,
                 "go on without ranks that die, as long as N are left; else a death ends the job")
      ->type_name("N");
  app.add_option("--max-np,--max-num-proc", raw.max_np,
                 "accepted if it is not less than -np: no ranks come to a job")
      ->type_name("N");
  CLI::Option* const hosts =
      app.add_option("-H,--hosts", raw.run.hosts, "hosts and slots, such as node1:4,node2:4")
          ->type_name("HOST:N,...");
  app.add_option("--hostfile", raw.run.hostfile, "the same from a file: HOST slots=N a line")
      ->type_name("FILE")
      ->excludes(hosts);
  app.add_option("-p,--ssh-port", raw.run.ssh_port, "port of ssh on the other hosts")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535));
  app.add_option("-i,--ssh-identity-file", raw.run.ssh_identity_file, "private key for ssh")
      ->type_name("FILE");
  app.add_option("--remote-horarun", raw.run.remote_horarun,
                 "horarun on the other hosts, a path or a name; else this one's path, then PATH")
      ->type_name("FILE");
  app.add_option("--network-interfaces,--network-interface", raw.run.network_interfaces,
                 "ranks of different hosts use these only")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->expected(1)
      ->take_all();
  app.add_option("--start-timeout", raw.start_timeout_s, "seconds for all workers to meet")
      ->type_name("S");
  app.add_option("--env", raw.assignments, "set a variable for the workers; may be repeated")
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->take_all();
  app.add_option("--output-filename", raw.run.output_directory,
                 "also write each worker's lines to DIR/rank.N/stdout and stderr")
      ->type_name("DIR");
  app.add_flag("--prefix-output-with-timestamp", raw.run.prefix_timestamp,
               "put date and time before [rank]; also written -prefix-timestamp");
  app.add_flag("--horovod-compat", raw.run.horovod_compat,
               "`import horovod` in scripts means Hora, also where Horovod is installed");
  app.add_flag("--check-build", raw.check_build, "print what this build can do; also written -cb");
  app.add_flag("--verbose", raw.run.verbose, "say what is started and how it ended");
  app.add_flag("--quiet", raw.run.quiet, "say nothing but errors");
  app.add_option("--config-file", raw.run.config_file,
                 "YAML file with the options below in sections; flags win over it")
      ->type_name("FILE");
  add_tuning_options(app, raw);
  add_compatible_options(app, raw);
  app.footer(knob_table());
}

// Horovod's long options with one dash, which CLI11 would read as bundles of short ones.
std::string canonical(const std::string& word) {
  if (word == "-np") return "--num-proc";
  if (word.starts_with("-np=")) return "--num-proc" + word.substr(3);
  if (word == "-cb") return "--check-build";
  if (word == "-prefix-timestamp") return "--prefix-output-with-timestamp";
  if (word == "-hostfile") return "--hostfile";
  return word;
}

// The option's name in a word such as "--env=A=1", "-Hlocalhost:2" or "-n4".
std::string option_name(const std::string& word) {
  return word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
}

// The long names that begin with `start`.
std::vector<std::string> long_names(const CLI::App& app, std::string_view start) {
  std::vector<std::string> found;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (("--" + name).starts_with(start)) found.push_back("--" + name);
    }
  }
  return found;
}

// A long name that was cut short, in full.
Result<void> complete(const CLI::App& app, std::string& word) {
  const std::string name = option_name(word);
  if (!name.starts_with("--") || app.get_option_no_throw(name) != nullptr) return {};
  const std::vector<std::string> names = long_names(app, name);
  if (names.size() > 1) {
    return fail(ErrorKind::invalid_argument,
                fmt::format("{} could be {}", name, fmt::join(names, " or ")));
  }
  if (names.size() == 1) word.replace(0, name.size(), names[0]);
  return {};
}

// Index of the first word of the worker's command; the options before it are completed. Unknown
// options count as flags: CLI11 complains about them.
Result<std::size_t> find_command(const CLI::App& app, std::vector<std::string>& words) {
  std::size_t at = 0;
  while (at < words.size() && words[at].size() > 1 && words[at].front() == '-') {
    if (words[at] == "--") return at;
    HORA_TRY(complete(app, words[at]));
    const std::string name = option_name(words[at]);
    const CLI::Option* option = app.get_option_no_throw(name);
    const int values = option == nullptr ? 0 : option->get_items_expected_max();
    at += values > 0 && words[at] == name ? 1 + static_cast<std::size_t>(values) : 1;
  }
  return std::min(at, words.size());
}

// The flags of the tuning table that were given.
std::vector<GivenFlag> given_tuning(const Raw& raw, const CLI::App& app) {
  std::vector<GivenFlag> given;
  const auto& rows = tuning_options();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (app.count(rows[i].flag) > 0) given.push_back({rows[i].flag, raw.tuning[i]});
  }
  return given;
}

Result<void> refuse_elastic(const CLI::App& app) {
  for (const std::string_view names : kElastic) {
    const std::string name(names.substr(0, names.find(',')));
    if (app.count(name) == 0) continue;
    return fail(ErrorKind::unsupported,
                fmt::format("{}: this version of Hora cannot let hosts or workers come; leave it "
                            "out, and name fixed hosts with --hosts or --hostfile. Workers may go: "
                            "--min-np",
                            name));
  }
  return {};
}

// The whole text as a number, or nothing.
template <class Number>
std::optional<Number> number_in(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

Result<void> read_numbers(const Raw& raw, const CLI::App& app, RunOptions& run) {
  if (app.count("--num-proc") > 0) {
    run.num_proc = number_in<int>(raw.num_proc);
    if (!run.num_proc) {
      return fail(
          ErrorKind::invalid_argument,
          fmt::format("-np needs a number of processes, such as -np 4, not '{}'", raw.num_proc));
    }
  }
  if (app.count("--min-np") > 0) {
    run.min_np = number_in<int>(raw.min_np);
    if (!run.min_np || *run.min_np < 1) {
      return fail(ErrorKind::invalid_argument,
                  fmt::format("--min-np needs the number of ranks with which the job goes on, such "
                              "as --min-np 3, not '{}'",
                              raw.min_np));
    }
  }
  if (app.count("--max-np") > 0) {
    run.max_np = number_in<int>(raw.max_np);
    if (!run.max_np || *run.max_np < 1) {
      return fail(ErrorKind::invalid_argument,
                  fmt::format("--max-np needs a number of ranks, not '{}'", raw.max_np));
    }
  }
  if (app.count("--start-timeout") > 0) {
    // A day is more than any job waits, and keeps the milliseconds far from overflow.
    const double seconds = number_in<double>(raw.start_timeout_s).value_or(-1);
    if (!(seconds >= 0.001 && seconds <= 86400)) {
      return fail(ErrorKind::invalid_argument,
                  fmt::format("--start-timeout must be from 0.001 to 86400 seconds, not {}",
                              raw.start_timeout_s));
    }
    run.start_timeout_ms = static_cast<std::uint32_t>(std::lround(seconds * 1000));
  }
  return {};
}

Result<RunOptions> finish(Raw& raw, const CLI::App& app) {
  HORA_TRY(read_numbers(raw, app, raw.run));
  for (const std::string& text : raw.assignments) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return fail(ErrorKind::invalid_argument, fmt::format("--env: '{}' is not NAME=VALUE", text));
    }
    raw.run.assignments.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  HORA_TRY(refuse_elastic(app));
  raw.run.tuning = given_tuning(raw, app);
  if (raw.run.command.empty()) {
    return fail(ErrorKind::invalid_argument,
                "no command to run; for example: horarun -np 4 python train.py");
  }
  return std::move(raw.run);
}

}  // namespace

Result<std::variant<RunOptions, Answer>> parse_options(const std::vector<std::string>& arguments) {
  Raw raw;
  CLI::App app(kUsage, "horarun");
  add_options(app, raw);
  std::vector<std::string> words;
  words.reserve(arguments.size());
  for (const std::string& word : arguments)
    words.push_back(canonical(word));
  const Result<std::size_t> command = find_command(app, words);
  if (!command) return fail(command.error().kind, command.error().message);
  const std::size_t skip = *command < words.size() && words[*command] == "--" ? 1 : 0;
  raw.run.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(*command + skip),
                         arguments.end());
  words.resize(*command);
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return Answer{app.help()};
  } catch (const CLI::CallForVersion& version) {
    return Answer{version.what() + std::string("\n")};
  } catch (const CLI::ArgumentMismatch& error) {  // "--hostfile: 1 required FILE missing"
    const std::string text = error.what();
    const std::string name = text.substr(0, text.find(':'));
    const bool too_many = text.find("received") != std::string::npos;
    return fail(ErrorKind::invalid_argument,
                fmt::format("{} {}; see horarun --help",
                            name == "--num-proc" ? "-np (or --num-proc)" : name,
                            too_many ? "is given more than once" : "needs a value"));
  } catch (const CLI::Error& error) {
    return fail(ErrorKind::invalid_argument, fmt::format("{}; see horarun --help", error.what()));
  }
  if (raw.check_build) return Answer{kCheckBuild};
  Result<RunOptions> run = finish(raw, app);
  if (!run) return fail(std::move(run.error()));
  return std::move(*run);
}

}  // namespace hora
