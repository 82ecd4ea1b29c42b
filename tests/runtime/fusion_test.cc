// Which tensors share a buffer.
#include "runtime/fusion.h"

#include <catch2/catch.hpp>

namespace hora {
namespace {

NegotiationOptions limits(std::uint64_t fusion, std::uint64_t target) {
  NegotiationOptions options;
  options.fusion_bytes = fusion;
  options.target_bytes = target;
  return options;
}

struct Plan {
  std::vector<std::vector<std::uint32_t>> items;
  std::vector<bool> full;
};

Plan plan(const NegotiationOptions& options, const std::vector<Request>& requests,
          const std::vector<std::uint64_t>& bytes) {
  std::vector<FusionItem> items;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    items.push_back({&requests[i % requests.size()], bytes[i]});
  FusionPlanner planner(options);
  Plan result;
  (void)planner.plan(items);
  for (const FusedBuffer& buffer : planner.plan(items)) {  // again: nothing of the first plan stays
    result.items.push_back(buffer.items);
    result.full.push_back(buffer.full);
  }
  return result;
}

using Items = std::vector<std::vector<std::uint32_t>>;

}  // namespace

TEST_CASE("fusion: codecs keep apart") {
  Request plain, int8, with_feedback;
  int8.codec = "int8";
  with_feedback.codec = "int8+ef";
  CHECK(fuses(plain, plain));
  CHECK(fuses(int8, int8));
  CHECK_FALSE(fuses(plain, int8));
  CHECK_FALSE(fuses(int8, with_feedback));
}

TEST_CASE("fusion: what matches shares a buffer, in order, past what does not") {
  Request half;
  half.dtype = DType::float16;
  const Plan result = plan(limits(100, 100), {Request{}, half}, {1, 1, 1, 1, 1});
  CHECK(result.items == Items{{0, 2, 4}, {1, 3}});
  CHECK(result.full == std::vector<bool>{false, false});
}

TEST_CASE("fusion: a buffer ends at the target, or before it would exceed the limit") {
  const Request x;
  CHECK(plan(limits(100, 10), {x}, {4, 4, 4, 4, 4, 4, 4}).items ==
        Items{{0, 1, 2}, {3, 4, 5}, {6}});
  const Plan large = plan(limits(20, 10), {x}, {5, 100, 5, 15, 1});
  CHECK(large.items == Items{{0}, {1}, {2, 3}, {4}});
  CHECK(large.full == std::vector<bool>{true, true, true, false});
  CHECK(plan(limits(0, 10), {x}, {1, 0, 1}).items == Items{{0}, {1}, {2}});  // fusion is off
}

TEST_CASE("fusion: a buffer has a bounded number of tensors") {
  const Plan result = plan(limits(1 << 20, 1 << 20), {Request{}},
                           std::vector<std::uint64_t>(2 * kMaxFusedTensors + 1, 0));
  CHECK(result.items.size() == 3);
  CHECK(result.items[0].size() == kMaxFusedTensors);
}

TEST_CASE("fusion: operations, scales and kinds keep apart") {
  const Request x;
  CHECK(fuses(x, x));
  const auto apart = [&](auto change) {
    Request other;
    change(other);
    return !fuses(x, other);
  };
  CHECK(apart([](Request& r) { r.dtype = DType::int32; }));
  CHECK(apart([](Request& r) { r.op = ReduceOp::max; }));
  CHECK(apart([](Request& r) { r.prescale = 2; }));
  CHECK(apart([](Request& r) { r.postscale = 2; }));
  for (const Kind kind : {Kind::allgather, Kind::broadcast, Kind::barrier}) {
    CHECK(apart([&](Request& r) { r.kind = kind; }));
    Request same;
    same.kind = kind;
    CHECK_FALSE(fuses(same, same));
    CHECK(plan(limits(100, 100), {same}, {1, 1}).full == std::vector<bool>{true, true});
  }
}

TEST_CASE("fusion: small buffers take the small lane") {
  const NegotiationOptions options;
  CHECK(lane_of(0, options) == kSmallLane);
  CHECK(lane_of(options.small_bytes, options) == kSmallLane);
  CHECK(lane_of(options.small_bytes + 1, options) == kBulkLane);
}

}  // namespace hora
