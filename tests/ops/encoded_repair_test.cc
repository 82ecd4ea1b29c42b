// A rank dies at any task of an encoded template: results and residuals are all of one World or the
// other, as encoded_repair_walk.h demands.
#include <catch2/catch.hpp>

#include "tests/support/encoded_repair_walk.h"

namespace hora::test {
namespace {

bool runs(const AlgorithmRow& row, const std::string& codec) {
  const bool gathers = (*make_codec(codec))->traits().kind == CodecKind::gather;
  return row.make_encoded != nullptr && (!gathers || row.gathers);
}

}  // namespace

TEST_CASE("repair: with a codec each segment and its residual are of all ranks or the survivors") {
  for (const char* transport : {"loopback", "shm"}) {
    for (const std::string codec : {"int8+ef", "topk(ratio=0.1)+ef"}) {
      for (const AlgorithmRow& row : algorithms()) {
        if (!runs(row, codec)) continue;
        EncodedWalk walk(transport, row, codec);
        // Any task of any rank over loopback; over shared memory templates are walked without a
        // codec, and here every third is enough.
        const bool all = std::string(transport) == "loopback" && codec == "int8+ef";
        for (int victim = 0; victim < EncodedWalk::kSize; ++victim) {
          std::uint64_t task = 0;
          while (walk.dies(victim, task))
            task += all ? 1 : 3;
          REQUIRE(task > 30);
        }
        INFO(transport << " " << row.name << " " << codec);
        CHECK(walk.of_all > 0);
        CHECK(walk.of_survivors > 0);
        CHECK(walk.copies > 0);
      }
    }
  }
}

TEST_CASE("repair: with a codec a second rank dies at any step of the first one's repair") {
  for (const AlgorithmRow& row : algorithms()) {
    if (!runs(row, "int8+ef")) continue;
    EncodedWalk walk("loopback", row, "int8+ef");
    for (const int victim : {0, 2}) {
      for (int step = 0; step < 60; ++step)
        walk.dies(victim, static_cast<std::uint64_t>(20 + step % 7), step);
    }
    INFO(row.name);
    CHECK(walk.second_deaths > 60);
  }
}

}  // namespace hora::test
