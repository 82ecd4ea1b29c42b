#include "ops/executor.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ops/executor_state.h"
#include "ops/reduce.h"
#include "runtime/base/check.h"

namespace hora {

Executor::Executor(Arena& arena, std::vector<Link*> links, const ExecutorOptions& options)
    : Executor(arena, std::move(links), options, std::vector<LaneStart>(options.layout.lanes)) {}

Executor::~Executor() = default;

void Executor::enqueue(std::uint16_t lane, std::unique_ptr<CollectiveRun> run) {
  HORA_CHECK(lane < lanes_.size(), "a response names a lane of the layout");
  LaneState& to = *lanes_[lane];
  const PlacedRun placed{to.end_position, std::move(run)};
  to.end_position = placed.end();
  to.runs.push_back({placed, placed.first});
}

bool Executor::step(std::size_t budget_bytes) {
  bool happened = false;
  std::size_t budget = budget_bytes;
  // The highest lane is the most urgent. One task of a lower lane at most delays it.
  for (auto it = lanes_.rbegin(); it != lanes_.rend() && !failure_; ++it) {
    LaneState& lane = **it;
    happened = show(lane) || happened;
    if (lane.runs.empty()) continue;
    happened = start_segments(lane, budget) || happened;
    for (std::uint64_t p = lane.count; p < lane.next_position && budget > 0; ++p) {
      Instance& instance = lane.at(p);
      if (instance.open > 0) happened = run_instance(lane, instance, budget) || happened;
    }
    happened = retire(lane) || happened;
  }
  return happened;
}

bool Executor::start_segments(LaneState& lane, std::size_t& budget) {
  bool started = false;
  lane.window_shut = false;
  while (lane.starting < lane.runs.size()) {
    if (auto& before = lane.runs[lane.starting].placed.run->before) {
      if (lane.starting > 0) break;  // What it works on is not here yet.
      started = true;
      if (!before->work(budget)) break;
      before.reset();
    }
    if (!options_.layout.may_start(lane.next_position, lane.count)) break;
    // Only when the own slots allow it is it worth to look at everybody's counts.
    const std::uint64_t floor = floor_of(lane);
    const bool gated =
        options_.outlives_members && lane.gate > floor && lane.next_position >= lane.gate;
    if (gated || !options_.layout.may_start(lane.next_position, floor)) {
      lane.window_shut = true;
      break;
    }
    start_segment(lane, lane.runs[lane.starting]);
    started = true;
  }
  return started;
}

void Executor::start_segment(LaneState& lane, const ResumedRun& resumed) {
  CollectiveRun& run = *resumed.placed.run;
  Instance& instance = lane.at(lane.next_position);
  HORA_CHECK(!instance.active, "a slot is reused only after its segment is done");
  const Schedule& schedule = *run.schedule;
  instance.active = true;
  instance.copied = lane.next_position < resumed.copied_to;
  instance.position = lane.next_position;
  instance.run = resumed.placed.run;
  instance.schedule = &schedule;
  instance.segment = Segment(run, run.started);
  instance.contributors = run.contributors;
  instance.first_open = 0;
  instance.copy.clear();
  if (run.codec) {
    const std::size_t slot = lane.next_position % lane.window.size();
    instance.encoded.begin(run, run.started, instance.copied,
                           static_cast<std::uint32_t>(lane.number * lane.window.size() + slot));
  }
  if (instance.copied) {
    instance.open = 1;
    instance.done.clear();
  } else {
    instance.open = 0;
    instance.done.assign(schedule.tasks.size(), 0);
    instance.received.resize(schedule.tasks.size());
    for (const Task& task : schedule.tasks)
      instance.open += task.kind != Primitive::unpack;
  }
  ++lane.next_position;
  if (is_private(schedule.shape)) lane.gate = resumed.placed.end();
  if (++run.started == run.segments()) ++lane.starting;
}

bool Executor::run_instance(LaneState& lane, Instance& instance, std::size_t& budget) {
  if (instance.copied) return take_copy(lane, instance);
  bool happened = false;
  // Tasks stand in dependency order, so one pass runs whatever has become possible.
  for (std::size_t i = instance.first_open; i < instance.done.size() && budget > 0; ++i) {
    if (instance.done[i] != 0) {
      if (i == instance.first_open) ++instance.first_open;
      continue;
    }
    if (instance.schedule->tasks[i].kind == Primitive::unpack) continue;
    if (!try_task(lane, instance, i, budget)) continue;
    if (failure_) return true;
    instance.done[i] = 1;
    --instance.open;
    happened = true;
  }
  return happened;
}

bool Executor::try_task(LaneState& lane, Instance& instance, std::size_t index,
                        std::size_t& budget) {
  const Schedule& schedule = *instance.schedule;
  const Task& task = schedule.tasks[index];
  for (std::uint32_t d = 0; d < task.dependency_count; ++d) {
    if (instance.done[schedule.dependencies[task.first_dependency + d]] == 0) return false;
  }
  if (task.kind == Primitive::recv) return try_recv(lane, instance, index);
  run_task(lane, instance, index);
  if (task.kind != Primitive::send) {
    budget -= std::min<std::size_t>(budget, 1 + instance.segment.length(task.chunk));
  }
  return true;
}

bool Executor::try_recv(LaneState& lane, Instance& instance, std::size_t index) {
  const Task& task = instance.schedule->tasks[index];
  Link& link = link_to(instance, task.peer);
  const auto payload = link.poll({lane.number, task.tag, instance.position});
  if (!payload) return false;
  const std::uint64_t expected = instance.segment.length(task.chunk);
  const bool fits = instance.run->codec ? instance.encoded.accepts(task, payload->size())
                                        : payload->size() == expected;
  if (!fits) {
    failure_ = Error{ErrorKind::protocol,
                     "rank " + std::to_string(link.peer().value) + " sent " +
                         std::to_string(payload->size()) + " bytes where " +
                         std::to_string(expected) + " were due (" + describe() + ")",
                     link.peer()};
  }
  instance.received[index] = *payload;
  return true;
}

void Executor::run_task(LaneState& lane, Instance& instance, std::size_t index) {
  if (options_.fault.kill_before == tasks_run_) options_.fault.die();
  const Task& task = instance.schedule->tasks[index];
  if (instance.run->codec) {
    run_encoded(lane, instance, task);
  } else {
    run_plain(lane, instance, task);
  }
  if (options_.fault.kill_after == tasks_run_) options_.fault.die();
  ++tasks_run_;
}

void Executor::send(LaneState& lane, Instance& instance, const Task& task,
                    std::span<const std::byte> payload) {
  payload_bytes_sent_ += payload.size();
  link_to(instance, task.peer)
      .send({lane.number, task.tag, instance.position}, payload,
            instance.segment.offset(task.remote));
}

void Executor::run_encoded(LaneState& lane, Instance& instance, const Task& task) {
  const SegmentMemory memory{slot(lane, instance.position), instance.received};
  if (task.kind == Primitive::send) {
    send(lane, instance, task, instance.encoded.payload(task, memory));
  } else if (const auto ran = instance.encoded.run(task, memory); !ran) {
    failure_ = ran.error();
  }
}

void Executor::run_plain(LaneState& lane, Instance& instance, const Task& task) {
  const Schedule& schedule = *instance.schedule;
  const std::uint64_t bytes = instance.segment.length(task.chunk);
  std::byte* const at = slot(lane, instance.position) + instance.segment.offset(task.at);
  switch (task.kind) {
    case Primitive::pack:
      instance.segment.pack(task.chunk, at);
      break;
    case Primitive::send:
      send(lane, instance, task, {at, bytes});
      break;
    case Primitive::copy: {
      const std::byte* from = operand(lane, instance, schedule.operands[task.first_operand]);
      if (from != at && bytes > 0) std::memcpy(at, from, bytes);
      break;
    }
    case Primitive::merge: {
      operands_.clear();
      for (std::uint32_t o = 0; o < task.operand_count; ++o) {
        operands_.push_back(operand(lane, instance, schedule.operands[task.first_operand + o]));
      }
      const CollectiveRun& run = *instance.run;
      const std::uint64_t count = bytes / size_of(run.dtype);
      if (count > 0) {
        reduce(run.dtype, run.op, operands_, at, count, task.finish ? run.finish : Finish{});
      }
      break;
    }
    case Primitive::unpack:
      instance.segment.unpack(task.chunk,
                              operand(lane, instance, schedule.operands[task.first_operand]));
      break;
    case Primitive::recv:
      HORA_CHECK(false, "a receive is polled, not run");
  }
}

bool Executor::retire(LaneState& lane) {
  bool happened = false;
  while (lane.count < lane.next_position) {
    Instance& instance = lane.at(lane.count);
    if (instance.open > 0 || failure_) break;
    // From here on the segment is done, or it never will be in this World.
    if (!lane.word.advance()) break;
    unpack(lane, instance);
    if (instance.run->codec) instance.encoded.commit();
    instance.active = false;
    CollectiveRun& run = *instance.run;
    run.finish_segment(instance.contributors);
    ++segments_finished_;
    advance_count(lane);
    if (run.finished == run.segments()) finish_run(lane);
    happened = true;
  }
  return happened;
}

void Executor::finish_run(LaneState& lane) {
  PlacedRun placed = std::move(lane.runs.front().placed);
  lane.runs.pop_front();
  --lane.starting;
  if (options_.outlives_members && is_private(placed.run->schedule->shape)) {
    lane.unshown.push_back(placed);
    for (Link* link : links_) {
      if (link != nullptr) link->announce(lane.number);  // Everybody waits for it.
    }
  } else {
    finished_.push_back(placed.run);
  }
  lane.past.push_back(std::move(placed));
  forget_past(lane);
}

/// Private results of which every member has its own.
bool Executor::show(LaneState& lane) {
  bool happened = false;
  while (!lane.unshown.empty() && lane.unshown.front().end() <= floor_of(lane)) {
    finished_.push_back(std::move(lane.unshown.front().run));
    lane.unshown.pop_front();
    happened = true;
  }
  return happened;
}

void Executor::unpack(LaneState& lane, Instance& instance) {
  if (instance.copied) {
    if (instance.run->codec) return instance.encoded.unpack_copy(instance.copy.data());
    return instance.segment.unpack_result(instance.copy.data());
  }
  const auto& tasks = instance.schedule->tasks;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].kind == Primitive::unpack) run_task(lane, instance, i);
  }
}

