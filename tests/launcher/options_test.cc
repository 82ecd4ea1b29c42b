// The command line: Horovod's spellings, where the worker's command begins, and what mistakes say.
//
// A worker's own options, even those that horarun has too, must reach the worker untouched.
#include "launcher/options.h"

#include <catch2/catch.hpp>

#include "runtime/base/config.h"

namespace hora {
namespace {

using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

RunOptions run_options(const Words& words) {
  auto parsed = parse_options(words);
  if (!parsed) FAIL(parsed.error().message);
  return std::get<RunOptions>(*parsed);
}

std::string answer(const Words& words) {
  return std::get<Answer>(*parse_options(words)).text;
}

std::string mistake(const Words& words) {
  auto parsed = parse_options(words);
  return parsed ? "no mistake" : parsed.error().message;
}

TEST_CASE("the number of processes has all of Horovod's spellings") {
  for (const Words& words :
       {Words{"-np", "4", "a"}, Words{"-np=4", "a"}, Words{"-n", "4", "a"}, Words{"-n4", "a"},
        Words{"--num-proc", "4", "a"}, Words{"--num-proc=4", "a"}}) {
    CAPTURE(words);
    CHECK(run_options(words).num_proc == 4);
    CHECK(run_options(words).command == Words{"a"});
  }
}

TEST_CASE("everything from the first plain word on is the worker's") {
  const RunOptions options =
      run_options({"--verbose", "-np", "2", "python", "-np", "--help", "--", "-H", "--env"});
  CHECK(options.command == Words{"python", "-np", "--help", "--", "-H", "--env"});
  CHECK(options.verbose);
}

TEST_CASE("two dashes begin a command that looks like an option") {
  CHECK(run_options({"-np", "2", "--", "-odd", "x"}).command == Words{"-odd", "x"});
}

TEST_CASE("every option arrives") {
  const RunOptions options = run_options(
      {"-np", "2", "-H", "localhost:2", "--env", "A=1", "--env=B=x=y", "--start-timeout", "1.5",
       "--output-filename", "out", "-prefix-timestamp", "--quiet", "--horovod-compat", "cmd"});
  CHECK(options.hosts == "localhost:2");
  CHECK(options.assignments ==
        std::vector<std::pair<std::string, std::string>>{{"A", "1"}, {"B", "x=y"}});
  CHECK(options.start_timeout_ms == 1500u);
  CHECK(options.output_directory == "out");
  CHECK(options.prefix_timestamp);
  CHECK(options.quiet);
  CHECK(options.horovod_compat);
  CHECK_FALSE(options.verbose);
}

TEST_CASE("a long name may be cut short where it stays clear") {
  CHECK(run_options({"-np", "2", "--output-f", "out", "a"}).output_directory == "out");
  CHECK(run_options({"--num-p=2", "a", "--num-p"}).num_proc == 2);
  CHECK_THAT(mistake({"-np", "2", "--ho", "x:1", "a"}),
             Contains("--ho could be") && Contains("--hosts") && Contains("--hostfile"));
}

TEST_CASE("tuning options arrive as given") {
  const RunOptions options =
      run_options({"-np", "1", "--cycle-time-ms", "5", "--no-autotune", "--cycle-time-ms=6",
                   "--config-file", "f.yaml", "-hostfile", "hosts", "a"});
  REQUIRE(options.tuning.size() == 2);
  CHECK(options.tuning[0].flag == "--cycle-time-ms");
  CHECK(options.tuning[0].text == "6");
  CHECK(options.tuning[1].flag == "--no-autotune");
  CHECK(options.config_file == "f.yaml");
  CHECK(options.hostfile == "hosts");
}

TEST_CASE("controllers are accepted one at a time") {
  CHECK(run_options({"-np", "1", "--gloo", "a"}).num_proc == 1);
  CHECK(run_options({"-np", "1", "--mpi", "a"}).num_proc == 1);
  CHECK(mistake({"-np", "1", "--mpi", "--gloo", "a"}) != "no mistake");
  CHECK(mistake({"-np", "1", "-H", "a:1", "--hostfile", "f", "a"}) != "no mistake");
}

TEST_CASE("what elastic jobs need is refused in words") {
  for (const Words& words :
       {Words{"--host-discovery-script", "./d.sh"}, Words{"--slots-per-host", "2"},
        Words{"--elastic-timeout", "9"}, Words{"--reset-limit", "1"},
        Words{"--blacklist-cooldown-range", "1", "10"}}) {
    Words all = {"-np", "2"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"python", "a.py"});
    CHECK_THAT(mistake(all), Contains(words[0] + ": this version"));
  }
}

TEST_CASE("the least and the most ranks are numbers") {
  const RunOptions options = run_options({"-np", "4", "--min-num-proc", "2", "--max-np=8", "a"});
  CHECK(options.min_np == 2);
  CHECK(options.max_np == 8);
  CHECK_THAT(mistake({"-np", "2", "--max-np", "many", "a"}), Contains("--max-np needs a number"));
  CHECK_THAT(mistake({"-np", "2", "--min-np", "0", "a"}), Contains("--min-np needs the number"));
}

TEST_CASE("help lists every option and every knob") {
  const std::string help = answer({"--help"});
  for (const char* option : {"-np", "--hosts", "--env", "--start-timeout", "--output-filename",
                             "--prefix-output-with-timestamp", "--check-build"}) {
    CHECK_THAT(help, Contains(option));
  }
  for (const Knob& knob : knobs())
    CHECK_THAT(help, Contains(knob.name));
}

TEST_CASE("version and build are answers, with or without a job") {
  CHECK_THAT(answer({"-v"}), Contains("horarun 0."));
  CHECK_THAT(answer({"--check-build"}), Contains("[X] shared memory"));
  CHECK(answer({"-cb"}) == answer({"--check-build"}));
}

TEST_CASE("mistakes say what was wrong") {
  CHECK_THAT(mistake({"-np", "2"}), Contains("no command to run"));
  CHECK_THAT(mistake({"-np", "2", "--"}), Contains("no command to run"));
  CHECK(mistake({"-np", "two", "a"}) ==
        "-np needs a number of processes, such as -np 4, not 'two'");
  CHECK_THAT(mistake({"--num-proc=4x", "a"}), Contains("not '4x'"));
  CHECK(mistake({"-np"}) == "-np (or --num-proc) needs a value; see horarun --help");
  CHECK(mistake({"-np", "2", "--hostfile"}) == "--hostfile needs a value; see horarun --help");
  CHECK(mistake({"-np", "2", "-np", "3", "true"}) ==
        "-np (or --num-proc) is given more than once; see horarun --help");
  CHECK_THAT(mistake({"--no-such-option", "-np", "2", "a"}), Contains("--no-such-option"));
  CHECK_THAT(mistake({"-np", "2", "--env", "A", "a"}), Contains("'A' is not NAME=VALUE"));
  CHECK_THAT(mistake({"-np", "2", "--env", "=1", "a"}), Contains("'=1' is not NAME=VALUE"));
  for (const char* seconds : {"0", "-1", "nan", "86401", "x"}) {
    CAPTURE(seconds);
    CHECK_THAT(mistake({"-np", "2", "--start-timeout", seconds, "a"}), Contains("--start-timeout"));
  }
}

}  // namespace
}  // namespace hora
