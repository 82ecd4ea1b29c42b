// Timeline: what every tensor was doing when, as a Chrome trace (chrome://tracing, Perfetto).
//
// A tensor is a "process" of the trace; its phases are nested spans with Horovod's names:
//
//   'layer.0.weight'   |NEGOTIATE_ALLREDUCE 0  2 1 |ALLREDUCE                                |
//                                          ranks |QUEUE|MEMCPY_IN..|SHM_ALLREDUCE|MEMCPY..|
//
// The engine must not wait for a disk: events go onto a bounded queue, and a thread writes them
// every 50 ms. When the queue is full events are dropped and counted, and the trace says how
// many. The file is a complete JSON document at any moment, so it can be read while the job
// runs and after it was killed: see timeline.cc (up to half of it may be spaces until the
// timeline ends in order).
//
// It may begin and end while the job runs: a span that began before the file did is left out of it.
//
// Owner: the Runtime. Any thread may add events. A timeline that is off costs one branch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/request.h"

namespace hora {

/// Names of activities within a collective: Horovod's where there is one.
namespace activity {
inline constexpr std::string_view kQueue = "QUEUE";
inline constexpr std::string_view kWaitForData = "WAIT_FOR_DATA";
inline constexpr std::string_view kWaitForOtherTensorData = "WAIT_FOR_OTHER_TENSOR_DATA";
inline constexpr std::string_view kAllocateOutput = "ALLOCATE_OUTPUT";
inline constexpr std::string_view kMemcpyIn = "MEMCPY_IN_FUSION_BUFFER";
inline constexpr std::string_view kMemcpyOut = "MEMCPY_OUT_FUSION_BUFFER";
/// With a codec, by segment.
inline constexpr std::string_view kEncode = "ENCODE";
inline constexpr std::string_view kTransfer = "TRANSFER";
inline constexpr std::string_view kDecode = "DECODE";
}  // namespace activity

/// "NEGOTIATE_ALLREDUCE", ...; an Adasum has a phase of its own.
std::string_view negotiate_phase(const Request& request);
inline constexpr std::string_view kAdasumPhase = "ADASUM";
/// The file of a rank: the pattern with every %r replaced by the rank. Without a %r rank 0 alone
/// has one; the others get an empty path.
std::string timeline_path(const std::string& pattern, Rank rank);

struct TimelineOptions {
  std::size_t queue_limit = 1 << 16;  ///< Events that may wait for the disk.
  bool mark_cycles = false;           ///< Whether `cycle` leaves a mark.
};

class Timeline {
 public:
  /// Off.
  Timeline();
  ~Timeline();
  Timeline(Timeline&&) noexcept;
  Timeline& operator=(Timeline&&) noexcept;

  /// Creates (or replaces) the file and starts the thread. Needs to create a second file beside
  /// it. Errors: system, with the path and why; invalid_argument: the path is there and not a
  /// regular file.
  static Result<Timeline> open(const std::string& path, const TimelineOptions& options);

  [[nodiscard]] bool on() const { return writer_ != nullptr; }

  /// A span of the tensor begins: a phase (NEGOTIATE_ALLREDUCE, then ALLREDUCE) or
  /// an activity within.
  void begin(std::string_view tensor, std::string_view name) {
    if (on()) add('B', tensor, name);
  }
  /// The span of the tensor that began last ends.
  void end(std::string_view tensor) {
    if (on()) add('E', tensor, {});
  }
  /// The same, with what the tensor was.
  void end(std::string_view tensor, DType dtype, const std::vector<std::int64_t>& shape) {
    if (on()) add_end(tensor, dtype, shape);
  }
  /// This rank has submitted the tensor (a tick within NEGOTIATE_...).
  void rank_ready(std::string_view tensor, Rank rank) {
    if (on()) add('X', tensor, std::to_string(rank.value));
  }
  /// A round of negotiation has had a result.
  void cycle() {
    if (mark_cycles_) instant("CYCLE_START");
  }
  /// A mark across all tensors.
  void instant(std::string_view name) {
    if (on()) add('i', {}, name);
  }

  /// Waits until everything added before is in the file. False: not within the deadline.
  bool flush(Deadline deadline);
  /// Events that did not find room so far.
  [[nodiscard]] std::uint64_t dropped() const;
  /// In a forked child: becomes off without touching file or thread, which are the parent's.
  void on_fork_child();

 private:
  class Writer;

  void add(char phase, std::string_view tensor, std::string_view name);
  void add_end(std::string_view tensor, DType dtype, const std::vector<std::int64_t>& shape);

  Timeline(std::unique_ptr<Writer> writer, bool mark_cycles);

  std::unique_ptr<Writer> writer_;
  bool mark_cycles_ = false;
};

}  // namespace hora
