// ScheduleBuilder: from the words of an algorithm to tasks with dependencies.
//
// An algorithm says what it reads and where it writes; what must wait for what follows from that,
// so an algorithm cannot forget it. Three sources of dependencies:
//
//   data      a merge, copy or unpack waits for the recvs and for the writers of the cells that it
//             reads, a send for the writers of the cells that it sends
//   after()   orders that no data shows: the ring takes one message of its neighbour at a time
//   unpack    the first unpack waits for every other task, and the other unpacks for the first.
//             (For every task that no other waits for, which is enough: the rest lie behind those.)
//
// A recv writes no cell here: over shared memory nothing moves, so whoever wants the payload in its
// own slot says copy. Tasks are added in an order that respects dependencies, hence cycles cannot
// be written down.
//
// The builder aborts on what only a wrong generator can ask for. What cannot be seen from one rank
// is proved by check.h.
#include "ops/schedule.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace hora {

std::string_view to_string(Primitive primitive) {
  switch (primitive) {
    case Primitive::pack:
      return "pack";
    case Primitive::send:
      return "send";
    case Primitive::recv:
      return "recv";
    case Primitive::copy:
      return "copy";
    case Primitive::merge:
      return "merge";
    case Primitive::unpack:
      return "unpack";
  }
  return "?";
}

std::size_t Schedule::cells(bool views_only) const {
  std::size_t sum = 0;
  for (const BufferSpec& buffer : buffers) {
    if (!(views_only && buffer.landing)) sum += buffer.cells;
  }
  return sum;
}

Schedule make_bystander() {
  Schedule schedule;
  schedule.algorithm = "bystander";
  return schedule;
}

int Schedule::owner_of(int chunk) const {
  if (shape == Shape::scatter) return chunk;
  if (shape == Shape::transpose) return chunk % size;
  return -1;
}

Traffic traffic_of(const Schedule& schedule) {
  Traffic traffic;
  std::size_t chunks = 0;
  for (const Task& task : schedule.tasks) {
    if (task.kind != Primitive::send) continue;
    ++traffic.messages;
    chunks += task.chunk == kWhole ? static_cast<std::size_t>(schedule.grid) : 1;
  }
  traffic.segments = static_cast<double>(chunks) / schedule.grid;
  return traffic;
}

ScheduleBuilder::ScheduleBuilder(std::string_view algorithm, Shape shape, int size, int me,
                                 int grid) {
  HORA_CHECK(size >= 1 && me >= 0 && me < size && grid >= 1,
             "a schedule is for one rank of a group");
  schedule_.algorithm = algorithm;
  schedule_.shape = shape;
  schedule_.size = size;
  schedule_.me = me;
  schedule_.grid = grid;
}

std::uint16_t ScheduleBuilder::buffer(std::string_view name, int cells, bool landing) {
  HORA_CHECK(landing || schedule_.buffers.empty() || !schedule_.buffers.back().landing,
             "landing buffers come last, so that they can be left out");
  schedule_.buffers.push_back({std::string(name), static_cast<std::uint16_t>(cells), landing});
  writers_.emplace_back(static_cast<std::size_t>(cells), kNoTask);
  return static_cast<std::uint16_t>(schedule_.buffers.size() - 1);
}

std::uint16_t ScheduleBuilder::encoded_buffer(std::string_view name, int cells, bool landing) {
  const std::uint16_t number = buffer(name, cells, landing);
  schedule_.buffers.back().encoded = true;
  return number;
}

TaskId ScheduleBuilder::pack(Place at, int chunk) {
  Task task;
  task.kind = Primitive::pack;
  task.chunk = chunk;
  task.at = at;
  return add(task, {});
}

TaskId ScheduleBuilder::send(int peer, int tag, int chunk, Place from, Place remote) {
  Task task;
  task.kind = Primitive::send;
  task.chunk = chunk;
  task.peer = static_cast<std::int16_t>(peer);
  task.tag = static_cast<std::uint16_t>(tag);
  task.at = from;
  task.remote = remote;
  schedule_.tags = std::max(schedule_.tags, tag + 1);
  return add(task, {});
}

TaskId ScheduleBuilder::recv(int peer, int tag, int chunk, Place landing) {
  Task task;
  task.kind = Primitive::recv;
  task.chunk = chunk;
  task.peer = static_cast<std::int16_t>(peer);
  task.tag = static_cast<std::uint16_t>(tag);
  task.at = landing;
  schedule_.tags = std::max(schedule_.tags, tag + 1);
  return add(task, {});
}

TaskId ScheduleBuilder::copy(Operand from, int chunk, Place at) {
  Task task;
  task.kind = Primitive::copy;
  task.chunk = chunk;
  task.at = at;
  return add(task, {from});
}

TaskId ScheduleBuilder::merge(const std::vector<Operand>& operands, int chunk, Place at,
                              bool finish) {
  Task task;
  task.kind = Primitive::merge;
  task.finish = finish;
  task.chunk = chunk;
  task.at = at;
  return add(task, operands);
}

