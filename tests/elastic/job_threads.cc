// The parts of a job that tests make themselves: see job_threads.h.
//
// Heartbeats are frequent so that tests are quick; limits are generous so that a busy machine does
// not fail them.
#include "tests/elastic/job_threads.h"

#include <condition_variable>
#include <filesystem>

#include "elastic/net.h"

namespace hora::test {

struct EventLog::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ControlEvent> events;
};

std::shared_ptr<EventLog::State> EventLog::make() {
  return std::make_shared<State>();
}

Control::Sink EventLog::sink() {
  return [state = state_](ControlEvent event) {
    const std::lock_guard lock(state->mutex);
    state->events.push_back(std::move(event));
    state->changed.notify_all();
  };
}

std::optional<ControlEvent> EventLog::wait_for(
    const std::function<bool(const ControlEvent&)>& wanted) {
  std::unique_lock lock(state_->mutex);
  std::optional<ControlEvent> found;
  state_->changed.wait_for(lock, 20s, [&] {
    for (const ControlEvent& event : state_->events) {
      if (!found && wanted(event)) found = event;
    }
    return found.has_value();
  });
  return found;
}

std::optional<ControlEvent> EventLog::wait_for(ControlEvent::Kind kind, Rank peer) {
  return wait_for(
      [kind, peer](const ControlEvent& event) { return event.kind == kind && event.peer == peer; });
}

std::size_t EventLog::count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->events.size();
}

Config quick_config() {
  Config config;
  config.heartbeat_ms = 20;
  config.heartbeat_timeout_ms = 2000;
  config.start_timeout_ms = 30000;
  return config;
}

std::string fresh_unix_name() {
  return "hora-test-" + to_string(make_worker_id());
}

Placement placement_at(const std::string& rendezvous, int rank, int size) {
  Placement placement;
  placement.rank = placement.local_rank = rank;
  placement.size = placement.local_size = size;
  placement.source = "horarun";
  placement.rendezvous = rendezvous;
  placement.secret = "a secret of this test";
  placement.job = "test";
  return placement;
}

RendezvousServerOptions server_options(int size) {
  RendezvousServerOptions options;
  options.size = size;
  options.job = "test";
  options.secret = "a secret of this test";
  options.unix_name = fresh_unix_name();
  return options;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace hora::test
