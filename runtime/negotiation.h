// Negotiation: which tensors are ready on all ranks, in which order, fused how. Pure.
//
//   worker r                                root
//
//   submit(Request)  --- WorkerMessage -->  Coordinator: name -> {request, ranks that have it}
//     a request seen before travels as        ready everywhere? agree? -> Response, fused with
//     one bit: its slot in the                others; known tensors are named by slot as well
//     ResponseCache
//   responses        <--- RootMessage ----  the same to all ranks, in one ordered stream
//
// Every rank keeps the same ResponseCache, because it is changed only by the ordered stream of
// RootMessages. A WorkerMessage says how much of the stream its sender had seen, so the root knows
// what a bit meant.
//
// A small tensor that is known and waited for sends its bytes with its bit and gets the result with
// the answer (carried.h): one meeting of all ranks instead of two.
//
// When to answer. A tensor that is ready everywhere is answered at once if somebody waits for it
// (the flush flag, set when a caller waits or polls), if the ready bytes reach `target_bytes`, or
// if it has been held for `hold`. At most two fused buffers are outstanding per lane; what becomes
// ready meanwhile is fused. So batching costs no latency to anybody who waits, and needs no cycle.
//
// Time comes in as an argument, messages go out as values; no thread, socket, clock or environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/request.h"

namespace hora {

struct NegotiationOptions {
  int size = 1;
  std::vector<std::vector<std::int32_t>> sets;  ///< Process sets from the start; not refused ones.
  std::uint64_t fusion_bytes = 64ull << 20;
  std::uint64_t target_bytes = 8ull << 20;
  Duration hold = 50ms;
  std::uint32_t cache_capacity = 4096;
  std::uint64_t carry_bytes = 0;  ///< Inputs that a rank sends with its bits; 0: none.
  std::uint64_t small_bytes = 256ull
                              << 10;    ///< Buffers up to this size take the small lane (lane 1).
  std::uint32_t outstanding_limit = 2;  ///< Fused buffers per lane that may be in flight.
  bool stall_check = true;
  Duration stall_warning = 60s;
  Duration stall_shutdown = 0s;  ///< 0: never.
};

/// Lanes of a World: bulk and small.
inline constexpr std::uint16_t kBulkLane = 0;
inline constexpr std::uint16_t kSmallLane = 1;
inline constexpr std::uint16_t kLanes = 2;

/// A rank's side. Owner: the progress token.
class WorkerNegotiator {
 public:
  WorkerNegotiator(Rank self, const NegotiationOptions& options);
  ~WorkerNegotiator();

  /// A tensor of this rank is ready. `input`: its bytes, which stay as they are until it is
  /// answered; null: they are not to be sent from here.
  void submit(const Request& request, const std::byte* input = nullptr);
  /// Somebody here waits: answer what is ready now. Sent once per call pattern, coalesced.
  void flush();
  /// This rank leaves the job in order: all others learn of it.
  void shutdown(const std::string& last_words);
  /// The message to the root, or nothing if there is nothing new to say. Call until nothing: what
  /// is long is spread over several messages.
  std::optional<std::vector<std::byte>> take_message();
  /// The root's next message: responses in stream order, to be run in this order.
  /// `stop`: see below.
  struct Decoded {
    std::vector<Response> responses;
    std::string notice;  ///< To be logged as a warning on this rank (stall report), or empty.
    std::optional<Error>
        stop;  ///< The job ends: fail everything with this (kind shutdown or timeout).
  };
  Result<Decoded> on_root_message(std::span<const std::byte> message);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The root's side. Owner: the progress token of the root's Runtime.
class Coordinator {
 public:
  explicit Coordinator(const NegotiationOptions& options);
  ~Coordinator();

  /// A rank's message (the root's own too).
  Result<void> on_message(Rank from, std::span<const std::byte> message, TimePoint now);
  /// What a rank was last known to be doing, for the stall report: "dead: killed by signal 9",
  /// "silent for 3 s".
  void on_evidence(Rank rank, const std::string& text);
  /// The next message to all ranks (the root's own worker included), or nothing now. Call until
  /// nothing, with the counts renewed, after messages of ranks, finished responses and deadlines.
  /// `outstanding[lane]`: responses of the lane that were answered but are not finished here.
  std::optional<std::vector<std::byte>> take_message(TimePoint now,
                                                     std::span<const std::uint32_t> outstanding);
  /// When take_message may have something without new input (hold, stall check), or nothing.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;
  /// The smallest number of ranks whose messages could make some waiting tensor ready; 0 if none
  /// waits. A lower bound is allowed, more is not: the root sleeps until that many have rung.
  [[nodiscard]] std::uint32_t missing_ranks() const;
  /// For the timeline and tests: (name, ranks that have it) of every waiting tensor.
  [[nodiscard]] std::vector<std::pair<std::string, std::vector<Rank>>> waiting() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