TaskId ScheduleBuilder::unpack(Operand from, int chunk) {
  Task task;
  task.kind = Primitive::unpack;
  task.chunk = chunk;
  return add(task, {from});
}

void ScheduleBuilder::after(TaskId task, TaskId dependency) {
  HORA_CHECK(dependency < task && task < schedule_.tasks.size(),
             "tasks wait for earlier tasks only");
  dependencies_[task].push_back(dependency);
}

void ScheduleBuilder::reserve_tags(int tags) {
  schedule_.tags = std::max(schedule_.tags, tags);
}

TaskId ScheduleBuilder::add(Task task, const std::vector<Operand>& operands) {
  const std::size_t id = schedule_.tasks.size();
  HORA_CHECK(id < kNoTask, "a schedule has at most 65,535 tasks");
  HORA_CHECK(task.kind == Primitive::unpack || schedule_.tasks.empty() ||
                 schedule_.tasks.back().kind != Primitive::unpack,
             "unpacks come last");

  std::vector<TaskId> waits_for;
  if (task.kind == Primitive::send) depend_on_writers(waits_for, task.at, task.chunk);
  for (const Operand& operand : operands) {
    if (operand.caller) {
      HORA_CHECK(task.kind == Primitive::merge, "only a merge reads the caller's tensors");
    } else if (operand.received == kNoTask) {
      depend_on_writers(waits_for, operand.place, task.chunk);
    } else {
      HORA_CHECK(operand.received < id && schedule_.tasks[operand.received].kind == Primitive::recv,
                 "a received operand names an earlier recv");
      waits_for.push_back(operand.received);
    }
  }
  if (task.kind == Primitive::pack || task.kind == Primitive::copy ||
      task.kind == Primitive::merge) {
    std::vector<TaskId>& cells = writers_.at(task.at.buffer);
    const int span = task.chunk == kWhole ? schedule_.grid : 1;
    for (int i = 0; i < span; ++i) {
      cells.at(task.at.cell + static_cast<std::size_t>(i)) = static_cast<TaskId>(id);
    }
  }
  task.first_operand = static_cast<std::uint32_t>(schedule_.operands.size());
  task.operand_count = static_cast<std::uint32_t>(operands.size());
  schedule_.operands.insert(schedule_.operands.end(), operands.begin(), operands.end());
  schedule_.tasks.push_back(task);
  dependencies_.push_back(std::move(waits_for));
  return static_cast<TaskId>(id);
}

void ScheduleBuilder::depend_on_writers(std::vector<TaskId>& out, Place from, int chunk) const {
  const std::vector<TaskId>& cells = writers_.at(from.buffer);
  const int span = chunk == kWhole ? schedule_.grid : 1;
  for (int i = 0; i < span; ++i) {
    const TaskId writer = cells.at(from.cell + static_cast<std::size_t>(i));
    HORA_CHECK(writer != kNoTask, "a task reads a cell that no earlier task of this rank writes");
    out.push_back(writer);
  }
}

void ScheduleBuilder::make_unpacks_last() {
  const std::vector<Task>& tasks = schedule_.tasks;
  const auto is_unpack = [](const Task& task) { return task.kind == Primitive::unpack; };
  const auto first =
      static_cast<std::size_t>(std::find_if(tasks.begin(), tasks.end(), is_unpack) - tasks.begin());
  HORA_CHECK(first < tasks.size(), "a schedule ends with an unpack");

  std::vector<bool> awaited(first, false);
  for (std::size_t id = 0; id < first; ++id) {
    for (const TaskId dependency : dependencies_[id])
      awaited[dependency] = true;
  }
  for (std::size_t id = 0; id < first; ++id) {
    if (!awaited[id]) dependencies_[first].push_back(static_cast<TaskId>(id));
  }
  for (std::size_t id = first + 1; id < tasks.size(); ++id) {
    dependencies_[id].push_back(static_cast<TaskId>(first));
  }
}

Schedule ScheduleBuilder::finish(int depth, int root) {
  schedule_.depth = depth;
  schedule_.root = root;
  make_unpacks_last();
  for (std::size_t id = 0; id < schedule_.tasks.size(); ++id) {
    std::vector<TaskId>& waits_for = dependencies_[id];
    std::sort(waits_for.begin(), waits_for.end());
    waits_for.erase(std::unique(waits_for.begin(), waits_for.end()), waits_for.end());
    Task& task = schedule_.tasks[id];
    task.first_dependency = static_cast<std::uint32_t>(schedule_.dependencies.size());
    task.dependency_count = static_cast<std::uint32_t>(waits_for.size());
    schedule_.dependencies.insert(schedule_.dependencies.end(), waits_for.begin(), waits_for.end());
  }
  return std::move(schedule_);
}

}  // namespace hora
