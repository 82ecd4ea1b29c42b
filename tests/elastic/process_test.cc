// Ranks that are processes, killed and stopped: what the others and the launcher are told.
//
// The children are forked before the server's thread exists, and tell what they heard
// by their exit code.
#include <csignal>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/elastic/job_threads.h"

namespace hora::test {

namespace {

constexpr int kSawLoss = 10, kSawEnd = 11, kSawNothing = 12, kDidNotJoin = 13;

/// What a rank does in its process: joins, and ends with what it hears first as exit code.
[[noreturn]] void be_rank(const std::string& place, int rank, int size,
                          unsigned heartbeat_timeout_ms) noexcept {
  Config config = quick_config();
  config.heartbeat_timeout_ms = heartbeat_timeout_ms;
  Member member;
  member.worker = make_worker_id();
  member.pid = ::getpid();
  EventLog log;
  auto control = Control::join(config, placement_at(place, rank, size), member, log.sink());
  if (!control) ::_exit(kDidNotJoin);
  const auto event = log.wait_for([](const ControlEvent& heard) {
    return heard.kind == ControlEvent::Kind::peer_lost ||
           heard.kind == ControlEvent::Kind::job_ended;
  });
  if (!event) ::_exit(kSawNothing);
  ::_exit(event->kind == ControlEvent::Kind::peer_lost ? kSawLoss : kSawEnd);
}

/// A child process. Signals go to it through a pidfd, which names this very process and can never
/// mean another one, a group or everybody.
class RankProcess {
 public:
  RankProcess(const std::string& place, int rank, int size, unsigned heartbeat_timeout_ms) {
    pid_ = ::fork();
    if (pid_ == 0) be_rank(place, rank, size, heartbeat_timeout_ms);
    REQUIRE(pid_ > 0);
    pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    REQUIRE(pidfd_.valid());
  }
  RankProcess(RankProcess&&) = default;
  ~RankProcess() {
    if (!pidfd_.valid()) return;
    signal(SIGKILL);
    exit_code();
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const {
    if (pidfd_.valid()) ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
  }
  /// Waits for it to end.
  int exit_code() {
    siginfo_t info{};
    const int failed = ::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED);
    pidfd_.reset();
    if (failed != 0) return -1;
    return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  }

 private:
  pid_t pid_ = 0;
  Fd pidfd_;
};

/// A callback whose first text fulfils the promise.
std::function<void(Rank, const std::string&)> first_to(std::promise<std::string>& promise) {
  return [&promise, fulfilled = false](Rank, const std::string& text) mutable {
    if (!std::exchange(fulfilled, true)) promise.set_value(text);
  };
}

/// Three ranks as processes and their server, whose callbacks fulfil promises.
struct Processes {
  std::vector<RankProcess> ranks;
  std::promise<void> formed;
  std::promise<std::string> silent, back, lost;
  std::unique_ptr<RendezvousServer> server;

  explicit Processes(unsigned heartbeat_timeout_ms) {
    auto options = server_options(3);
    // The children come before the server's thread does, and knock until it answers.
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back("unix:" + options.unix_name, rank, 3, heartbeat_timeout_ms);
    }
    options.heartbeat_limit = std::chrono::milliseconds(heartbeat_timeout_ms);
    options.inspect = [](const Member& member) { return process_state(member.pid); };
    options.on_formed = [this] { formed.set_value(); };
    options.on_silent = first_to(silent);
    options.on_back = first_to(back);
    options.on_lost = first_to(lost);
    auto started = RendezvousServer::start(std::move(options));
    REQUIRE(started);
    server = std::move(*started);
    REQUIRE(formed.get_future().wait_for(20s) == std::future_status::ready);
  }
};

template <class T>
T value_of(std::promise<T>& promise) {
  auto future = promise.get_future();
  REQUIRE(future.wait_for(20s) == std::future_status::ready);
  return future.get();
}

}  // namespace

TEST_CASE("processes: a rank that is killed is lost for the others") {
  Processes job(10000);
  job.ranks[1].signal(SIGKILL);
  CHECK(job.ranks[1].exit_code() == 128 + SIGKILL);
  CHECK(job.ranks[0].exit_code() == kSawLoss);
  CHECK(value_of(job.lost).find("): its process has ended") != std::string::npos);
}

TEST_CASE("processes: a rank that is stopped is silent and stopped, and comes back") {
  Processes job(400);
  job.ranks[1].signal(SIGSTOP);
  const std::string silent = value_of(job.silent);
  CHECK_THAT(silent,
             Catch::StartsWith("rank 1 (pid " + std::to_string(job.ranks[1].pid()) + " on "));
  CHECK_THAT(silent, Catch::Contains(") has sent no heartbeat for 0."));
  CHECK_THAT(silent, Catch::EndsWith("; state T (stopped)"));
  job.ranks[1].signal(SIGCONT);
  CHECK_THAT(value_of(job.back), Catch::EndsWith("sends heartbeats again"));
  job.server->end_job("the test is over");
  for (RankProcess& rank : job.ranks)
    CHECK(rank.exit_code() == kSawEnd);
}

TEST_CASE("processes: when the launcher dies all ranks learn that the job has ended") {
  Processes job(10000);
  job.server.reset();
  for (RankProcess& rank : job.ranks)
    CHECK(rank.exit_code() == kSawEnd);
}

}  // namespace hora::test
