// Where the bytes of a response lie, told by arithmetic that shares nothing with the code.
#include "runtime/run_layout.h"

#include <catch2/catch.hpp>

namespace hora {
namespace {

Response one_tensor(Kind kind, std::vector<std::int64_t> shape,
                    std::vector<std::int64_t> first_dims = {}) {
  Request request;
  request.kind = kind;
  request.dtype = DType::int16;
  request.shape = std::move(shape);
  Response response;
  response.kind = kind;
  response.dtype = request.dtype;
  response.tensors.push_back(
      {std::make_shared<const Request>(canonical(std::move(request))), std::move(first_dims)});
  return response;
}

using Numbers = std::vector<std::uint64_t>;

Numbers lengths(const CollectiveRun& run) {
  Numbers bytes;
  for (const Extent& extent : run.extents)
    bytes.push_back(extent.bytes);
  return bytes;
}

}  // namespace

TEST_CASE("layout: an allgather puts the rows of all ranks one behind the other") {
  CollectiveRun run;
  const OwnOutput own = lay_out_extents(one_tensor(Kind::allgather, {2, 3}, {4, 2, 0}), 1, 3, run);
  CHECK(lengths(run) == Numbers{24, 12, 0});
  CHECK(run.extents[0].output == 0);
  CHECK(run.extents[1].output == 24);
  CHECK(run.extents[2].output == 36);
  CHECK(run.extents[1].input == 0);
  CHECK(run.total_bytes == 24);
  CHECK(own.bytes == 36);
  CHECK(own.shape == std::vector<std::int64_t>{6, 3});
  CHECK(own.first_dims == std::vector<std::int64_t>{4, 2, 0});
}

TEST_CASE("layout: a reducescatter deals rows, and the first ranks get the rest") {
  for (int self = 0; self < 4; ++self) {
    CollectiveRun run;
    const OwnOutput own = lay_out_extents(one_tensor(Kind::reducescatter, {6, 5}), self, 4, run);
    CHECK(lengths(run) == Numbers{20, 20, 10, 10});
    CHECK(run.extents[0].input == 0);
    CHECK(run.extents[1].input == 20);
    CHECK(run.extents[2].input == 40);
    CHECK(run.extents[3].input == 50);
    CHECK(run.extents[static_cast<std::size_t>(self)].output == 0);
    CHECK(run.total_bytes == 20);
    CHECK(own.shape == std::vector<std::int64_t>{self < 2 ? 2 : 1, 5});
    CHECK(own.bytes == (self < 2 ? 20u : 10u));
    CHECK(own.first_dims.empty());
  }
  CollectiveRun run;  // Fewer rows than ranks.
  CHECK(lay_out_extents(one_tensor(Kind::reducescatter, {1}), 2, 3, run).bytes == 0);
  CHECK(lengths(run) == Numbers{2, 0, 0});
}

TEST_CASE("layout: an alltoall transposes the matrix of splits") {
  CollectiveRun run;
  const OwnOutput own = lay_out_extents(
      one_tensor(Kind::alltoall, {3}, {1, 2, 0, /**/ 4, 0, 3, /**/ 5, 6, 7}), 1, 3, run);
  CHECK(lengths(run) == Numbers{2, 4, 0, 8, 0, 6, 10, 12, 14});
  CHECK(run.total_bytes == 14);
  // Rank 1 gives 4, 0 and 3 rows, and takes 2, 0 and 6.
  CHECK(run.extents[3].input == 0);
  CHECK(run.extents[4].input == 8);
  CHECK(run.extents[5].input == 8);
  CHECK(run.extents[1].output == 0);
  CHECK(run.extents[4].output == 4);
  CHECK(run.extents[7].output == 4);
  CHECK(own.bytes == 16);
  CHECK(own.shape == std::vector<std::int64_t>{8});
  CHECK(own.first_dims == std::vector<std::int64_t>{2, 0, 6});
}

TEST_CASE("layout: pieces start on 64 bytes, and what is empty has none") {
  CollectiveRun run;
  int memory = 0;
  add_piece(run, &memory, &memory, 10);
  add_piece(run, &memory, &memory, 0);
  add_piece(run, &memory, &memory, 64);
  add_piece(run, nullptr, &memory, 1);
  REQUIRE(run.pieces.size() == 3);
  CHECK(run.pieces[1].start == 64);
  CHECK(run.pieces[2].start == 128);
  CHECK(run.total_bytes == 129);
}

}  // namespace hora
