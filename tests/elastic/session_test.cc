// Sessions of several ranks in one process, over shared memory and over TCP.
//
// Threads build them together; then every rank says something to every other over the new links.
#include "elastic/session.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <random>

#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "elastic/net.h"
#include "tests/elastic/job_threads.h"

namespace hora::test {

namespace {

/// What a rank needs to build a session.
struct Worker {
  Config config;
  Placement placement;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<WaitPoint> wait_point;
  Listeners listeners;
  World world;
};

/// `size` ranks with one World; `change` may alter a member before the World is made.
std::vector<Worker> make_workers(int size, const Config& config,
                                 const std::function<void(int, Member&, Worker&)>& change) {
  std::vector<Worker> workers(static_cast<std::size_t>(size));
  World world;
  world.job = make_worker_id().bytes;
  world.epoch = Epoch(1);
  for (int rank = 0; rank < size; ++rank) {
    Worker& worker = workers[static_cast<std::size_t>(rank)];
    worker.config = config;
    worker.placement = placement_at("unix:none", rank, size);
    Member member;
    member.worker = make_worker_id();
    member.pid = ::getpid();
    member.host_name = "test-host";
    member.host_id = host_id(config);
    auto arena = Arena::make(8 << 20, member.worker, true);
    REQUIRE(arena);
    worker.arena = std::move(*arena);
    auto wait_point = WaitPoint::make(worker.arena->doorbell());
    REQUIRE(wait_point);
    worker.wait_point = std::move(*wait_point);
    auto listeners = open_listeners(config, worker.placement);
    REQUIRE(listeners);
    worker.listeners = std::move(*listeners);
    member.addresses = worker.listeners.addresses;
    member.unix_name = worker.listeners.unix_name;
    change(rank, member, worker);
    world.members.push_back(std::move(member));
  }
  for (int rank = 0; rank < size; ++rank) {
    workers[static_cast<std::size_t>(rank)].world = world;
    workers[static_cast<std::size_t>(rank)].world.self = Rank(rank);
  }
  return workers;
}

std::vector<Worker> make_workers(int size, const Config& config) {
  return make_workers(size, config, [](int, Member&, Worker&) {});
}

LaneLayout small_layout() {
  LaneLayout layout;
  layout.lanes = 2;
  layout.window = 2;
  layout.slot_bytes = 64 << 10;
  layout.tags = 8;
  return layout;
}

using Built = Result<std::unique_ptr<Session>>;

Built build(Worker& worker, Duration patience = 30s) {
  const SessionOptions options{
      worker.config, worker.placement, small_layout(), Deadline::after(patience), {}};
  return build_session(worker.world, worker.listeners, *worker.arena, *worker.wait_point, options);
}

std::vector<Built> build_all(std::vector<Worker>& workers) {
  return on_all_ranks<Built>(static_cast<int>(workers.size()), [&](int rank) {
    return build(workers[static_cast<std::size_t>(rank)]);
  });
}

/// Every rank sends every other a control message; true when all have arrived.
bool everybody_talks(std::vector<std::unique_ptr<Session>>& sessions) {
  const std::size_t size = sessions.size();
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      if (from == to) continue;
      const std::string text = std::to_string(from) + "->" + std::to_string(to);
      sessions[from]->links[to]->send_control(std::as_bytes(std::span(text)));
    }
  }
  std::size_t arrived = 0;
  const Deadline deadline = Deadline::after(20s);
  while (arrived < size * (size - 1) && !deadline.passed(steady_now())) {
    for (std::size_t here = 0; here < size; ++here) {
      for (auto& transport : sessions[here]->transports) {
        transport->flush();
        transport->progress();
      }
      for (std::size_t from = 0; from < size; ++from) {
        std::vector<std::byte> message;
        if (from == here || !sessions[here]->links[from]->take_control(message)) continue;
        const std::string text = std::to_string(from) + "->" + std::to_string(here);
        if (message.size() != text.size() ||
            std::memcmp(message.data(), text.data(), text.size()) != 0) {
          return false;
        }
        ++arrived;
      }
    }
  }
  return arrived == size * (size - 1);
}

std::vector<std::unique_ptr<Session>> take(std::vector<Built> built) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (Built& session : built) {
    if (!session) FAIL(session.error().message);
    sessions.push_back(std::move(*session));
  }
  return sessions;
}

