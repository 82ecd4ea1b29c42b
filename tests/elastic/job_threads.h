// A job whose ranks are threads of the test.
//
// Placements, members, and a way to run all ranks at once. Results come back as values, so that
// every assertion stays on the test's thread.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "elastic/control.h"
#include "elastic/rendezvous_server.h"
#include "runtime/base/clock.h"

namespace hora::test {

/// Short heartbeats, a long enough start.
Config quick_config();

/// A place to meet that no other test has.
std::string fresh_unix_name();

/// Rank `rank` of `size` on one host, at a rendezvous that somebody else runs.
Placement placement_at(const std::string& rendezvous, int rank, int size);

/// Options of a server for such ranks, on a fresh unix socket.
RendezvousServerOptions server_options(int size);

/// Runs `body(rank)` on a thread per rank and collects what they return.
template <class T>
std::vector<T> on_all_ranks(int size, const std::function<T(int rank)>& body) {
  std::vector<std::future<T>> running;
  for (int rank = 0; rank < size; ++rank) {
    running.push_back(std::async(std::launch::async, body, rank));
  }
  std::vector<T> results;
  for (auto& future : running)
    results.push_back(future.get());
  return results;
}

/// Events of one rank; thread-safe.
class EventLog {
 public:
  Control::Sink sink();
  /// Waits for the first event that satisfies `wanted`; nothing after 20 s.
  std::optional<ControlEvent> wait_for(const std::function<bool(const ControlEvent&)>& wanted);
  std::optional<ControlEvent> wait_for(ControlEvent::Kind kind, Rank peer);
  [[nodiscard]] std::size_t count() const;

 private:
  struct State;
  std::shared_ptr<State> state_ = make();
  static std::shared_ptr<State> make();
};

/// Open descriptors of this process.
std::size_t open_descriptors();

}  // namespace hora::test
