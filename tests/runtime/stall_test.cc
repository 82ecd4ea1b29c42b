// Who keeps everybody waiting, and since when.
#include "runtime/stall.h"

#include "tests/runtime/negotiation_world.h"

namespace hora {
namespace {

NegotiationOptions stall_options() {
  NegotiationOptions options;
  options.size = 4;
  options.stall_warning = 60s;
  return options;
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("stall: the report names tensors, who has them, who has not, and what those last did") {
  NegotiationWorld world(stall_options());
  world.submit_everywhere(allreduce_of("conv1.weight"));
  world.flush_all();
  world.now += 10s;
  for (std::size_t rank : {0, 1, 3})
    world.workers[rank]->submit(allreduce_of("fc.bias", {1000}));
  world.settle();
  world.root.on_evidence(Rank{2}, "silent for 3 s");
  REQUIRE(world.root.next_deadline() == world.now + 60s);
  world.now += 60s - 1ms;
  world.settle();
  CHECK(world.notices[0].empty());

  world.now += 1ms;
  world.settle();
  REQUIRE(world.notices[0].size() == 1);
  CHECK(world.notices[0][0] ==
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
        "ranks "
        "and are waiting for remainder of ranks for more than 60 seconds. This may indicate that "
        "different ranks are trying to submit different tensors or that only subset of ranks is "
        "submitting tensors, which will cause deadlock.\n"
        "Missing ranks:\n"
        "2: [fc.bias] (rank 2 last submitted 'conv1.weight' 70 s ago; silent for 3 s)\n"
        "Waiting tensors:\n"
        "'fc.bias' (ALLREDUCE): ranks 0,1,3 have it, rank 2 does not, for 60 s");
  for (std::size_t rank : {1, 2, 3})
    CHECK(world.notices[rank].empty());

  world.workers[2]->submit(allreduce_of("fc.bias", {1000}));
  world.flush_all();
  CHECK(world.take_heard(2).size() == 2);  // late, but it goes on
}

TEST_CASE("stall: ranks that wait for each other are told apart from one that does nothing") {
  NegotiationWorld world(stall_options());
  for (std::size_t rank : {0, 1})
    world.workers[rank]->submit(allreduce_of("a"));
  world.settle();
  world.now += 50s;
  world.workers[2]->submit(allreduce_of("b"));
  world.settle();
  world.now += 10s;
  world.settle();
  REQUIRE(world.notices[0].size() == 1);
  const std::string& notice = world.notices[0][0];
  CHECK(has(notice,
            "2: [a] (rank 2 last submitted 'b' 10 s ago, which waits for ranks 0,1,3; it "
            "is alive: its heartbeats come)"));
  CHECK(has(notice,
            "3: [a] (rank 3 has not submitted anything yet; it is alive: its heartbeats "
            "come)"));
  CHECK_FALSE(has(notice, "'b' (ALLREDUCE)"));  // It does not wait for long.

  world.root.on_evidence(Rank{3}, "has sent no heartbeat for 2.0 s; state T (stopped)");
  world.now += 60s;
  world.settle();
  REQUIRE(world.notices[0].size() == 2);
  CHECK(has(world.notices[0][1],
            "3: [a, b] (rank 3 has not submitted anything yet; has sent no "
            "heartbeat for 2.0 s; state T (stopped))"));
  world.root.on_evidence(Rank{3}, "");
}

TEST_CASE("stall: it looks every period, and speaks when the picture has changed") {
  NegotiationWorld world(stall_options());
  world.workers[1]->submit(allreduce_of("a"));
  world.settle();
  for (int period = 0; period < 3; ++period) {
    REQUIRE(world.root.next_deadline());
    world.now = *world.root.next_deadline();
    world.settle();
  }
  CHECK(world.now == TimePoint{} + 180s);
  CHECK(world.notices[0].size() == 1);

  world.workers[0]->submit(allreduce_of("a"));
  world.settle();
  world.now = *world.root.next_deadline();
  world.settle();
  REQUIRE(world.notices[0].size() == 2);
  CHECK(has(world.notices[0][1], "ranks 0,1 have it, ranks 2,3 do not, for 240 s"));
  CHECK(has(world.notices[0][1], "rank 3 has not submitted anything yet"));
  CHECK_FALSE(has(world.notices[0][1], "rank 0"));
}

TEST_CASE("stall: after the limit the job ends everywhere, on time") {
  NegotiationOptions options = stall_options();
  options.stall_shutdown = 70s;
  NegotiationWorld world(options);
  world.workers[1]->submit(allreduce_of("a"));
  world.settle();
  world.now = *world.root.next_deadline();
  world.settle();
  CHECK(world.notices[0].size() == 1);
  CHECK(*world.root.next_deadline() == TimePoint{} + 70s);
  world.workers[3]->submit(allreduce_of("b"));
  world.settle();
  world.now = *world.root.next_deadline();
  world.settle();
  for (const auto& stop : world.stops) {
    REQUIRE(stop);
    CHECK(stop->kind == ErrorKind::timeout);
    CHECK(has(stop->message, "for more than 70 seconds"));
    CHECK(has(stop->message, "'a' (ALLREDUCE): rank 1 has it, ranks 0,2,3 do not"));
    // What waits for less is told, too: it may be why.
    CHECK(has(stop->message, "'b' (ALLREDUCE): rank 3 has it, ranks 0-2 do not, for 10 s"));
    CHECK(has(stop->message, "Will shutdown"));
  }
  CHECK_FALSE(world.root.next_deadline());
}

TEST_CASE("stall: many tensors and nasty names make a bounded, printable report") {
  NegotiationWorld world(stall_options());
  for (int i = 0; i < 100; ++i) {
    world.workers[0]->submit(allreduce_of(std::to_string(i) + "\n\xff" + std::string(3000, 'x')));
  }
  world.settle();
  world.now += 60s;
  world.settle();
  REQUIRE(world.notices[0].size() == 1);
  const std::string& notice = world.notices[0][0];
  CHECK(has(notice, "0\\x0a\\xffxxx"));
  CHECK(has(notice, ", ...]"));
  CHECK(has(notice, "... and 80 more"));
  CHECK(notice.size() < 16000);
}

TEST_CASE("stall: switched off, nothing is ever due") {
  NegotiationOptions options = stall_options();
  options.stall_check = false;
  options.stall_shutdown = 1s;
  NegotiationWorld world(options);
  world.workers[0]->submit(allreduce_of("a"));
  world.settle();
  CHECK_FALSE(world.root.next_deadline());
}

}  // namespace hora