void Executor::advance_count(LaneState& lane) {
  ++lane.count;
  // A peer can start up to W beyond what it has heard, and everything it starts ends in a message
  // from us or in W/2 more counts: half a window of silence never stops it.
  const std::uint64_t quiet = std::max<std::uint64_t>(1, options_.layout.window / 2);
  for (Link* link : links_) {
    if (link == nullptr) continue;
    link->set_count(lane.number, lane.count);
    if (lane.count - link->announced(lane.number) >= quiet) link->announce(lane.number);
  }
}

std::uint64_t Executor::floor_of(const LaneState& lane) const {
  std::uint64_t floor = lane.count;
  for (const Link* link : links_) {
    if (link != nullptr) floor = std::min(floor, link->heard(lane.number));
  }
  return floor;
}

Link& Executor::link_to(const Instance& instance, int peer) const {
  return *links_[static_cast<std::size_t>(instance.run->rank_at(peer))];
}

std::byte* Executor::slot(const LaneState& lane, std::uint64_t position) const {
  return arena_.at(options_.area_offset + options_.layout.slot_offset(lane.number, position));
}

const std::byte* Executor::operand(const LaneState& lane, const Instance& instance,
                                   const Operand& operand) const {
  if (operand.received != kNoTask) return instance.received[operand.received].data();
  return slot(lane, instance.position) + instance.segment.offset(operand.place);
}

