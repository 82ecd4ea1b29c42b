// A world of negotiators without an engine: one Coordinator, a WorkerNegotiator per rank, and
// between them queues that a test empties in any order. Time is a number that the test moves.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "runtime/negotiation.h"

namespace hora {

inline Request allreduce_of(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  Request request;
  request.name = name;
  request.shape = std::move(shape);
  return request;
}

inline Request of_kind(Kind kind, const std::string& name, std::vector<std::int64_t> shape = {}) {
  Request request = allreduce_of(name, std::move(shape));
  request.kind = kind;
  return request;
}

class NegotiationWorld {
 public:
  using Bytes = std::vector<std::byte>;

  explicit NegotiationWorld(const NegotiationOptions& options) : options_(options), root(options) {
    for (std::int32_t rank = 0; rank < options.size; ++rank) {
      workers.push_back(std::make_unique<WorkerNegotiator>(Rank{rank}, options));
    }
    up.resize(workers.size());
    down.resize(workers.size());
    heard.resize(workers.size());
    notices.resize(workers.size());
    stops.resize(workers.size());
  }

  /// The same on all ranks.
  void submit_everywhere(const Request& request) {
    for (auto& worker : workers)
      worker->submit(request);
  }

  /// Puts what a rank has to say on its way.
  void send(std::size_t rank) {
    while (auto message = workers[rank]->take_message()) {
      up_bytes += message->size();
      last_up_bytes = message->size();
      up[rank].push_back(std::move(*message));
    }
  }

  /// The root hears the rank's next message. False: there is none.
  bool hear(std::size_t rank) {
    if (up[rank].empty()) return false;
    const Bytes message = std::move(up[rank].front());
    up[rank].pop_front();
    const auto heard_it = root.on_message(Rank{static_cast<std::int32_t>(rank)}, message, now);
    REQUIRE(heard_it);
    return true;
  }

  /// The root decides; its messages are on their way to all. Buffers count as
  /// outstanding until `finish`.
  std::size_t decide() {
    std::size_t messages = 0;
    while (auto message = root.take_message(now, outstanding)) {
      ++messages;
      down_bytes += message->size();
      last_down_bytes = message->size();
      for (auto& queue : down)
        queue.push_back(*message);
      // The root's own worker hears at once: the engine counts its responses as outstanding.
      deliver(0);
    }
    return messages;
  }

  /// The rank hears the root's next message. False: there is none.
  bool deliver(std::size_t rank) {
    if (down[rank].empty()) return false;
    const Bytes message = std::move(down[rank].front());
    down[rank].pop_front();
    auto decoded = workers[rank]->on_root_message(message);
    REQUIRE(decoded);
    for (Response& response : decoded->responses) {
      if (rank == 0 && response.error.empty()) ++outstanding[response.lane];
      heard[rank].push_back(std::move(response));
    }
    if (!decoded->notice.empty()) notices[rank].push_back(decoded->notice);
    if (decoded->stop) stops[rank] = decoded->stop;
    return true;
  }

  /// All buffers in flight are done.
  void finish() { outstanding = {}; }

  /// Everything that was said is heard, and everything that may run is done.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < workers.size(); ++rank) {
        send(rank);
        while (hear(rank))
          moved = true;
      }
      finish();
      if (decide() > 0) moved = true;
      for (std::size_t rank = 0; rank < workers.size(); ++rank) {
        while (deliver(rank))
          moved = true;
      }
    }
  }

  /// Flushes everywhere and settles.
  void flush_all() {
    for (auto& worker : workers)
      worker->flush();
    settle();
  }

  /// Responses of a rank since the last call.
  std::vector<Response> take_heard(std::size_t rank) {
    std::vector<Response> responses = std::move(heard[rank]);
    heard[rank].clear();
    return responses;
  }

 private:
  NegotiationOptions options_;

 public:
  Coordinator root;
  std::vector<std::unique_ptr<WorkerNegotiator>> workers;
  std::vector<std::deque<Bytes>> up, down;  // per-rank FIFOs
  std::vector<std::vector<Response>> heard;
  std::vector<std::vector<std::string>> notices;
  std::vector<std::optional<Error>> stops;
  std::array<std::uint32_t, kLanes> outstanding{};
  TimePoint now{};
  std::size_t up_bytes = 0, down_bytes = 0, last_up_bytes = 0, last_down_bytes = 0;
};

}  // namespace hora
