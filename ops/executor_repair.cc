// The executor's end and its second beginning.
//
// Taking apart: the counts stand still, and whatever somebody may lack is copied out of the slots.
// A result lies where the unpacks read it: in the own slot, or, over shared memory, in pieces in
// the slots of those who merged them, dead or alive: a mapping outlives its owner, and nobody
// starts what would reuse the slot before all are done with it.
//
// Going on: segments that are done are skipped, some wait for a copy, and those from `copied_to` on
// run like any other. Counts begin where the lane stands, and what the others have is not assumed
// but heard: a plan that was made is not a plan that was carried out.
#include <algorithm>
#include <cstring>
#include <utility>

#include <signal.h>
#include <unistd.h>

#include "ops/executor.h"
#include "ops/executor_state.h"
#include "runtime/base/check.h"

namespace hora {

void TaskFault::kill_this_process() {
  ::kill(::getpid(), SIGKILL);
}

// ---- taking apart -------------------------------------------------------------------------------

void Executor::freeze() {
  for (const auto& lane : lanes_)
    lane->word.freeze(options_.epoch);
}

std::vector<LaneRemains> Executor::take_apart() {
  freeze();
  std::vector<LaneRemains> all;
  for (const auto& lane : lanes_) {
    LaneRemains& remains = all.emplace_back();
    show(*lane);  // Of what all have already heard.
    remains.done = lane->count;
    remains.started = lane->next_position;
    remains.floor = floor_of(*lane);
    for (std::uint64_t p = remains.floor; p < remains.done; ++p) {
      const Instance& instance = lane->at(p);
      if (const auto kept = lane->inherited.find(p); kept != lane->inherited.end()) {
        remains.results.insert(lane->inherited.extract(kept));
      } else if (instance.run != nullptr && instance.position == p &&
                 !is_private(instance.schedule->shape) && !instance.schedule->tasks.empty()) {
        remains.results.emplace(p, result_of(*lane, instance));
      }
    }
    for (std::uint64_t p = remains.done; p < remains.started; ++p) {
      Instance& instance = lane->at(p);
      if (instance.run->codec) instance.encoded.suspend(*instance.run);
    }
    for (PlacedRun& past : lane->past) {
      if (past.end() > remains.floor) remains.runs.push_back(std::move(past));
    }
    for (ResumedRun& run : lane->runs)
      remains.runs.push_back(std::move(run.placed));
  }
  return all;
}

SegmentResult Executor::result_of(const LaneState& lane, const Instance& instance) const {
  SegmentResult result{instance.copy, instance.contributors};
  if (instance.copied) return result;
  const Segment& segment = instance.segment;
  result.bytes.resize(segment.result_bytes());
  for (const Task& task : instance.schedule->tasks) {
    if (task.kind != Primitive::unpack) continue;
    const std::uint64_t bytes =
        task.chunk == kWhole ? result.bytes.size() : segment.length(task.chunk);
    const std::uint64_t at = task.chunk == kWhole ? 0 : segment.result_offset(task.chunk);
    if (bytes == 0) continue;
    if (instance.run->codec) {
      instance.encoded.read_result(task, {slot(lane, instance.position), instance.received},
                                   reinterpret_cast<float*>(result.bytes.data() + at));
      continue;
    }
    const Operand& from = instance.schedule->operands[task.first_operand];
    std::memcpy(result.bytes.data() + at, operand(lane, instance, from), bytes);
  }
  return result;
}

/// Runs of which everybody has all segments are forgotten, and so are results.
void Executor::forget_past(LaneState& lane) const {
  const std::uint64_t floor = floor_of(lane);
  while (!lane.past.empty() && lane.past.front().end() <= floor)
    lane.past.pop_front();
  lane.inherited.erase(lane.inherited.begin(), lane.inherited.lower_bound(floor));
}

// ---- going on -----------------------------------------------------------------------------------

Executor::Executor(Arena& arena, std::vector<Link*> links, const ExecutorOptions& options,
                   std::vector<LaneStart> starts)
    : arena_(arena), links_(std::move(links)), options_(options), tasks_run_(options.tasks_run) {
  HORA_CHECK(starts.size() == options_.layout.lanes, "every lane of the layout starts somewhere");
  for (std::uint16_t number = 0; number < options_.layout.lanes; ++number) {
    lanes_.push_back(std::make_unique<LaneState>(options_.epoch, number, options_.layout.window,
                                                 starts[number].done));
    resume(*lanes_.back(), std::move(starts[number]));
  }
}

void Executor::resume(LaneState& lane, LaneStart start) {
  for (ResumedRun& resumed : start.runs) {
    CollectiveRun& run = *resumed.placed.run;
    const std::uint64_t first = resumed.placed.first;
    HORA_CHECK(first <= lane.end_position && resumed.placed.end() > start.done,
               "resumed runs follow each other from where the lane is done");
    run.started = run.finished = start.done > first ? start.done - first : 0;
    if (run.finished == 0) run.contributed.clear();  // Restarted whole.
    lane.end_position = resumed.placed.end();
    lane.runs.push_back(std::move(resumed));
  }
  HORA_CHECK(lane.end_position <= start.next || start.next == 0, "later runs come behind");
  lane.end_position = std::max(lane.end_position, start.next);
  lane.past.assign(start.past.begin(), start.past.end());
  lane.inherited = std::move(start.results);
  for (Link* link : links_) {
    if (link == nullptr || lane.count == 0) continue;
    link->set_count(lane.number, lane.count);
    link->announce(lane.number);
  }
}

const SegmentResult* Executor::inherited(std::uint16_t lane, std::uint64_t position) const {
  const auto& results = lanes_[lane]->inherited;
  const auto found = results.find(position);
  return found == results.end() ? nullptr : &found->second;
}

Result<void> Executor::accept_copy(std::uint16_t lane, std::uint64_t position,
                                   SegmentResult result) {
  LaneState& to = *lanes_[lane];
  const auto wanted = std::find_if(to.runs.begin(), to.runs.end(), [&](const ResumedRun& run) {
    return position >= run.placed.first && position < run.copied_to;
  });
  if (wanted == to.runs.end() || position < to.count) return {};
  const PlacedRun& placed = wanted->placed;
  const std::uint64_t due = Segment(*placed.run, position - placed.first).result_bytes();
  if (result.bytes.size() != due) {
    return fail(ErrorKind::protocol, "a copy of " + std::to_string(result.bytes.size()) +
                                         " bytes where " + std::to_string(due) + " were due");
  }
  to.copies.emplace(position, std::move(result));
  return {};
}

bool Executor::take_copy(LaneState& lane, Instance& instance) {
  const auto found = lane.copies.find(instance.position);
  if (found == lane.copies.end()) return false;
  instance.copy = std::move(found->second.bytes);
  instance.contributors = std::move(found->second.contributors);
  lane.copies.erase(found);
  instance.open = 0;
  return true;
}

}  // namespace hora
