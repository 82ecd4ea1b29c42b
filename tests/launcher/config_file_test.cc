// Config files: what is read, and that everything else is refused with its line.
#include "launcher/config_file.h"

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

std::string shown(std::string_view text) {
  const auto settings = parse_config_file(text, "f");
  if (!settings) return settings.error().message;
  std::string all;
  for (const FileSetting& one : *settings)
    all += one.key + "=" + one.text + "@" + std::to_string(one.line) + ";";
  return all;
}

TEST_CASE("two levels of settings, comments and quotes") {
  CHECK(shown("---\ncontroller: gloo # ours\n\nparams:\n  # sizes\n  fusion_threshold_mb:   32\n"
              "  cycle_time_ms: 1.5\ntimeline:\n    filename: \"a # b\"\r\n") ==
        "controller=gloo@2;params.fusion_threshold_mb=32@6;params.cycle_time_ms=1.5@7;"
        "timeline.filename=a # b@9;");
  CHECK(shown("a: 'it''s'\nb: it's # one\nc: \"x\\\"y\\\\\"\nd: /tmp/a:b#c") ==
        "a=it's@1;b=it's@2;c=x\"y\\@3;d=/tmp/a:b#c@4;");
  CHECK(shown("").empty());
}

TEST_CASE("a key without a value sets nothing") {
  CHECK(shown("params:\n  cycle_time_ms:\n  cache_capacity: ~\ntimeline: null\n").empty());
}

TEST_CASE("what is more than key and value is refused by line") {
  for (const char* line :
       {"- a", "a: [1]", "a: {b: 1}", "a: &x 1", "a: *x", "a: !t 1", "a: |", "a: >", "a: 'x",
        "a: \"x\\n\"", "a: 'x' y", "a b: 1", "word", "a:1", ": 1", "a: b: c", "\ta: 1", "? a"}) {
    CAPTURE(line);
    CHECK_THAT(shown(std::string("# first\n") + line), StartsWith("f:2: "));
  }
  CHECK_THAT(shown("  a: 1"), Contains("not below a section"));
  CHECK_THAT(shown("p:\n  a: 1\n   b: 2"), StartsWith("f:3: not indented like"));
  CHECK_THAT(shown("p:\n  a:\n    b: 2"), StartsWith("f:3: not indented like"));
  CHECK_THAT(shown("p: 1\n  a: 2"), Contains("not below a section"));
  CHECK_THAT(shown("p:\n  a: 1\n  a: 2"), StartsWith("f:3: p.a is set on line 2"));
}

}  // namespace
}  // namespace hora