std::size_t witnesses_of(const Session& session) {
  return static_cast<std::size_t>(std::count_if(session.witnesses.begin(), session.witnesses.end(),
                                                [](const Fd& fd) { return fd.valid(); }));
}

}  // namespace

TEST_CASE("session: a job of one has no links and opens nothing") {
  auto workers = make_workers(1, quick_config());
  const std::size_t before = open_descriptors();
  auto session = build(workers[0]);
  REQUIRE(session);
  CHECK((*session)->links.size() == 1);
  CHECK((*session)->transports.empty());
  CHECK((*session)->views_only());
  CHECK(open_descriptors() == before);
}

TEST_CASE("session: ranks of one host share memory, and each has a witness of every other") {
  for (const int size : {2, 3, 4}) {
    auto workers = make_workers(size, quick_config());
    auto sessions = take(build_all(workers));
    for (const auto& session : sessions) {
      CHECK(session->views_only());
      CHECK(session->transports.size() == 1);
      CHECK(witnesses_of(*session) == static_cast<std::size_t>(size - 1));
    }
    CHECK(everybody_talks(sessions));
  }
}

TEST_CASE("session: HORA_TRANSPORT=tcp uses TCP on one host") {
  Config config = quick_config();
  config.transport = "tcp";
  for (const int size : {2, 4}) {
    auto workers = make_workers(size, config);
    auto sessions = take(build_all(workers));
    for (const auto& session : sessions) {
      CHECK_FALSE(session->views_only());
      CHECK(witnesses_of(*session) == 0);
    }
    CHECK(everybody_talks(sessions));
  }
}

TEST_CASE("session: IPv6 works like IPv4, and addresses that do not answer are passed over") {
  Config config = quick_config();
  config.transport = "tcp";
  // A listener that is somebody else's: it answers, but does not know the job.
  const auto stranger = listen_tcp("127.0.0.1", 0);
  REQUIRE(stranger);
  const std::uint16_t strangers_port = *port_of(stranger->get());
  auto workers = make_workers(3, config, [&](int, Member& member, Worker& worker) {
    auto six = listen_tcp("::1", 0);
    REQUIRE(six);
    member.addresses = {{"127.0.0.1", strangers_port}, {"::1", *port_of(six->get())}};
    worker.listeners.tcp = TrackedFd(std::move(*six));
  });
  auto sessions = take(build_all(workers));
  CHECK(everybody_talks(sessions));
}

TEST_CASE("session: ranks with different host ids use TCP, equal ones memory, in one World") {
  auto workers = make_workers(4, quick_config(), [](int rank, Member& member, Worker&) {
    member.host_id = rank < 2 ? "host-a" : "host-b";
    member.host_name = "a-name-that-does-not-resolve.invalid";
  });
  auto sessions = take(build_all(workers));
  for (const auto& session : sessions) {
    CHECK_FALSE(session->views_only());
    CHECK(session->transports.size() == 2);
    CHECK(witnesses_of(*session) == 1);
  }
  CHECK(everybody_talks(sessions));
}

TEST_CASE("session: where memory cannot be passed, both sides agree on TCP") {
  // Rank 1 has an arena without descriptor: it cannot offer it.
  auto workers = make_workers(3, quick_config(), [](int rank, Member& member, Worker& worker) {
    if (rank != 1) return;
    auto arena = Arena::make(8 << 20, member.worker, false);
    REQUIRE(arena);
    worker.arena = std::move(*arena);
    worker.wait_point = std::move(*WaitPoint::make(worker.arena->doorbell()));
  });
  auto sessions = take(build_all(workers));
  CHECK_FALSE(sessions[0]->links[1]->shares_memory());
  CHECK_FALSE(sessions[1]->links[0]->shares_memory());
  CHECK_FALSE(sessions[2]->links[1]->shares_memory());
  CHECK(sessions[0]->links[2]->shares_memory());
  CHECK(sessions[2]->links[0]->shares_memory());
  CHECK(everybody_talks(sessions));
}

TEST_CASE("session: an arena that belongs to somebody else is refused by whoever maps it") {
  auto workers = make_workers(2, quick_config(), [](int rank, Member&, Worker& worker) {
    if (rank != 0) return;
    auto arena = Arena::make(8 << 20, make_worker_id(), true);
    REQUIRE(arena);
    worker.wait_point.reset();
    worker.arena = std::move(*arena);
    worker.wait_point = std::move(*WaitPoint::make(worker.arena->doorbell()));
  });
  auto sessions = take(build_all(workers));
  CHECK_FALSE(sessions[0]->views_only());
  CHECK_FALSE(sessions[1]->views_only());
  CHECK(everybody_talks(sessions));
}

