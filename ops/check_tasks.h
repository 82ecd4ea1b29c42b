// The two halves of the symbolic check share this: the schedules of a group, and
// names for sentences.
//
// Internal to ops/check.cc and ops/check_tasks.cc.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ops/schedule.h"

namespace hora {

/// What is wrong, in one sentence; nothing: all is well.
using Finding = std::optional<std::string>;

/// The schedules of ranks 0..size-1, by rank. Outlived by them.
class ScheduleGroup {
 public:
  explicit ScheduleGroup(const std::vector<Schedule>& by_rank) : by_rank_(by_rank) {}

  [[nodiscard]] int size() const { return static_cast<int>(by_rank_.size()); }
  [[nodiscard]] const Schedule& of(int rank) const {
    return by_rank_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] TaskId tasks(int rank) const { return static_cast<TaskId>(of(rank).tasks.size()); }
  [[nodiscard]] const Task& task(int rank, TaskId id) const { return of(rank).tasks[id]; }
  /// Chunks, hence cells, that a task covers.
  [[nodiscard]] int span(const Task& task) const { return task.chunk == kWhole ? of(0).grid : 1; }
  /// Number of cell `i` of what a task covers at `at`, among all cells of a slot.
  [[nodiscard]] std::size_t cell(Place at, int i) const {
    std::size_t before = 0;
    for (std::size_t b = 0; b < at.buffer; ++b)
      before += of(0).buffers[b].cells;
    return before + at.cell + static_cast<std::size_t>(i);
  }
  template <class Visit>
  void for_operands(int rank, TaskId id, Visit visit) const {
    const Task& t = task(rank, id);
    for (std::uint32_t i = 0; i < t.operand_count; ++i) {
      visit(of(rank).operands[t.first_operand + i]);
    }
  }

  /// "rank 1, task 4 (recv of chunk 2 from rank 0, tag 1)"
  [[nodiscard]] std::string name(int rank, TaskId id) const;
  /// "cell 2 of 'input'"
  [[nodiscard]] std::string name(Place at, int i) const;

 private:
  const std::vector<Schedule>& by_rank_;
};

/// The first half: the rules on the tasks alone (check_tasks.cc).
Finding check_tasks(const ScheduleGroup& group);

/// True for the tasks that write a cell of their own slot: pack, copy and merge.
inline bool writes_cell(const Task& task) {
  return task.kind == Primitive::pack || task.kind == Primitive::copy ||
         task.kind == Primitive::merge;
}

}  // namespace hora
