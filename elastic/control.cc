// The io thread of a worker: one poll() over the control connection, the witnesses and a wake-up.
//
// All state belongs to the thread; the public functions post work to it. Evidence of a death comes
// from up to three sides at about the same time - the launcher, who knows how; the rendezvous, who
// sees the connection end; a witness socket, whose end we see ourselves - and the engine shall hear
// of it once and in the best words. So the end of a witness waits 100 ms for a better explanation,
// and whoever speaks first is the last.
//
// When the rendezvous itself ends without goodbye: run by horarun, the job has lost its launcher
// and ends; run by rank 0, rank 0 is dead.
#include "elastic/control.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "elastic/heartbeat_monitor.h"
#include "elastic/io_thread.h"
#include "elastic/job.h"
#include "elastic/net.h"
#include "elastic/rendezvous_client.h"
#include "elastic/rendezvous_server.h"
#include "elastic/session.h"

namespace hora {

namespace {

constexpr auto kWitnessGrace = 100ms;
constexpr auto kLastWords = 200ms;  // For what is queued when the Control goes.
constexpr std::size_t kMostPosted = 4096;
constexpr std::byte kBye{0x42};  // On a witness: this process ends in order.

/// A job of one: nobody to talk to.
class SoleControl final : public Control {
 public:
  explicit SoleControl(World world) : world_(std::move(world)) {}
  [[nodiscard]] const World& world() const override { return world_; }
  void frozen(WorkerReport) override {}
  void suspect(Epoch, Rank, const std::string&) override {}
  void report(const std::string&) override {}
  void leave() override {}
  void watch(Rank, Fd) override {}

 private:
  World world_;
};

class LinkedControl final : public Control {
 public:
  LinkedControl(const Config& config, const Placement& placement, Meeting meeting,
                std::unique_ptr<RendezvousServer> server, TrackedFd wake, Sink sink)
      : beat_every_(std::chrono::milliseconds(std::max(config.heartbeat_ms, 1u))),
        launched_(placement.source == "horarun"),
        sink_(std::move(sink)),
        first_world_(meeting.world),
        meeting_(std::move(meeting)),
        wake_(std::move(wake)),
        server_monitor_(std::chrono::milliseconds(config.heartbeat_timeout_ms)),
        server_(std::move(server)) {}

  void run() {
    thread_.start("hora-io", [this] { loop(); });
  }

  ~LinkedControl() override {
    if (thread_.inherited_by_fork()) {
      (void)server_.release();  // Its thread and locks are the parent's.
      return;
    }
    post([this] { stop_at_ = steady_now() + kLastWords; });
    thread_.join();
  }

  [[nodiscard]] const World& world() const override { return first_world_; }

  void frozen(WorkerReport report) override {
    post([this, report = std::move(report)] { say(Frozen{report}); });
  }

  void suspect(Epoch epoch, Rank about, const std::string& text) override {
    post([this, epoch, about, text] { say(Suspect{epoch, about, text}); });
  }

  void report(const std::string& text) override {
    post([this, text] { say(Report{text}); });
  }

