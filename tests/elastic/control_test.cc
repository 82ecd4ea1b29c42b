// Controls and a rendezvous in one process, over real sockets: threads are the ranks.
//
// Joining, starting again, going with and without goodbye, and the words of every refusal.
#include "elastic/control.h"

#include <array>

#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/elastic/job_threads.h"

namespace hora::test {

namespace {

using Joined = Result<std::unique_ptr<Control>>;

Member this_member() {
  Member member;
  member.worker = make_worker_id();
  member.pid = ::getpid();
  return member;
}

Joined join(
    const Placement& placement, Control::Sink sink = [](ControlEvent) {},
    const Config& config = quick_config()) {
  return Control::join(config, placement, this_member(), std::move(sink));
}

/// A server and all its ranks.
struct Job {
  std::unique_ptr<RendezvousServer> server;
  std::vector<EventLog> logs;
  std::vector<std::unique_ptr<Control>> controls;

  explicit Job(int size, RendezvousServerOptions options) : logs(static_cast<std::size_t>(size)) {
    auto started = RendezvousServer::start(std::move(options));
    REQUIRE(started);
    server = std::move(*started);
    auto joined = on_all_ranks<Joined>(size, [&](int rank) {
      return join(placement_at(server->endpoint(), rank, size),
                  logs[static_cast<std::size_t>(rank)].sink());
    });
    for (auto& control : joined) {
      REQUIRE(control);
      controls.push_back(std::move(*control));
    }
  }
  explicit Job(int size) : Job(size, server_options(size)) {}
};

}  // namespace

TEST_CASE("control: a job of one opens nothing and starts no thread") {
  const std::size_t before = open_descriptors();
  auto control = join(placement_at("", 0, 1));
  REQUIRE(control);
  CHECK((*control)->world().size() == 1);
  CHECK((*control)->world().epoch == Epoch(1));
  CHECK(open_descriptors() == before);
  (*control)->leave();
}

TEST_CASE("control: ranks that join get the same World, each with its own place") {
  for (const int size : {2, 3, 4}) {
    const Job job(size);
    const World& first = job.controls[0]->world();
    for (int rank = 0; rank < size; ++rank) {
      const World& world = job.controls[static_cast<std::size_t>(rank)]->world();
      CHECK(world.self == Rank(rank));
      CHECK(world.job == first.job);
      CHECK(world.epoch == Epoch(1));
      REQUIRE(world.size() == size);
      for (std::size_t i = 0; i < world.members.size(); ++i) {
        CHECK(world.members[i].worker == first.members[i].worker);
        CHECK(world.members[i].local_rank == static_cast<int>(i));
        CHECK_FALSE(world.members[i].host_id.empty());
      }
    }
  }
}

TEST_CASE("control: over TCP it is the same, IPv4 and IPv6") {
  for (const std::string ip : {"127.0.0.1", "::1"}) {
    auto options = server_options(2);
    options.unix_name.clear();
    options.ip = ip;
    const Job job(2, options);
    CHECK(job.controls[1]->world().size() == 2);
  }
}

TEST_CASE("control: without a launcher rank 0 serves, and a job can start again and again") {
  const std::string place = "unix:" + fresh_unix_name();
  for (int round = 0; round < 10; ++round) {
    std::vector<EventLog> logs(3);
    // No barrier between the rounds: fast ranks come back while others still leave.
    const auto sizes = on_all_ranks<std::string>(3, [&](int rank) -> std::string {
      Placement placement = placement_at(place, rank, 3);
      placement.source = "torchrun";
      placement.serve = rank == 0;
      auto control = join(placement, logs[static_cast<std::size_t>(rank)].sink());
      if (!control) return control.error().message;
      (*control)->leave();
      return std::to_string((*control)->world().size());
    });
    for (const std::string& size : sizes)
      CHECK(size == "3");
  }
}

TEST_CASE("control: at a launcher's rendezvous fifty rounds count the epochs up") {
  auto server = RendezvousServer::start(server_options(2));
  REQUIRE(server);
  const auto epochs = on_all_ranks<std::string>(2, [&](int rank) -> std::string {
    for (std::uint32_t round = 1; round <= 50; ++round) {
      auto control = join(placement_at((*server)->endpoint(), rank, 2));
      if (!control) return control.error().message;
      if ((*control)->world().epoch != Epoch(round)) return "round " + std::to_string(round);
      (*control)->leave();
    }
    return "all";
  });
  CHECK(epochs == std::vector<std::string>{"all", "all"});
  CHECK((*server)->stats().worlds == 50);
  CHECK((*server)->stats().strangers == 0);
}

TEST_CASE("control: a rank that goes without goodbye is lost for the others, with its last words") {
  Job job(3);
  job.controls[1]->report("RuntimeError: boom");
  job.controls[1].reset();
  for (const std::size_t other : {0, 2}) {
    const auto event = job.logs[other].wait_for(ControlEvent::Kind::peer_lost, Rank(1));
    REQUIRE(event);
    CHECK(event->text == "its process has ended; its last words: RuntimeError: boom");
  }
}

TEST_CASE("control: a rank that leaves is not lost") {
  Job job(3);
  job.controls[1]->leave();
  job.controls[1].reset();
  // The loss of rank 2 is told after rank 1's goodbye; had that been a loss, it would be there too.
  job.controls[2].reset();
  REQUIRE(job.logs[0].wait_for(ControlEvent::Kind::peer_lost, Rank(2)));
  CHECK(job.logs[0].count() == 1);
}

TEST_CASE("control: what the launcher knows reaches everybody") {
  Job job(2);
  job.server->announce_exit(Rank(1), "killed by signal 9 (Killed)");
  const auto lost = job.logs[0].wait_for(ControlEvent::Kind::peer_lost, Rank(1));
  REQUIRE(lost);
  CHECK(lost->text == "killed by signal 9 (Killed)");
  job.server->end_job("Ctrl-C");
  const auto ended = job.logs[0].wait_for(
      [](const ControlEvent& event) { return event.kind == ControlEvent::Kind::job_ended; });
  REQUIRE(ended);
  CHECK(ended->text == "Ctrl-C");
}

TEST_CASE("control: when the launcher is gone the job has ended") {
  Job job(2);
  job.server.reset();
  const auto ended = job.logs[1].wait_for(
      [](const ControlEvent& event) { return event.kind == ControlEvent::Kind::job_ended; });
  REQUIRE(ended);
  CHECK(ended->text == "the launcher (horarun) is gone");
}

TEST_CASE("control: the end of a watched socket is a loss, a goodbye on it is none") {
  Job job(3);
  std::array<int, 2> fds{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  job.controls[0]->watch(Rank(1), Fd(fds[0]));
  Fd(fds[1]).reset();
  const auto lost = job.logs[0].wait_for(ControlEvent::Kind::peer_lost, Rank(1));
  REQUIRE(lost);
  CHECK(lost->text == "its process has ended");

  std::array<int, 2> more{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, more.data()) == 0);
  job.controls[0]->watch(Rank(2), Fd(more[0]));
  job.controls[2]->watch(Rank(0), Fd(more[1]));
  job.controls[2]->leave();
  job.controls[2].reset();
  job.server->end_job("over");
  REQUIRE(job.logs[0].wait_for(
      [](const ControlEvent& event) { return event.kind == ControlEvent::Kind::job_ended; }));
  CHECK(job.logs[0].count() == 2);
}

TEST_CASE("control: ranks that do not come are named when the time is over") {
  auto server = RendezvousServer::start(server_options(4));
  REQUIRE(server);
  Config config = quick_config();
  config.start_timeout_ms = 300;
  const auto errors = on_all_ranks<std::string>(2, [&](int rank) -> std::string {
    auto control = join(
        placement_at((*server)->endpoint(), rank, 4), [](ControlEvent) {}, config);
    return control ? "joined" : control.error().message;
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::Contains("not all of the 4 ranks have come. Missing: "));
    CHECK_THAT(error, Catch::Contains("2, 3. Here: "));
    CHECK_THAT(error, Catch::Contains("HORA_START_TIMEOUT_MS"));
  }
}

TEST_CASE("control: without a rendezvous the error says where it was expected and who runs it") {
  Config config = quick_config();
  config.start_timeout_ms = 50;
  Placement placement = placement_at("unix:" + fresh_unix_name(), 1, 2);
  placement.source = "torchrun";
  const auto control = join(
      placement, [](ControlEvent) {}, config);
  REQUIRE_FALSE(control);
  CHECK(control.error().kind == ErrorKind::timeout);
  CHECK_THAT(control.error().message,
             Catch::StartsWith("rank 1: no World from the rendezvous at " + placement.rendezvous));
  CHECK_THAT(control.error().message, Catch::Contains("Connection refused"));
  CHECK_THAT(control.error().message, Catch::Contains("rank 0 runs it"));
}

TEST_CASE("control: of two processes of one rank the second is refused, and the job starts") {
  auto server = RendezvousServer::start(server_options(2));
  REQUIRE(server);
  const std::string place = (*server)->endpoint();
  std::vector<std::future<std::string>> zeros;
  std::promise<void> all_started;
  const std::shared_future<void> started = all_started.get_future().share();
  const auto outcome_of = [&](int rank) -> std::string {
    auto control = join(placement_at(place, rank, 2));
    if (!control) return control.error().message;
    started.wait();
    return "joined";
  };
  for (int i = 0; i < 2; ++i)
    zeros.push_back(std::async(std::launch::async, outcome_of, 0));
  // Whoever comes second is refused at once; the other waits for rank 1.
  std::size_t refused = 0;
  const Deadline deadline = Deadline::after(20s);
  while (zeros[refused].wait_for(1ms) != std::future_status::ready) {
    REQUIRE_FALSE(deadline.passed(steady_now()));
    refused = 1 - refused;
  }
  CHECK_THAT(zeros[refused].get(), Catch::StartsWith("two processes say they are rank 0: pid "));
  all_started.set_value();
  CHECK(outcome_of(1) == "joined");
  CHECK(zeros[1 - refused].get() == "joined");
}

TEST_CASE(
    "control: with another secret or job a rank does not get in, and is told what to look at") {
  auto options = server_options(2);
  auto server = RendezvousServer::start(options);
  REQUIRE(server);
  Placement wrong = placement_at((*server)->endpoint(), 1, 2);
  SECTION("secret") {
    wrong.secret = "guessed";
  }
  SECTION("job") {
    wrong.job = "another";
  }
  const auto control = join(wrong);
  REQUIRE_FALSE(control);
  CHECK(control.error().kind == ErrorKind::protocol);
  CHECK_THAT(control.error().message, Catch::Contains("same HORA_JOB and HORA_SECRET"));
  CHECK_THAT(control.error().message, !Catch::Contains("guessed"));
  CHECK((*server)->stats().strangers > 0);
}

}  // namespace hora::test
