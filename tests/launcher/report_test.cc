// The last words about a failed worker, to the letter: users and scripts read them.
//
// The first two lines are Horovod's, so that what searches logs for them keeps finding them.
#include "launcher/report.h"

#include <csignal>

#include <catch2/catch.hpp>

namespace hora {
namespace {

TEST_CASE("the lines at the time of failure are Horovod's") {
  CHECK(exit_line(Rank(2), {true, SIGKILL, false}) == "Process 2 exit with status code 137.");
  CHECK(terminating_line(Rank(2)) == "Terminating remaining workers after failure of Process 2.");
}

TEST_CASE("the report names rank, pid and status, and shows the tail") {
  CHECK(failure_report(Rank(1), 17, "", {false, 3, false, false}, {"Traceback:", "ValueError"}) ==
        std::vector<std::string>{
            "horarun: rank 1 (pid 17) exited with status 3.",
            "horarun: its last lines on stderr:", "  Traceback:", "  ValueError"});
}

TEST_CASE("strangers are counted at the end") {
  CHECK_THAT(strangers_line(1), Catch::Matchers::StartsWith(
                                    "horarun: 1 connection without the job's secret was dropped"));
  CHECK_THAT(strangers_line(20), Catch::Matchers::Contains("20 connections"));
}

TEST_CASE("a killed worker is reported with a hint at memory") {
  const auto lines = failure_report(Rank(2), 17, "", {true, SIGKILL, false, false}, {});
  CHECK(lines.front() == "horarun: rank 2 (pid 17) was killed by signal 9 (Killed).");
  CHECK_THAT(lines.at(1), Catch::Matchers::Contains("lack of memory"));
  CHECK(lines.back() == "horarun: it wrote nothing on stderr.");
}

}  // namespace
}  // namespace hora
