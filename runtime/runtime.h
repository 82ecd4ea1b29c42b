// Runtime: a rank's whole engine room, and the only thing bindings talk to.
//
// A Runtime owns everything of one member of one job: control link, arena, session, engine. There
// is no global state: a test makes four of them in one process as a world of four. All functions
// may be called from any thread unless they say otherwise.
//
// The life of a call: `submit` validates and enqueues, and returns a Handle at once; `wait`
// drives the engine on the caller's thread until the handle is complete (or sleeps, if another
// thread drives it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/control.h"
#include "runtime/base/clock.h"
#include "runtime/base/config.h"
#include "runtime/base/result.h"
#include "runtime/request.h"

namespace hora {

/// One collective call. `input` and `output` are contiguous host memory and stay valid and (input)
/// unchanged until the handle completes.
///
///   allreduce   input, output: request.shape elements; may be the same memory
///   broadcast   root: input; others: output; in place: both the same
///   barrier     neither
///   allgather, reducescatter, alltoall
///               input: request.shape; output is allocated by Hora (take_output) and must be null
///   join        neither; until it completes this rank takes part with zeros, and submits nothing
///   add_set, remove_set   neither; called by all ranks of the job
///
/// A collective is run by the ranks of request.set, which must be one of `process_sets` and have
/// this rank in it. `root` is a rank of the job.
struct Submission {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;
  bool caller_waits = false;  ///< The caller will wait at once: do not wake the engine thread.
};

/// Elements of a result below `end` (from the last range's end on), and whose contributions they
/// have: the ranks with which those members were started. The last range's end is beyond any.
struct ElementRange {
  std::uint64_t end = ~std::uint64_t{0};
  std::shared_ptr<const std::vector<std::int32_t>> contributors;
};

/// The result of one call; shared by the caller and the engine. Thread-safe.
class Completion {
 public:
  virtual ~Completion() = default;
  /// True once complete, successfully or not.
  [[nodiscard]] virtual bool done() const = 0;
  /// The outcome; only when done.
  [[nodiscard]] virtual const Result<void>& outcome() const = 0;
  /// Where Hora allocates the output, after success: its bytes (64-byte aligned; moved out by the
  /// first call), its shape, and the rows that came from each rank (not of a reducescatter).
  virtual std::unique_ptr<std::byte[], void (*)(std::byte*)> take_output() = 0;
  [[nodiscard]] virtual const std::vector<std::int64_t>& output_shape() const = 0;
  [[nodiscard]] virtual const std::vector<std::int64_t>& first_dims() const = 0;
  /// After success. join: the rank that joined last. add_set, remove_set: the set's number.
  [[nodiscard]] virtual std::int64_t value() const = 0;
  /// After success: who contributed. One range, but for a collective in flight when a member died.
  [[nodiscard]] virtual const std::vector<ElementRange>& contributions() const = 0;
};
using Handle = std::shared_ptr<Completion>;

/// Where a timeline goes.
struct TimelineTarget {
  /// The file; every %r in it is the rank. Without a %r rank 0 alone writes one.
  std::string pattern;
  /// Whether each round of negotiation leaves a mark, CYCLE_START.
  bool mark_cycles = false;
};

/// Numbers for benchmarks and tests; a snapshot.
struct RuntimeStats {
  std::uint64_t collectives = 0;            ///< Responses run.
  std::uint64_t tensors = 0;                ///< Tensors completed.
  std::uint64_t negotiation_bytes_out = 0;  ///< Control payload sent by this rank.
  std::uint64_t negotiation_bytes_in = 0;
  std::uint64_t segments = 0;
  std::uint64_t payload_bytes = 0;  ///< Of tensors, sent to peers, as encoded.
  std::uint64_t sleeps = 0;
};

class Runtime {
 public:
  /// Joins the job and builds the first session. Blocks until all members are there,
  /// config.start_timeout_ms, or until `interrupted` (asked every 50 ms or so on this thread; may
  /// be empty) returns true.
  static Result<std::unique_ptr<Runtime>> start(const Config& config, const Placement& placement,
                                                const Interrupted& interrupted = {});

  virtual ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The newest World; it changes when a member is lost and the job goes on without it.
  [[nodiscard]] virtual std::shared_ptr<const World> world() const = 0;
  [[nodiscard]] virtual const Placement& placement() const = 0;

  /// Starts a collective. Errors: invalid_argument, duplicate_name, shutdown, peer_lost (once the
  /// session is gone), resource (too many in flight).
  virtual Result<Handle> submit(Submission submission) = 0;

  /// Starts collectives of one kind that are negotiated as a whole: none of them begins before all
  /// ranks have submitted all of them, and when one fails all do. All are started here, or none.
  /// `group` names them together, like a tensor's name; at least one member. Errors as `submit`.
  virtual Result<std::vector<Handle>> submit_group(const std::string& group,
                                                   std::vector<Submission> members) = 0;

  /// Says in place of a call, or of a group's members, that it has failed on this rank before it
  /// began: the others' fail with `why` and do not wait. What `submit` and `submit_group` refuse as
  /// invalid_argument or unsupported they have said themselves. Does nothing where it cannot.
  virtual void refuse(std::span<const Request> calls, std::string_view why) = 0;

  /// Waits until the handle is done, the deadline, or until `interrupted` (asked about every 50 ms
  /// on the caller's thread) returns true. Returns the outcome of the handle, or an Error of kind
  /// timeout or interrupted; the collective goes on then.
  virtual Result<void> wait(const Handle& handle, Deadline deadline,
                            const std::function<bool()>& interrupted) = 0;

  /// Done? Also tells the coordinator that somebody is interested.
  virtual bool poll(const Handle& handle) = 0;

  /// Writes to a file what happens from now on, instead of to the one before. Blocks until that is
  /// complete and this one has begun. From one thread at a time. Errors: those of opening the file.
  virtual Result<void> start_timeline(const TimelineTarget& target) = 0;
  /// Ends the timeline, if there is one; its file is complete then.
  virtual Result<void> stop_timeline() = 0;

  /// Ends this rank's part in order: pending handles here and later submissions anywhere fail with
  /// `shutdown`. `last_words` (why, e.g. an exception's last line) reaches the other ranks' errors.
  /// Idempotent. The destructor calls it.
  virtual void shutdown(const std::string& last_words) = 0;

  /// In a forked child: forget everything without touching peers. The parent's
  /// Runtime is unaffected.
  virtual void on_fork_child() = 0;

  /// The process sets that there are: set 0, then by number. A set that add_set has made is here
  /// when its handle is done.
  [[nodiscard]] virtual std::vector<SharedSet> process_sets() const = 0;

  [[nodiscard]] virtual RuntimeStats stats() const = 0;

 protected:
  Runtime() = default;
};

}  // namespace hora
