// Names, bounds, and what ranks have to agree about.
#include "runtime/request.h"

#include <cmath>

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

TEST_CASE("request: a codec is for sums and averages of floats, in canonical words") {
  Request request;
  request.name = "x";
  request.codec = "topk( ratio=.5 )+ef";
  CHECK(check_request(request));
  CHECK(canonical(request).codec == "topk(ratio=0.5)+ef");
  request.op = ReduceOp::max;
  CHECK(canonical(request).codec.empty());
  request.op = ReduceOp::average;
  request.dtype = DType::int32;
  CHECK(canonical(request).codec.empty());
  request.dtype = DType::float16;
  CHECK_FALSE(canonical(request).codec.empty());
  Request plain = request;
  plain.codec.clear();
  CHECK_FALSE(matches(canonical(request), canonical(plain)));
  request.kind = Kind::broadcast;
  CHECK(canonical(request).codec.empty());
  request = plain;
  request.codec = "none";
  CHECK(check_request(request));
  CHECK(canonical(request).codec.empty());

  request.codec = "zip";
  REQUIRE_FALSE(check_request(request));
  CHECK(check_request(request).error().message.find("tensor 'x': codec 'zip': there is no codec") ==
        0);
  request.codec = "int8+ef";
  for (const double factor : {0.0, HUGE_VAL, std::nan("")}) {
    request.postscale = factor;
    REQUIRE_FALSE(check_request(request));
    CHECK(check_request(request).error().message ==
          "tensor 'x': error feedback needs a postscale factor that is finite and not 0");
  }
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

TEST_CASE(
    "request: first dimensions that are a rank's own leave the canonical form and come back") {
  Request gather;
  gather.kind = Kind::allgather;
  gather.shape = {5, 6};
  CHECK(own_dims(Kind::allgather, 4) == 1);
  CHECK(first_dims_of(gather) == std::vector<std::int64_t>{5});
  CHECK(restored(canonical(gather), first_dims_of(gather)) == gather);

  Request blocks;
  blocks.kind = Kind::alltoall;
  blocks.shape = {7, 2};
  blocks.splits = {4, 0, 1};
  CHECK(own_dims(Kind::alltoall, 3) == 3);
  CHECK(canonical(blocks).shape == std::vector<std::int64_t>{0, 2});
  CHECK(canonical(blocks).splits.empty());
  const Request back = restored(canonical(blocks), first_dims_of(blocks));
  CHECK(back.splits == blocks.splits);
  CHECK(back.shape == std::vector<std::int64_t>{5, 2});  // Two rows go nowhere.

  for (const Kind kind : {Kind::allreduce, Kind::broadcast, Kind::barrier, Kind::reducescatter}) {
    CHECK(own_dims(kind, 3) == 0);
    gather.kind = kind;
    CHECK(first_dims_of(gather).empty());
  }
  Request scalar;
  scalar.kind = Kind::allgather;
  CHECK(restored(canonical(scalar), first_dims_of(scalar)) == scalar);

  blocks.dtype = DType::float64;
  CHECK(first_dims_fit(canonical(blocks), std::vector<std::int64_t>{1ll << 43, 1ll << 43}));
  CHECK_FALSE(first_dims_fit(canonical(blocks), std::vector<std::int64_t>{1ll << 44, 1}));
  CHECK_FALSE(first_dims_fit(canonical(blocks), std::vector<std::int64_t>{2, -1}));
}

TEST_CASE("request: splits that are more than there is, and scalars without rows, are refused") {
  Request request;
  request.name = "x";
  request.kind = Kind::alltoall;
  request.shape = {4, 2};
  request.splits = {1, 3};
  CHECK(check_request(request));
  request.splits = {2, 3};
  CHECK(check_request(request).error().message ==
        "tensor 'x': Sum of splits entries is greater than the first dimension of tensor, or an "
        "entry is negative: splits [2, 3] of shape [4, 2]");
  request.splits = {5, -1};
  CHECK_FALSE(check_request(request));
  request.splits = {1ll << 62, 1ll << 62, 1ll << 62, 1ll << 62};
  CHECK_FALSE(check_request(request));
  request.shape.clear();
  CHECK(check_request(request).error().message ==
        "tensor 'x': Alltoall does not support scalar inputs");
  request.kind = Kind::reducescatter;
  CHECK(check_request(request).error().message ==
        "tensor 'x': Reducescatter does not support scalar inputs");
}

TEST_CASE("agreement: ranks as people write them") {
  CHECK(ranks_text({2}) == "rank 2");
  CHECK(ranks_text({0, 1, 3}) == "ranks 0,1,3");
  CHECK(ranks_text({0, 1, 2, 4, 6, 7}) == "ranks 0-2,4,6,7");
}

}  // namespace hora
