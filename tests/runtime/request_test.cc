// Names, bounds, and what ranks have to agree about.
#include "runtime/request.h"

#include <catch2/catch.hpp>

#include "runtime/agreement.h"

namespace hora {

TEST_CASE("request: shapes as people write them, and their sizes") {
  CHECK(shape_text({}) == "[]");
  CHECK(shape_text({3, 4}) == "[3, 4]");
  CHECK(element_count({}) == 1);
  CHECK(element_count({3, 0, 4}) == 0);
  Request request;
  request.dtype = DType::float64;
  request.shape = {3, 4};
  CHECK(byte_count(request) == 96);
}

TEST_CASE("request: printable text is valid UTF-8 without controls") {
  CHECK(printable("plain 'name'") == "plain 'name'");
  CHECK(printable(std::string("a\0b\n\x7f", 5)) == "a\\x00b\\x0a\\x7f");
  CHECK(printable("\xe2\x82\xac") == "\xe2\x82\xac");              // the euro sign
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");                    // cut
  CHECK(printable("\xc0\x80") == "\\xc0\\x80");                    // overlong
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  CHECK(name_text(std::string(1000, 'x')) == std::string(256, 'x') + "...");
}

TEST_CASE("request: what is out of bounds is refused with the reason") {
  Request request;
  request.name = "x";
  CHECK(check_request(request));
  request.shape = {1ll << 46};
  CHECK(check_request(request));
  request.shape = {1ll << 24, 0, 1ll << 24};
  REQUIRE_FALSE(check_request(request));
  CHECK(check_request(request).error().message ==
        "tensor 'x': shape [16777216, 0, 16777216] has more than 2^48 bytes");
  request.shape = {-2};
  CHECK(check_request(request).error().message == "tensor 'x': negative dimension in shape [-2]");
}

TEST_CASE("request: the canonical form drops what the kind does not use") {
  Request request;
  request.op = ReduceOp::max;
  request.root = 3;
  request.prescale = 2;
  request.shape = {5, 6};
  CHECK(canonical(request).op == ReduceOp::max);
  CHECK(canonical(request).root == 0);
  request.kind = Kind::allgather;
  CHECK(canonical(request).shape == std::vector<std::int64_t>{0, 6});
  CHECK(canonical(request).prescale == 1.0);
  request.kind = Kind::broadcast;
  CHECK(canonical(request).root == 3);
  request.kind = Kind::barrier;
  CHECK(canonical(request).shape.empty());
}

TEST_CASE("agreement: ranks as people write them") {
  CHECK(ranks_text({2}) == "rank 2");
  CHECK(ranks_text({0, 1, 3}) == "ranks 0,1,3");
  CHECK(ranks_text({0, 1, 2, 4, 6, 7}) == "ranks 0-2,4,6,7");
}

}  // namespace hora
