// The templates with encoded cells: proved symbolically, and mutants of them are not.
#include <numeric>

#include <catch2/catch.hpp>

#include "ops/check.h"
#include "tests/ops/groups.h"

namespace hora::testing {
namespace {

const std::vector<int> kSizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};

/// The rows that take a codec.
std::vector<const AlgorithmRow*> encoded_rows() {
  std::vector<const AlgorithmRow*> rows;
  for (const AlgorithmRow& row : algorithms()) {
    if (row.make_encoded != nullptr) rows.push_back(&row);
  }
  return rows;
}

const AlgorithmRow& allreduce(std::string_view name) {
  return *find_algorithm(name, Collective::allreduce);
}

Task& task_of(Schedule& schedule, Primitive kind, int nth) {
  for (Task& task : schedule.tasks) {
    if (task.kind == kind && nth-- == 0) return task;
  }
  FAIL("there is no such task");
  return schedule.tasks.front();
}

TEST_CASE("encoded: exchange, direct and ring take codecs, and pass the check for all sizes") {
  CHECK(encoded_rows().size() == 3);
  for (const AlgorithmRow* row : encoded_rows()) {
    for (const int size : kSizes) {
      INFO(row->name << ", size " << size);
      CHECK(check_schedules(encoded_group_of(*row, size)).value_or("right") == "right");
    }
  }
}

TEST_CASE("encoded: the same messages as the plain template sends, with the same tags and depth") {
  for (const AlgorithmRow* row : encoded_rows()) {
    for (const int size : kSizes) {
      const std::vector<Schedule> plain = group_of(*row, size, 0);
      const std::vector<Schedule> encoded = encoded_group_of(*row, size);
      for (int rank = 0; rank < size; ++rank) {
        const Schedule& a = plain[static_cast<std::size_t>(rank)];
        const Schedule& b = encoded[static_cast<std::size_t>(rank)];
        CHECK(traffic_of(a).messages == traffic_of(b).messages);
        CHECK(traffic_of(a).segments == traffic_of(b).segments);
        CHECK(std::pair(a.tags, a.depth) == std::pair(b.tags, b.depth));
      }
    }
  }
}

TEST_CASE("encoded: between an input and the result of direct lie two encodings, of exchange one") {
  for (const auto& [name, most] : {std::pair{"exchange", 1}, std::pair{"direct", 1}}) {
    for (const Schedule& s : encoded_group_of(allreduce(name), 5)) {
      int of_received = 0;
      for (const Task& t : s.tasks) {
        if (t.kind != Primitive::merge || !s.buffers[t.at.buffer].encoded) continue;
        of_received += t.operand_count > 1 ? 1 : 0;
      }
      CHECK(of_received == (std::string(name) == "direct" ? most : 0));
    }
  }
}

TEST_CASE("encoded: who gathers encodes nothing that was received") {
  for (const AlgorithmRow* row : encoded_rows()) {
    if (!row->gathers) continue;
    for (const Schedule& s : encoded_group_of(*row, 4)) {
      for (const Task& t : s.tasks) {
        if (t.kind != Primitive::merge || !s.buffers[t.at.buffer].encoded) continue;
        CHECK(t.operand_count == 1);
        CHECK(s.operands[t.first_operand].caller);
      }
    }
  }
}

TEST_CASE("encoded: an owner that keeps its sum as it is, and does not decode its own bytes") {
  // The classic mistake: rank 0 unpacks what it encoded from, so its bits differ from the others'.
  std::vector<Schedule> group = encoded_group_of(allreduce("direct"), 3);
  for (Schedule& schedule : group)
    schedule.buffers.insert(schedule.buffers.begin() + 2, BufferSpec{"own sum", 1, false, false});
  for (Schedule& schedule : group) {
    const auto moved = [](Place& at) { at.buffer = static_cast<std::uint16_t>(at.buffer + 1); };
    for (Task& t : schedule.tasks) {
      if (t.at.buffer >= 2) moved(t.at);
      if (t.remote.buffer >= 2) moved(t.remote);
    }
    for (Operand& o : schedule.operands) {
      if (o.received == kNoTask && o.place.buffer >= 2) moved(o.place);
    }
  }
  REQUIRE_FALSE(check_schedules(group));
  Schedule& mutant = group[0];
  // The finishing merge once more, into the plain buffer; the unpack of chunk 0 reads that.
  Task plain;
  std::size_t at = 0;
  for (std::size_t i = 0; i < mutant.tasks.size(); ++i) {
    if (mutant.tasks[i].kind == Primitive::merge && mutant.tasks[i].finish) {
      plain = mutant.tasks[i];
      at = i;
    }
  }
  plain.at = place(2, 0);
  mutant.tasks.insert(mutant.tasks.begin() + static_cast<std::ptrdiff_t>(at) + 1, plain);
  for (TaskId& dependency : mutant.dependencies) {
    if (dependency > at) ++dependency;
  }
  for (Operand& operand : mutant.operands) {
    if (operand.received != kNoTask && operand.received > at) ++operand.received;
  }
  Task& unpack = task_of(mutant, Primitive::unpack, 0);
  mutant.operands[unpack.first_operand] = local(place(2, 0));
  const auto finding = check_schedules(group);
  REQUIRE(finding);
  CHECK(finding->find("'own sum'") != std::string::npos);
}

TEST_CASE("encoded: a chunk that is never encoded, or twice, has no place for its residual") {
  std::vector<Schedule> group = encoded_group_of(allreduce("direct"), 3);
  Task& merge = task_of(group[1], Primitive::merge, 0);
  const auto original = merge;
  merge.chunk = static_cast<std::int16_t>((merge.chunk + 2) % 3);
  CHECK(check_schedules(group));
  merge = original;
  CHECK_FALSE(check_schedules(group));
  group[1].operands[merge.first_operand].caller = false;
  CHECK(check_schedules(group));
}

TEST_CASE("encoded: payloads do not get into plain cells by a message") {
  std::vector<Schedule> group = encoded_group_of(allreduce("exchange"), 2);
  for (Schedule& schedule : group)
    schedule.buffers[2].encoded = false;
  const auto finding = check_schedules(group);
  REQUIRE(finding);
  CHECK(finding->find("takes encoded cells for plain ones") != std::string::npos);
}

TEST_CASE("encoded: an unpack of the caller's own tensor is no result") {
  std::vector<Schedule> group = encoded_group_of(allreduce("exchange"), 2);
  Task& unpack = task_of(group[0], Primitive::unpack, 0);
  group[0].operands[unpack.first_operand] = from_caller();
  const auto finding = check_schedules(group);
  REQUIRE(finding);
  CHECK(finding->find("which only a merge may") != std::string::npos);
}

TEST_CASE("encoded: contributions are added in the order of the plain template") {
  for (const AlgorithmRow* row : encoded_rows()) {
    for (const int size : {2, 3, 5}) {
      const std::vector<Schedule> plain = group_of(*row, size, 0);
      const std::vector<Schedule> encoded = encoded_group_of(*row, size);
      for (int chunk = 0; chunk < plain[0].grid; ++chunk) {
        CHECK(contribution_order(plain, chunk) == contribution_order(encoded, chunk));
      }
    }
  }
}

}  // namespace
}  // namespace hora::testing
