// Votes and verdicts about who shares memory: what was said is understood, and nothing else.
#include "runtime/sharing.h"

#include <catch2/catch.hpp>

namespace hora::test {
namespace {

TEST_CASE("sharing: a vote comes back as it was given, for any number of ranks") {
  for (const int size : {1, 2, 7, 8, 9, 64, 65}) {
    std::vector<bool> shares(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank)
      shares[static_cast<std::size_t>(rank)] = rank % 3 != 1;
    CHECK(decode_vote(encode_vote(shares), size) == shares);
  }
}

TEST_CASE("sharing: a vote of another length or about ranks that are none is refused") {
  const std::vector<std::byte> vote = encode_vote({true, false, true});
  CHECK_FALSE(decode_vote(vote, 9));
  CHECK_FALSE(decode_vote({}, 3));
  CHECK_FALSE(decode_vote(vote, 2));
  CHECK_FALSE(decode_vote(std::vector<std::byte>{std::byte{0x10}}, 3));
}

TEST_CASE("sharing: a verdict comes back as it was given") {
  for (const Topology& topology : {Topology::one_host(1), Topology::one_host(5),
                                   Topology::separate(300), Topology{{{0, 2}, {1}, {3, 4, 5}}}}) {
    CHECK(decode_verdict(encode_verdict(topology), topology.size()) == topology);
  }
}

TEST_CASE("sharing: a verdict of another length or with hosts left out is refused") {
  const std::vector<std::byte> verdict = encode_verdict(Topology{{{0, 2}, {1}}});
  CHECK_FALSE(decode_verdict(verdict, 2));
  CHECK_FALSE(decode_verdict(std::span(verdict).first(11), 3));
  for (std::size_t at = 0; at < verdict.size(); ++at) {
    std::vector<std::byte> damaged = verdict;
    damaged[at] |= std::byte{0x40};
    CHECK_FALSE(decode_verdict(damaged, 3));
  }
}

}  // namespace
}  // namespace hora::test
