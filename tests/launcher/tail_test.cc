// Tail: what a user sees of a dead worker's stderr.
//
// Bounded in lines and in width, and a progress bar, which rewrites its line, counts as one.
#include "launcher/tail.h"

#include <catch2/catch.hpp>

namespace hora {
namespace {

using Lines = std::deque<std::string>;

TEST_CASE("the tail keeps the last lines only") {
  Tail tail(2, 100);
  for (const char* text : {"a", "b", "c"})
    tail.add({text, LineEnd::newline});
  CHECK(tail.lines() == Lines{"b", "c"});
}

TEST_CASE("a progress bar is one line of the tail") {
  Tail tail(3, 100);
  tail.add({"start", LineEnd::newline});
  tail.add({"10%", LineEnd::carriage_return});
  tail.add({"20%", LineEnd::carriage_return});
  tail.add({"30%", LineEnd::newline});
  tail.add({"Traceback", LineEnd::newline});
  CHECK(tail.lines() == Lines{"start", "30%", "Traceback"});
}

TEST_CASE("lines that end in return and newline stay lines") {
  Tail tail(3, 100);
  for (const char* text : {"a", "b"}) {
    tail.add({text, LineEnd::carriage_return});
    tail.add({"", LineEnd::newline_after_return});
  }
  CHECK(tail.lines() == Lines{"a", "b"});
}

TEST_CASE("a very long line takes one place, cut to the width") {
  Tail tail(3, 4);
  tail.add({"abcdefgh", LineEnd::cut});
  tail.add({"ijkl", LineEnd::cut});
  tail.add({"mn", LineEnd::newline});
  tail.add({"next", LineEnd::newline});
  CHECK(tail.lines() == Lines{"abcd", "next"});
}

}  // namespace
}  // namespace hora