  void leave() override {
    post([this] {
      left_ = true;
      say(Leave{});
      for (const auto& [rank, witness] : witnesses_) {
        (void)!::send(witness.get(), &kBye, sizeof kBye, MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    });
  }

  void watch(Rank peer, Fd witness) override {
    // A std::function must be copyable, a descriptor is not.
    auto shared = std::make_shared<TrackedFd>(std::move(witness));
    post([this, peer, shared] { witnesses_[peer] = std::move(*shared); });
  }

 private:
  /// The sources of one round of poll, in the order of the pollfds.
  struct Round {
    std::vector<pollfd> polled;
    std::vector<Rank> witnesses;
  };

  void post(std::function<void()> work) {
    if (thread_.inherited_by_fork()) return;
    {
      const std::lock_guard lock(mutex_);
      if (posted_.size() >= kMostPosted) return;
      posted_.push_back(std::move(work));
    }
    (void)!::eventfd_write(wake_.get(), 1);
  }

  void loop() {
    TimePoint now = steady_now();
    next_beat_ = now;
    if (!launched_ && meeting_.world.self != Rank(0)) server_monitor_.start(Rank(0), now);
    read_connection(now);  // What came together with the World.
    while (!finished(now)) {
      Round round = sources();
      ::poll(round.polled.data(), round.polled.size(), sleep_ms(now));
      now = steady_now();
      for (std::size_t i = 2; i < round.polled.size(); ++i) {
        if (round.polled[i].revents != 0) read_witness(round.witnesses[i - 2], now);
      }
      if (round.polled[1].revents != 0) read_connection(now);
      run_posted();
      on_time(now);
      write_connection(now);
    }
  }

  /// Told to stop, and everything is said or the patience is over.
  [[nodiscard]] bool finished(TimePoint now) const {
    return stop_at_ && (output_.empty() || now >= *stop_at_);
  }

  Round sources() {
    Round round;
    const int socket = meeting_.socket.get();  // -1 once it has ended: poll skips it.
    const short events = output_.empty() ? POLLIN : POLLIN | POLLOUT;
    round.polled.push_back({wake_.get(), POLLIN, 0});
    round.polled.push_back({socket, events, 0});
    for (const auto& [rank, witness] : witnesses_) {
      round.polled.push_back({witness.get(), POLLIN, 0});
      round.witnesses.push_back(rank);
    }
    return round;
  }

  [[nodiscard]] int sleep_ms(TimePoint now) const {
    TimePoint until = next_beat_;
    if (stop_at_) until = std::min(until, *stop_at_);
    for (const auto& [rank, due] : ended_)
      until = std::min(until, due);
    if (const auto check = server_monitor_.next_check()) until = std::min(until, *check);
    return static_cast<int>(to_ms(Deadline{until}.left(now)));
  }

  void run_posted() {
    eventfd_t count = 0;
    (void)!::eventfd_read(wake_.get(), &count);
    std::vector<std::function<void()>> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(posted_);
    }
    for (const auto& item : work)
      item();
  }

  void on_time(TimePoint now) {
    if (now >= next_beat_) {
      // A full pipe needs no more of them.
      if (output_.empty()) say(Heartbeat{});
      next_beat_ = now + beat_every_;
    }
    for (auto it = ended_.begin(); it != ended_.end();) {
      const auto [rank, due] = *it;
      it = now >= due ? ended_.erase(it) : std::next(it);
      if (now >= due) lost(rank, "its process has ended");
    }
    if (const auto check = server_monitor_.next_check(); check && now >= *check) {
      for (const auto& [rank, silent_for] : server_monitor_.check(now)) {
        const std::string tenths = std::to_string(to_ms(silent_for) / 100);
        const std::string text = tenths.substr(0, tenths.size() - 1) + "." + tenths.back();
        sink_({ControlEvent::Kind::peer_silent, rank, "has sent no heartbeat for " + text + " s"});
      }
    }
  }

  void say(const Message& message) {
    if (!meeting_.socket.valid()) return;
    const auto bytes = encode(message);
    output_.insert(output_.end(), bytes.begin(), bytes.end());
  }

  void write_connection(TimePoint now) {
    while (!output_.empty()) {
      const ssize_t sent = ::send(meeting_.socket.get(), output_.data(), output_.size(),
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        output_.erase(output_.begin(), output_.begin() + sent);
      } else if (sent < 0 && errno == EINTR) {
        continue;
      } else {
        if (errno != EAGAIN && errno != EWOULDBLOCK) connection_ended(now);
        return;
      }
    }
  }

  void read_connection(TimePoint now) {
    std::array<std::byte, 4096> buffer;
    bool ended = false;
    while (meeting_.socket.valid() && !ended) {
      const ssize_t got = ::recv(meeting_.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got > 0) {
        meeting_.reader.feed(std::span(buffer).first(static_cast<std::size_t>(got)));
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      ended = true;
    }
    for (;;) {
      auto message = meeting_.reader.next();
      if (!message) ended = true;
      if (!message || !*message) break;
      on_message(**message, now);
    }
    if (ended) connection_ended(now);
  }

  void on_message(const Message& message, TimePoint now) {
    if (std::holds_alternative<Heartbeat>(message)) {
      if (server_monitor_.beat(Rank(0), now)) {
        sink_({ControlEvent::Kind::peer_back, Rank(0), "sends heartbeats again"});
      }
    } else if (const auto* event = std::get_if<Event>(&message)) {
      const ControlEvent& news = event->event;
      if (news.kind == ControlEvent::Kind::peer_lost && news.peer) {
        lost(*news.peer, news.text);
      } else {
        sink_(news);
      }
    } else if (std::holds_alternative<Goodbye>(message)) {
      server_said_goodbye_ = true;
    } else if (const auto* freeze = std::get_if<Freeze>(&message)) {
      sink_({ControlEvent::Kind::freeze, std::nullopt, freeze->text, freeze->epoch, nullptr});
    } else if (const auto* install = std::get_if<Install>(&message)) {
      on_next_world(install->next);
    }
  }

  /// Ranks have changed: whatever was known by rank is of the past.
  void on_next_world(const NextWorld& said) {
    auto next = std::make_shared<NextWorld>(said);
    const auto& members = next->world.members;
    const auto me = std::find_if(members.begin(), members.end(), [this](const Member& member) {
      return member.worker == meeting_.world.me().worker;
    });
    if (me == members.end()) return;
    next->world.self = Rank(static_cast<std::int32_t>(me - members.begin()));
    meeting_.world = next->world;
    witnesses_.clear();
    ended_.clear();
    lost_.clear();
    sink_({ControlEvent::Kind::next_world, std::nullopt, next->reason, next->world.epoch, next});
  }

  void connection_ended(TimePoint now) {
    if (!meeting_.socket.valid()) return;
    meeting_.socket.reset();
    output_.clear();
    server_monitor_.stop(Rank(0));
    if (left_) return;
    if (launched_) {
      sink_({ControlEvent::Kind::job_ended, std::nullopt, "the launcher (horarun) is gone"});
    } else if (!server_said_goodbye_ && meeting_.world.self != Rank(0)) {
      ended_.emplace(Rank(0), now);
    }
  }

  void read_witness(Rank peer, TimePoint now) {
    std::array<std::byte, 16> buffer;
    const ssize_t got = ::recv(witnesses_[peer].get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) ended_.emplace(peer, now + kWitnessGrace);
    witnesses_.erase(peer);  // Ended, or said goodbye: nothing more will come.
  }

  void lost(Rank rank, const std::string& text) {
    ended_.erase(rank);
    if (!lost_.insert(rank).second) return;
    sink_({ControlEvent::Kind::peer_lost, rank, text});
  }

  const Duration beat_every_;
  const bool launched_;
  const Sink sink_;
  const World first_world_;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  ///< The only shared state.

  // The thread's own.
  Meeting meeting_;
  TrackedFd wake_;
  HeartbeatMonitor server_monitor_;
  TimePoint next_beat_{};
  std::vector<std::byte> output_;
  std::map<Rank, TrackedFd> witnesses_;
  std::map<Rank, TimePoint>
      ended_;  ///< Whose witness ended, and until when a better word is awaited.
  std::set<Rank> lost_;
  std::optional<TimePoint> stop_at_;
  bool server_said_goodbye_ = false;
  bool left_ = false;

  std::unique_ptr<RendezvousServer> server_;  ///< Outlives the thread, so that Leave is heard.
  IoThread thread_;
};

/// The rendezvous of a job without launcher.
Result<std::unique_ptr<RendezvousServer>> serve(const Config& config, const Placement& placement) {
  auto endpoints = parse_endpoints(placement.rendezvous);
  if (!endpoints) return fail(endpoints.error());
  const Endpoint& endpoint = endpoints->front();
  RendezvousServerOptions options;
  options.size = placement.size;
  options.job = placement.job;
  options.secret = placement.secret;
  options.heartbeat_limit = std::chrono::milliseconds(config.heartbeat_timeout_ms);
  options.unix_name = endpoint.unix_name;
  options.port = endpoint.port;
  options.log = Log(log_level_from(config.log_level), "rendezvous");
  // The place may still be closing: the round before, in this process or its predecessor.
  const Deadline deadline =
      Deadline::after(std::min<Duration>(std::chrono::milliseconds(config.start_timeout_ms), 3s));
  for (;;) {
    Result<std::unique_ptr<RendezvousServer>> server;
    for (const char* ip : {"::", "0.0.0.0"}) {
      options.ip = ip;
      server = RendezvousServer::start(options);
      if (server) return server;
    }
    if (deadline.passed(steady_now())) {
      return fail(server.error().kind,
                  "rank 0 cannot serve the rendezvous: " + server.error().message +
                      ". Does another job or process use this place?");
    }
    std::this_thread::sleep_for(20ms);
  }
}

void complete(Member& self, const Config& config, const Placement& placement) {
  self.host_name = host_name();
  self.host_id = host_id(config);
  self.local_rank = placement.local_rank;
  self.local_size = placement.local_size;
  self.cross_rank = placement.cross_rank;
  self.cross_size = placement.cross_size;
}

}  // namespace

Result<std::unique_ptr<Control>> Control::join(const Config& config, const Placement& placement,
                                               Member self, Sink sink,
                                               const Interrupted& interrupted) {
  complete(self, config, placement);
  if (placement.size == 1) {
    return std::make_unique<SoleControl>(
        World{job_id(placement.job), Epoch(1), Rank(0), {std::move(self)}, 0});
  }
  std::unique_ptr<RendezvousServer> server;
  if (placement.serve) {
    auto started = serve(config, placement);
    if (!started) return fail(started.error());
    server = std::move(*started);
  }
  auto meeting = meet(config, placement, self, interrupted);
  if (!meeting) return fail(meeting.error());
  TrackedFd wake(Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  if (!wake.valid()) return fail_errno("eventfd for the io thread");
  try {
    auto control =
        std::make_unique<LinkedControl>(config, placement, std::move(*meeting), std::move(server),
                                        std::move(wake), std::move(sink));
    control->run();
    return control;
  } catch (const std::system_error& e) {
    return fail(ErrorKind::resource, std::string("no thread for control: ") + e.what());
  }
}

}  // namespace hora