std::vector<std::shared_ptr<CollectiveRun>> Executor::take_finished() {
  return std::exchange(finished_, {});
}

bool Executor::busy() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return !lane->runs.empty() || !lane->unshown.empty();
  });
}

std::uint32_t Executor::outstanding(std::uint16_t lane) const {
  return static_cast<std::uint32_t>(lanes_[lane]->runs.size() + lanes_[lane]->unshown.size());
}

SleepNeed Executor::need() const {
  SleepNeed need{64, false};
  for (const auto& lane : lanes_) {
    need.counts = need.counts || lane->window_shut || !lane->unshown.empty();
    for (std::uint64_t p = lane->count; p < lane->next_position; ++p) {
      const Instance& instance = lane->at(p);
      const Schedule& schedule = *instance.schedule;
      if (instance.open == 0) continue;
      if (instance.copied) {
        need.rings = 1;
        continue;
      }
      // A task that lacks only receives can run when all their senders have rung; so can the
      // unpacks when nothing but receives is open.
      std::uint64_t all_missing = 0;
      bool only_receives = true;
      for (std::size_t i = instance.first_open; i < schedule.tasks.size(); ++i) {
        const Task& task = schedule.tasks[i];
        if (instance.done[i] != 0 || task.kind == Primitive::unpack) continue;
        if (task.kind == Primitive::recv) {
          all_missing |= std::uint64_t{1} << (task.peer & 63);
          continue;
        }
        only_receives = false;
        std::uint64_t missing = 0;
        bool blocked_otherwise = false;
        for (std::uint32_t d = 0; d < task.dependency_count; ++d) {
          const TaskId dependency = schedule.dependencies[task.first_dependency + d];
          if (instance.done[dependency] != 0) continue;
          const Task& waited = schedule.tasks[dependency];
          if (waited.kind == Primitive::recv) {
            missing |= std::uint64_t{1} << (waited.peer & 63);
          } else {
            blocked_otherwise = true;
          }
        }
        if (!blocked_otherwise) {
          need.rings = std::min(need.rings, static_cast<std::uint32_t>(std::popcount(missing)));
        }
      }
      if (only_receives) {
        need.rings = std::min(need.rings, static_cast<std::uint32_t>(std::popcount(all_missing)));
      }
    }
  }
  need.rings = need.rings == 64 ? 1 : std::max(1u, need.rings);
  return need;
}

std::string Executor::describe() const {
  for (const auto& lane : lanes_) {
    if (lane->runs.empty()) continue;
    const CollectiveRun& run = *lane->runs.front().placed.run;
    return "segment " + std::to_string(run.finished + 1) + " of " + std::to_string(run.segments()) +
           " by " + run.schedule->algorithm;
  }
  return {};
}

}  // namespace hora
