// The root decides, replicas follow, and a bit means what it meant when it was sent.
#include "runtime/response_cache.h"

#include <catch2/catch.hpp>

namespace hora {
namespace {

SharedRequest shared(const std::string& name, std::int64_t elements = 4) {
  Request request;
  request.name = name;
  request.shape = {elements};
  return std::make_shared<const Request>(request);
}

}  // namespace

TEST_CASE("cache: a tensor is found by all of itself") {
  ResponseCache cache;
  cache.put(3, shared("x"));
  CHECK(cache.find(*shared("x")) == 3);
  CHECK(cache.find(*shared("x", 5)) == kNoSlot);
  CHECK(cache.find(*shared("y")) == kNoSlot);
  CHECK_FALSE(cache.at(2));
  CHECK_FALSE(cache.at(99));
  cache.put(3, shared("y"));
  CHECK(cache.find_key({kGlobalSet, "x"}) == kNoSlot);
  CHECK(cache.find_key({kGlobalSet, "y"}) == 3);
  cache.put(1, shared("y", 7));  // a name has one slot
  CHECK(cache.find(*shared("y", 7)) == 1);
  CHECK_FALSE(cache.at(3));
  CHECK(cache.size() == 1);
}

TEST_CASE("root cache: free slots first, then the one least recently used gives way") {
  RootCache cache(3);
  CHECK(cache.put(shared("a")) == 0);
  CHECK(cache.put(shared("b")) == 1);
  CHECK(cache.put(shared("c")) == 2);
  cache.touch(0);
  CHECK(cache.put(shared("d")) == 1);
  CHECK(cache.put(shared("a", 9)) == 0);  // changed: keeps its slot
  CHECK(cache.put(shared("e")) == 2);
  CHECK(cache.find(*shared("c")) == kNoSlot);
  CHECK(cache.find(*shared("a", 9)) == 0);
  CHECK(RootCache(0).put(shared("a")) == kNoSlot);
}

TEST_CASE("root cache: a slot means what it held at `seen`, until all have seen the change") {
  RootCache cache(1);
  const auto a = shared("a"), b = shared("b"), c = shared("c"), d = shared("d");
  cache.put(a);  // in message 1
  cache.end_message();
  cache.end_message();  // message 2 changes nothing
  cache.put(b);         // in message 3
  cache.put(c);         // and away again: b was never seen
  cache.end_message();
  CHECK_FALSE(cache.at(0, 0));
  CHECK(cache.at(0, 1) == a);
  CHECK(cache.at(0, 2) == a);
  CHECK(cache.at(0, 3) == c);
  CHECK_FALSE(cache.at(1, 3));
  cache.forget_below(3);
  cache.put(d);
  cache.end_message();
  CHECK_FALSE(cache.at(0, 2));
  CHECK(cache.at(0, 3) == c);
  CHECK(cache.at(0, 4) == d);
}

}  // namespace hora