TEST_CASE("session: HORA_TRANSPORT=shm across hosts says why it cannot be") {
  Config config = quick_config();
  config.transport = "shm";
  auto workers = make_workers(2, config, [](int rank, Member& member, Worker&) {
    member.host_id = "host-" + std::to_string(rank);
  });
  const auto session = build(workers[1]);
  REQUIRE_FALSE(session);
  CHECK(session.error().kind == ErrorKind::unsupported);
  CHECK_THAT(session.error().message, Catch::Contains("HORA_TRANSPORT=shm, but rank 1 (pid "));
  CHECK_THAT(session.error().message, Catch::Contains("they are on different hosts"));
}

TEST_CASE("session: a peer that does not answer is named with its addresses") {
  Config config = quick_config();
  config.transport = "tcp";
  auto workers = make_workers(2, config);
  const std::string address = to_string(workers[0].world.members[0].addresses[0]);
  workers[0].listeners.tcp.reset();
  const auto session = build(workers[1], 300ms);
  REQUIRE_FALSE(session);
  CHECK(session.error().kind == ErrorKind::timeout);
  CHECK(session.error().peer == Rank(0));
  CHECK_THAT(session.error().message, Catch::Contains("rank 1 (pid "));
  CHECK_THAT(session.error().message, Catch::Contains(" cannot reach rank 0 (pid "));
  CHECK_THAT(session.error().message, Catch::Contains(address + ": Connection refused"));
}

TEST_CASE("session: a peer that does not come is named") {
  auto workers = make_workers(2, quick_config());
  const auto session = build(workers[0], 100ms);
  REQUIRE_FALSE(session);
  CHECK(session.error().peer == Rank(1));
  CHECK_THAT(session.error().message, Catch::Contains("waited in vain for rank 1 (pid "));
}

TEST_CASE("session: building ends early when the caller knows that it is pointless") {
  auto workers = make_workers(2, quick_config());
  const SessionOptions options{
      workers[0].config, workers[0].placement, small_layout(), Deadline::after(30s), [] {
        return std::optional(Error{ErrorKind::peer_lost, "rank 1 died", Rank(1)});
      }};
  const auto session = build_session(workers[0].world, workers[0].listeners, *workers[0].arena,
                                     *workers[0].wait_point, options);
  REQUIRE_FALSE(session);
  CHECK(session.error().message == "rank 1 died");
}

TEST_CASE("session: a peer with another secret does not get in") {
  auto workers = make_workers(2, quick_config());
  workers[1].placement.secret = "guessed";
  auto built = on_all_ranks<Built>(
      2, [&](int rank) { return build(workers[static_cast<std::size_t>(rank)], 500ms); });
  REQUIRE_FALSE(built[0]);
  REQUIRE_FALSE(built[1]);
  CHECK_THAT(built[0].error().message, Catch::Contains("connections of strangers were dropped"));
  CHECK_THAT(built[1].error().message, Catch::Contains("cannot reach rank 0"));
}

TEST_CASE("session: strangers that flood the listeners stop nobody and leave nothing open") {
  const std::size_t before = open_descriptors();
  {
    Config config = quick_config();
    config.transport = "tcp";
    auto workers = make_workers(3, config);
    const auto target = workers[0].world.members[0].addresses[0];
    std::atomic<bool> stop{false};
    auto flood = std::async(std::launch::async, [&] {
      std::mt19937 random(11);
      std::vector<Fd> silent;
      for (int i = 0; i < 1000 && !stop; ++i) {
        auto socket = connect_tcp(target, Deadline::after(1s));
        if (!socket) continue;
        std::vector<std::byte> noise(100, std::byte(random() % 256));
        if (i % 2 == 0) (void)send_all(socket->get(), noise, Deadline::after(1s));
        if (silent.size() < 200) silent.push_back(std::move(*socket));
      }
    });
    auto built = build_all(workers);
    stop = true;
    flood.get();
    auto sessions = take(std::move(built));
    CHECK(everybody_talks(sessions));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("session: a session that fails gives its arena space back") {
  auto workers = make_workers(2, quick_config());
  for (int round = 0; round < 20; ++round) {
    REQUIRE_FALSE(build(workers[0], 1ms));
  }
  const auto reserved = workers[0].arena->reserve(6 << 20, "a large area");
  CHECK(reserved);
}

}  // namespace hora::test
