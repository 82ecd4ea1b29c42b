// Groups: all members are answered together, or all fail.
#include <algorithm>

#include <catch2/catch.hpp>

#include "runtime/group_table.h"
#include "tests/runtime/negotiation_world.h"

namespace hora {
namespace {

NegotiationOptions of_size(int size) {
  NegotiationOptions options;
  options.size = size;
  return options;
}

Request member(Request request, const std::string& group, std::int32_t size) {
  request.group = group;
  request.group_size = size;
  return request;
}

/// Members a, b, c of group g.
std::vector<Request> three(Kind kind = Kind::allreduce) {
  std::vector<Request> requests;
  for (const char* name : {"a", "b", "c"})
    requests.push_back(member(of_kind(kind, name, {4, 2}), "g", 3));
  return requests;
}

std::vector<std::string> names_in(const std::vector<Response>& responses) {
  std::vector<std::string> names;
  for (const Response& response : responses) {
    for (const ResponseTensor& tensor : response.tensors)
      names.push_back(tensor.request->name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

const GroupKey kG{SetId{}, "g"}, kH{SetId{3}, "g"};
const Error kBroken{ErrorKind::mismatch, "broken", std::nullopt};

}  // namespace

TEST_CASE("group table: members wait for the last one, and the name is free again") {
  GroupTable groups;
  for (int round = 0; round < 2; ++round) {
    CHECK(groups.add(kG, 3, 10).members.empty());
    CHECK(groups.add(kH, 2, 20).members.empty());
    CHECK(groups.add(kG, 3, 11).members.empty());
    const auto released = groups.add(kG, 3, 12);
    CHECK(released.members == std::vector<PendingId>{10, 11, 12});
    CHECK_FALSE(released.error);
    CHECK(groups.add(kH, 2, 21).members.size() == 2);
    CHECK(groups.size() == 0);
  }
  CHECK(groups.add({SetId{}, "alone"}, 1, 1).members == std::vector<PendingId>{1});
}

TEST_CASE("group table: a failure takes those that wait and those that come later") {
  GroupTable groups;
  groups.add(kG, 4, 1);
  auto released = groups.fail(kG, 4, kBroken);
  CHECK(released.members == std::vector<PendingId>{1});
  REQUIRE(released.error);
  CHECK(released.error->message == "broken");
  released = groups.fail(kG, 4, {ErrorKind::mismatch, "another", std::nullopt});
  CHECK(released.members.empty());
  released = groups.add(kG, 4, 2);
  CHECK(released.members == std::vector<PendingId>{2});
  CHECK(released.error->message == "broken");  // The first one, for all.
  CHECK(groups.size() == 0);
}

TEST_CASE("group: nothing is answered before all ranks have all members") {
  for (const Kind kind : {Kind::allreduce, Kind::allgather, Kind::reducescatter}) {
    NegotiationWorld world(of_size(2));
    for (int round = 0; round < 3; ++round) {  // From the second round on by slots.
      const auto requests = three(kind);
      for (const Request& request : requests)
        world.workers[0]->submit(request);
      world.workers[1]->submit(requests[2]);
      world.workers[1]->submit(requests[0]);
      world.flush_all();
      CHECK(world.take_heard(0).empty());
      world.workers[1]->submit(requests[1]);
      world.flush_all();
      const auto responses = world.take_heard(0);
      CHECK(names_in(responses) == std::vector<std::string>{"a", "b", "c"});
      CHECK(names_in(world.take_heard(1)) == std::vector<std::string>{"a", "b", "c"});
      for (const Response& response : responses)
        CHECK(response.error.empty());
      if (kind == Kind::allreduce) CHECK(responses.size() == 1);  // Fused.
    }
    CHECK(world.last_up_bytes <= 10);
  }
}

TEST_CASE("group: members of several types are ready together") {
  NegotiationWorld world(of_size(2));
  auto requests = three();
  requests[1].dtype = DType::float16;
  for (const Request& request : requests)
    world.submit_everywhere(request);
  world.flush_all();
  const auto responses = world.take_heard(1);
  CHECK(responses.size() == 2);
  CHECK(names_in(responses) == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("group: a mismatch of any member fails all, with the reason, and the job goes on") {
  for (std::size_t bad = 0; bad < 3; ++bad) {
    for (const bool early : {true, false}) {
      NegotiationWorld world(of_size(2));
      const auto requests = three();
      auto wrong = requests;
      wrong[bad].shape = {5, 2};
      // The bad one is complete before the others, or after them.
      const std::vector<std::size_t> order = early ? std::vector{bad, (bad + 1) % 3, (bad + 2) % 3}
                                                   : std::vector{(bad + 1) % 3, (bad + 2) % 3, bad};
      for (const std::size_t i : order) {
        world.workers[0]->submit(requests[i]);
        world.workers[1]->submit(wrong[i]);
        world.flush_all();
      }
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const auto responses = world.take_heard(rank);
        CHECK(names_in(responses) == std::vector<std::string>{"a", "b", "c"});
        for (const Response& response : responses) {
          CHECK(response.error_kind == ErrorKind::mismatch);
          CHECK_THAT(response.error,
                     Catch::Matchers::Contains("tensor '" + requests[bad].name +
                                               "': rank 0 submitted "
                                               "float32[4, 2], rank 1 submitted float32[5, 2]"));
        }
      }
      for (const Request& request : requests)
        world.submit_everywhere(request);
      world.flush_all();
      for (const Response& response : world.take_heard(1))
        CHECK(response.error.empty());
    }
  }
}

TEST_CASE("group: ranks that disagree about the group itself are told so") {
  NegotiationWorld world(of_size(2));
  world.workers[0]->submit(member(allreduce_of("a"), "g", 1));
  world.workers[1]->submit(allreduce_of("a"));
  world.flush_all();
  const auto responses = world.take_heard(0);
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].error ==
        "Mismatched groups: One rank submitted it in group 'g' of 1, but another rank submitted it "
        "alone. (tensor 'a': rank 0 submitted it in group 'g' of 1, rank 1 submitted it alone)");
}

TEST_CASE("group: a flush before the group is complete covers it") {
  NegotiationWorld world(of_size(2));
  const auto requests = three();
  for (const Request& request : requests)
    world.workers[0]->submit(request);
  world.workers[0]->flush();
  world.settle();
  for (const Request& request : requests)
    world.workers[1]->submit(request);
  world.settle();  // Rank 0 waits, so nothing is held.
  CHECK(names_in(world.take_heard(0)).size() == 3);
}

TEST_CASE("group: one name in two process sets is two groups") {
  NegotiationOptions options = of_size(3);
  options.sets = {{0, 1}, {1, 2}};
  NegotiationWorld world(options);
  const auto in_set = [](std::uint32_t set, Request request) {
    request.set = SetId(set);
    return request;
  };
  for (const std::uint32_t set : {1u, 2u}) {
    for (const std::size_t rank : {std::size_t{set} - 1, std::size_t{set}}) {
      world.workers[rank]->submit(in_set(set, member(allreduce_of("a"), "g", 2)));
    }
  }
  world.flush_all();
  CHECK(world.take_heard(1).empty());
  for (const std::size_t rank : {0, 1})
    world.workers[rank]->submit(in_set(1, member(allreduce_of("b"), "g", 2)));
  world.flush_all();
  const auto responses = world.take_heard(1);
  CHECK(names_in(responses) == std::vector<std::string>{"a", "b"});
  for (const Response& response : responses) {
    CHECK(response.error.empty());
    CHECK(response.set->id == SetId(1));
  }
}

TEST_CASE("group: when its process set goes, members that were complete fail with the others") {
  NegotiationOptions options = of_size(2);
  options.sets = {{0, 1}};
  NegotiationWorld world(options);
  const auto in_set = [](Request request) {
    request.set = SetId(1);
    return request;
  };
  const auto requests = three();
  for (const Request& request : requests)
    world.workers[0]->submit(in_set(request));
  world.workers[1]->submit(in_set(requests[0]));
  world.workers[1]->submit(in_set(requests[2]));
  Request removal = of_kind(Kind::remove_set, "sets");
  removal.set = SetId(1);
  world.submit_everywhere(removal);
  world.flush_all();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    auto responses = world.take_heard(rank);
    REQUIRE(responses.size() == 4);
    CHECK(responses.back().kind == Kind::remove_set);
    CHECK(responses.back().error.empty());
    responses.pop_back();
    CHECK(names_in(responses) == std::vector<std::string>{"a", "b", "c"});
    for (const Response& response : responses) {
      CHECK_THAT(response.error,
                 Catch::Matchers::Contains("was removed while tensor 'b' waited for rank 1"));
    }
  }
}

TEST_CASE("group: a rank that has joined is not waited for, and what needs it fails as a whole") {
  for (const Kind kind : {Kind::allreduce, Kind::allgather}) {
    NegotiationWorld world(of_size(2));
    world.workers[1]->submit(of_kind(Kind::join, ""));
    for (const Request& request : three(kind))
      world.workers[0]->submit(request);
    world.flush_all();
    const auto responses = world.take_heard(1);
    CHECK(names_in(responses) == std::vector<std::string>{"a", "b", "c"});
    for (const Response& response : responses)
      CHECK(response.error.empty() == (kind == Kind::allreduce));
    world.workers[0]->submit(of_kind(Kind::join, ""));
    world.flush_all();
    const auto joined = world.take_heard(0);
    REQUIRE_FALSE(joined.empty());
    CHECK(joined.back().kind == Kind::join);
  }
}

TEST_CASE("group: names and sizes that are none are refused") {
  Request request = member(allreduce_of("a"), "g", 1);
  CHECK(check_request(request));
  request.group_size = 0;
  CHECK_FALSE(check_request(request));
  request.group_size = -1;
  CHECK_FALSE(check_request(request));
  request.group_size = kMaxGroupSize + 1;
  CHECK_FALSE(check_request(request));
  CHECK_FALSE(check_request(member(allreduce_of("a"), "", 1)));
  CHECK_FALSE(check_request(member(allreduce_of("a"), std::string(kMaxNameBytes + 1, 'g'), 1)));
}

}  // namespace hora
