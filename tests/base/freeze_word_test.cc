// A count that stands still once it is frozen, whoever comes first.
//
// The race is between the thread that finishes segments and the one that freezes: what the second
// sees right after its freeze is what the first has finished in the end.
#include "runtime/base/freeze_word.h"

#include <thread>

#include <catch2/catch.hpp>

namespace hora::test {

TEST_CASE("freeze word: counts up from where it began until it is frozen") {
  FreezeWord word(Epoch(3), 17);
  CHECK(word.advance());
  CHECK(word.advance());
  CHECK_FALSE(word.frozen());
  CHECK(word.count() == 19);
  word.freeze(Epoch(3));
  CHECK(word.frozen());
  CHECK_FALSE(word.advance());
  word.freeze(Epoch(3));
  CHECK(word.count() == 19);
}

TEST_CASE("freeze word: a freeze of another epoch changes nothing") {
  FreezeWord word(Epoch(3), 0);
  word.freeze(Epoch(2));
  word.freeze(Epoch(4));
  CHECK_FALSE(word.frozen());
  CHECK(word.advance());
}

TEST_CASE("freeze word: what is counted at a freeze is what was finished") {
  for (int round = 0; round < 200; ++round) {
    FreezeWord word(Epoch(1), 0);
    std::uint64_t finished = 0;
    std::thread engine([&word, &finished] {
      while (word.advance())
        ++finished;
    });
    while (word.count() < 10) {
    }
    word.freeze(Epoch(1));
    const std::uint64_t reported = word.count();
    engine.join();
    REQUIRE(finished == reported);
    REQUIRE(word.count() == reported);
  }
}

}  // namespace hora::test
