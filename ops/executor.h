// Executor: runs segments of collectives, lane by lane, task by task.
//
//   lane: queue of runs -> positions p, p+1, ... -> instance in slot p mod W -> tasks of a template
//
// Rules it keeps (docs/architecture.md, "the segment"):
//  - A segment starts at position p only if p < floor + W, where the floor is the lowest count of
//    all members.
//  - A caller's tensor is overwritten for p only when the whole result of p, and everything before
//    it, is here. Then p is unpacked, and only then this rank's count moves past p.
//  - A slot is never touched for another position before that.
//  - Every rank of the World counts every position. A rank outside of a run's group has no tasks
//    in it and passes it as soon as the window allows, without holding its result.
//  - A private result (reduce-scatter, all-to-all) can be had from nobody else. Where the World may
//    lose members it is given to the caller, and the next collective of the lane started, only when
//    every member has its own.
//
// A run may have local work to do *before* it (CollectiveRun::before). It is done when the runs in
// front have finished here, a budget's worth per step, and the run starts then.
//
// When the World ends the executor is taken apart (lane_remains.h): from then on nothing is
// finished here, and the next World's executor is made from what was left. There some segments are
// not run but *copied*: their results come from a member that has them.
//
// Nothing here blocks or allocates per segment. Lanes do not wait for each other; the
// urgent one goes first.
//
// Owner: the progress token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/collective.h"
#include "ops/lane_remains.h"
#include "ops/schedule.h"
#include "ops/transport/transport.h"
#include "runtime/base/arena.h"
#include "runtime/base/wait_point.h"

namespace hora {

/// Kills this process at a task, for tests of recovery. Tasks are counted from 0 as they run.
struct TaskFault {
  std::optional<std::uint64_t> kill_before, kill_after;
  /// How it is killed: by SIGKILL, if nobody says otherwise.
  std::function<void()> die = kill_this_process;

  static void kill_this_process();
};

struct ExecutorOptions {
  LaneLayout layout;
  std::size_t area_offset = 0;  ///< Of the slots in the arena.
  bool views_only = false;      ///< All links share memory.
  Rank self{};
  Epoch epoch{};
  TaskFault fault;
  bool outlives_members = false;  ///< The World may lose some, and others go on.
  std::uint64_t tasks_run = 0;    ///< By the executors before: the fault counts on.
};

class Executor {
 public:
  /// `links` by rank, null at self; `order` of lanes in options: higher lanes are more urgent.
  Executor(Arena& arena, std::vector<Link*> links, const ExecutorOptions& options);
  /// The same, going on where another one was taken apart; `starts` by lane. The links have been
  /// told the counts already (Link::set_count), before anything could come over them.
  Executor(Arena& arena, std::vector<Link*> links, const ExecutorOptions& options,
           std::vector<LaneStart> starts);
  ~Executor();

  /// Appends a run to a lane. All ranks append the same runs in the same order, also those outside
  /// of a run's group: with a template without tasks they pass its positions.
  void enqueue(std::uint16_t lane, std::unique_ptr<CollectiveRun> run);

  /// Runs tasks until about `budget_bytes` were touched or nothing can go on. True if
  /// anything happened.
  bool step(std::size_t budget_bytes);

  /// Runs that have finished here since the last call, in order per lane.
  std::vector<std::shared_ptr<CollectiveRun>> take_finished();

  /// No segment of any lane is finished here any more. Any thread.
  void freeze();
  /// Freezes, and hands over what is left, by lane. Only take_finished may be called afterwards.
  std::vector<LaneRemains> take_apart();
  /// The result of a position that this rank holds, for a member that lacks it; null if it does
  /// not. Only of what LaneStart::results brought.
  [[nodiscard]] const SegmentResult* inherited(std::uint16_t lane, std::uint64_t position) const;
  /// A result that this rank lacks has come. Those that nobody waits for are dropped. Error
  /// protocol: it has the wrong length.
  Result<void> accept_copy(std::uint16_t lane, std::uint64_t position, SegmentResult result);
  [[nodiscard]] std::uint64_t tasks_run() const { return tasks_run_; }

  /// Something is queued or in flight.
  [[nodiscard]] bool busy() const;
  /// Runs of the lane that have not finished.
  [[nodiscard]] std::uint32_t outstanding(std::uint16_t lane) const;
  /// What a sleeper waits for; only meaningful after a step that did nothing.
  [[nodiscard]] SleepNeed need() const;
  /// Segments finished so far.
  [[nodiscard]] std::uint64_t segments_finished() const { return segments_finished_; }
  /// Bytes of payloads sent so far; over shared memory they were published, not moved.
  [[nodiscard]] std::uint64_t payload_bytes_sent() const { return payload_bytes_sent_; }
  /// A payload of an unexpected length or the like; the session is lost.
  [[nodiscard]] const std::optional<Error>& failure() const { return failure_; }
  /// "receiving segment 3 of 8" of the oldest segment in flight, for error messages; empty if idle.
  [[nodiscard]] std::string describe() const;

 private:
  struct Instance;
  struct LaneState;

  bool start_segments(LaneState& lane, std::size_t& budget);
  static void start_segment(LaneState& lane, const ResumedRun& resumed);
  bool run_instance(LaneState& lane, Instance& instance, std::size_t& budget);
  bool try_task(LaneState& lane, Instance& instance, std::size_t index, std::size_t& budget);
  bool try_recv(LaneState& lane, Instance& instance, std::size_t index);
  void run_task(LaneState& lane, Instance& instance, std::size_t index);
  void send(LaneState& lane, Instance& instance, const Task& task,
            std::span<const std::byte> payload);
  void run_plain(LaneState& lane, Instance& instance, const Task& task);
  void run_encoded(LaneState& lane, Instance& instance, const Task& task);
  static bool take_copy(LaneState& lane, Instance& instance);
  bool retire(LaneState& lane);
  void finish_run(LaneState& lane);
  bool show(LaneState& lane);
  void unpack(LaneState& lane, Instance& instance);
  void forget_past(LaneState& lane) const;
  void resume(LaneState& lane, LaneStart start);
  [[nodiscard]] SegmentResult result_of(const LaneState& lane, const Instance& instance) const;
  void advance_count(LaneState& lane);
  [[nodiscard]] std::uint64_t floor_of(const LaneState& lane) const;
  [[nodiscard]] Link& link_to(const Instance& instance, int peer) const;
  [[nodiscard]] std::byte* slot(const LaneState& lane, std::uint64_t position) const;
  [[nodiscard]] const std::byte* operand(const LaneState& lane, const Instance& instance,
                                         const Operand& operand) const;

  Arena& arena_;
  std::vector<Link*> links_;
  ExecutorOptions options_;
  std::vector<std::unique_ptr<LaneState>> lanes_;
  std::vector<std::shared_ptr<CollectiveRun>> finished_;
  std::vector<const std::byte*> operands_;  // Scratch of one merge.
  std::uint64_t tasks_run_ = 0;
  std::uint64_t segments_finished_ = 0, payload_bytes_sent_ = 0;
  std::optional<Error> failure_;
};

}  // namespace hora
