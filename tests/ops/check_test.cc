// The check must see what is wrong, and say it well. Right schedules are broken in one place each.
//
// First by name, with the sentence that a developer would read; then every row of the registry,
// broken in every single field of every task, and with every dependency dropped: not one may pass.
#include "ops/check.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "ops/algorithms/algorithms.h"
#include "tests/ops/groups.h"

namespace hora {
namespace {

using Catch::Matchers::Contains;
using testing::group_of;
using testing::name_of;
using testing::order_of;

using Group = std::vector<Schedule>;

std::string sentence(const Group& group) {
  return check_schedules(group).value_or("right");
}
std::string sentence(const Group& group, const AlgorithmRow& row) {
  const Topology order = order_of(row, static_cast<int>(group.size()));
  return check_schedules(group, order).value_or("right");
}

Group direct(int size) {
  return group_of("direct", Collective::allreduce, size);
}
Group exchange(int size) {
  return group_of("exchange", Collective::allreduce, size);
}
Group ring(int size) {
  return group_of("ring", Collective::allreduce, size);
}

// The n-th task of a kind, counted from 0.
TaskId nth(const Schedule& schedule, Primitive kind, int n) {
  for (TaskId id = 0; id < schedule.tasks.size(); ++id) {
    if (schedule.tasks[id].kind == kind && n-- == 0) return id;
  }
  return kNoTask;
}
Task& task(Schedule& schedule, Primitive kind, int n = 0) {
  return schedule.tasks.at(nth(schedule, kind, n));
}
Operand& operand(Schedule& schedule, const Task& t, int n) {
  return schedule.operands.at(t.first_operand + static_cast<std::uint32_t>(n));
}

void drop_dependency(Schedule& schedule, TaskId id, std::uint32_t n) {
  Task& t = schedule.tasks.at(id);
  std::swap(schedule.dependencies.at(t.first_dependency + n),
            schedule.dependencies.at(t.first_dependency + t.dependency_count - 1));
  --t.dependency_count;
}

// Drops the dependency of a task on another.
void drop_dependency_on(Schedule& schedule, TaskId id, TaskId earlier) {
  for (std::uint32_t n = 0; n < schedule.tasks.at(id).dependency_count; ++n) {
    if (schedule.dependencies.at(schedule.tasks[id].first_dependency + n) == earlier) {
      return drop_dependency(schedule, id, n);
    }
  }
  FAIL("there is no such dependency");
}

// ---- Mutants with names -------------------------------------------------------------------------

TEST_CASE("check: a merge that does not wait for a recv") {
  Group group = direct(3);
  const TaskId merge = nth(group[1], Primitive::merge, 0);
  drop_dependency_on(group[1], merge, nth(group[1], Primitive::recv, 0));
  CHECK(sentence(group) ==
        "rank 1, task 5 (merge of chunk 1) does not wait for what it reads, "
        "rank 1, task 3 (recv of chunk 1 from rank 0, tag 0)");
}

TEST_CASE("check: a send before the merge that it sends") {
  Group group = direct(3);
  const TaskId send = nth(group[0], Primitive::send, 2);
  drop_dependency_on(group[0], send, nth(group[0], Primitive::merge, 0));
  CHECK(
      sentence(group) ==
      "rank 0, task 6 (send of chunk 0 to rank 1, tag 1) reads cell 0 of 'result' without waiting "
      "for rank 0, task 5 (merge of chunk 0)");
}

TEST_CASE("check: an unpack that overwrites the caller's tensor too early") {
  Group group = exchange(3);
  const TaskId unpack = nth(group[2], Primitive::unpack, 0);
  drop_dependency_on(group[2], unpack, nth(group[2], Primitive::send, 1));
  CHECK(sentence(group) ==
        "rank 2, task 6 (unpack of the segment) overwrites the caller's tensor without waiting for "
        "rank 2, task 2 (send of the segment to rank 1, tag 0)");
}

TEST_CASE("check: swapped operands") {
  Group group = exchange(3);
  for (Schedule& s : group) {
    const Task& merge = task(s, Primitive::merge);
    std::swap(operand(s, merge, 0), operand(s, merge, 1));
  }
  CHECK(sentence(group) ==
        "rank 2, task 5 (merge of the segment) adds the ranks in the order 1 0 2");
}

TEST_CASE("check: one chunk of a ring in rank order, the others in order of the ring") {
  Group group = ring(3);
  const Task& merge = task(group[0], Primitive::merge, 1);
  std::swap(operand(group[0], merge, 0), operand(group[0], merge, 1));
  CHECK(sentence(group) ==
        "chunk 0 is added from rank 0 on, chunk 1 from rank 2 on: chunks follow different rules");
}

TEST_CASE("check: a contribution added twice, or not at all") {
  Group twice = direct(3);
  const Task& merge = task(twice[0], Primitive::merge);
  operand(twice[0], merge, 2) = operand(twice[0], merge, 1);
  CHECK(sentence(twice) ==
        "rank 0, task 5 (merge of chunk 0) adds the contribution of rank 1 twice");

  Group missing = direct(3);
  task(missing[2], Primitive::merge).operand_count = 2;
  CHECK(sentence(missing) ==
        "rank 2, task 5 (merge of chunk 2) finishes without the contribution of rank 2");
}

TEST_CASE("check: a sum that is never finished") {
  Group group = direct(3);
  task(group[1], Primitive::merge).finish = false;
  CHECK(sentence(group) == "rank 0: its result of chunk 1 is not finished");
}

TEST_CASE("check: a message to the wrong rank") {
  Group group = direct(3);
  task(group[0], Primitive::send, 0).peer = 2;
  CHECK(sentence(group) ==
        "rank 0, task 2 (send of chunk 2 to rank 2, tag 0) has the tag of another message to the "
        "same rank");
}

TEST_CASE("check: a recv from the wrong rank, and a message that nobody takes") {
  Group group = ring(3);
  task(group[0], Primitive::recv, 0).peer = 1;
  CHECK(
      sentence(group) ==
      "rank 0, task 2 (recv of chunk 1 from rank 1, tag 0) waits for a message that nobody sends, "
      "or that another task took");

  Group unread = group_of("flat", Collective::broadcast, 2);
  Task& extra = unread[0].tasks.emplace_back(task(unread[0], Primitive::send));
  extra.tag = 1;
  for (Schedule& s : unread)
    s.tags = 2;
  CHECK_THAT(sentence(unread), Contains("is a message that nobody receives"));
}

TEST_CASE("check: a payload that lands elsewhere than it is looked for") {
  Group group = direct(3);
  task(group[0], Primitive::send, 0).remote.cell = 1;
  CHECK(sentence(group) ==
        "rank 1, task 3 (recv of chunk 1 from rank 0, tag 0) looks for its payload in cell 0 of "
        "'arrived', but rank 0, task 1 (send of chunk 1 to rank 1, tag 0) lands it in cell 1 of "
        "'arrived'");
}

TEST_CASE("check: two messages that land in one cell") {
  Group group = direct(3);
  task(group[0], Primitive::send, 0).remote.cell = 1;
  task(group[1], Primitive::recv, 0).at.cell = 1;
  CHECK(sentence(group) ==
        "rank 1, task 4 (recv of chunk 1 from rank 2, tag 0) writes cell 1 of 'arrived', which has "
        "the bytes of rank 1, task 3 (recv of chunk 1 from rank 0, tag 0)");
}

TEST_CASE("check: a merge onto a packed input") {
  Group group = ring(3);
  Task& merge = task(group[1], Primitive::merge, 0);
  merge.at = operand(group[1], merge, 1).place;
  CHECK_THAT(sentence(group), Contains("(merge of chunk 2) writes cell 2 of 'input', which has the "
                                       "bytes of rank 1, task 0 (pack of the segment)"));
}

TEST_CASE("check: a merge into a cell where a message may land early") {
  Group group = ring(4);
  Task& merge = task(group[0], Primitive::merge, 0);
  const Place landing = task(group[0], Primitive::recv, 5).at;  // Not copied.
  merge.at = landing;
  CHECK_THAT(sentence(group), Contains("where a message may land at any time"));
}

TEST_CASE("check: a copy elsewhere than the landing place of its message leaves that place alone") {
  Group group = ring(4);
  const TaskId first = nth(group[0], Primitive::copy, 0);
  const TaskId second = nth(group[0], Primitive::copy, 1);
  std::swap(group[0].tasks[first].at, group[0].tasks[second].at);
  CHECK_THAT(sentence(group), Contains("where a message may land at any time"));
}

TEST_CASE("check: landing buffers are neither read nor written by their owner") {
  Group reads = exchange(2);
  operand(reads[0], task(reads[0], Primitive::merge), 1) = local(place(2, 0));
  CHECK(
      sentence(reads) ==
      "rank 0, task 3 (merge of the segment) reads the landing buffer 'arrived', which is not laid "
      "out when all share memory");

  Group writes = exchange(2);
  task(writes[0], Primitive::merge).at = place(2, 0);
  CHECK(
      sentence(writes) ==
      "rank 0, task 3 (merge of the segment) uses the landing buffer 'arrived', which is not laid "
      "out when all share memory");

  Group order = exchange(2);
  for (Schedule& s : order)
    s.buffers[0].landing = true;
  CHECK(sentence(order) == "a landing buffer lies before one that is always laid out");
}

TEST_CASE("check: a place outside the slot") {
  Group group = direct(3);
  task(group[2], Primitive::merge).at.cell = 1;
  CHECK(sentence(group) == "rank 2, task 5 (merge of chunk 2) lies outside the slot");

  Group remote = direct(3);
  task(remote[2], Primitive::send).remote.buffer = 9;
  CHECK_THAT(sentence(remote), Contains("lands outside the slot of its peer"));
}

TEST_CASE("check: a cell that nobody writes") {
  Group group = ring(3);
  Task& pack = task(group[0], Primitive::pack);
  pack.chunk = 0;
  CHECK(
      sentence(group) ==
      "rank 0, task 1 (send of chunk 2 to rank 1, tag 0) reads cell 2 of 'input', which no task of "
      "its rank writes");
}

TEST_CASE("check: one chunk taken for another") {
  Group group = direct(3);
  Task& send = task(group[0], Primitive::send, 0);
  send.at.cell = 2;
  CHECK(sentence(group) ==
        "rank 0, task 1 (send of chunk 1 to rank 1, tag 0) reads chunk 2 for chunk 1");

  Group outside = direct(3);
  task(outside[0], Primitive::unpack, 1).chunk = 3;
  CHECK_THAT(sentence(outside), Contains("(unpack of chunk 3) is outside the grid of 3"));
}

TEST_CASE("check: ranks that wait for each other in a circle") {
  // Both ranks take the other's input before they send their own.
  Group group;
  for (int me = 0; me < 2; ++me) {
    ScheduleBuilder builder("polite", Shape::reduce, 2, me, 1);
    const Place input = place(builder.buffer("input", 1), 0);
    const Place result = place(builder.buffer("result", 1), 0);
    const Place arrived = place(builder.buffer("arrived", 1, true), 0);
    builder.pack(input);
    const TaskId recv = builder.recv(1 - me, 0, kWhole, arrived);
    builder.after(builder.send(1 - me, 0, kWhole, input, arrived), recv);
    const Operand theirs = received(recv);
    const Operand ours = local(input);
    builder.merge(me == 0 ? std::vector{ours, theirs} : std::vector{theirs, ours}, kWhole, result,
                  true);
    builder.unpack(local(result), kWhole);
    group.push_back(builder.finish(1));
  }
  CHECK(
      sentence(group) ==
      "rank 0, task 1 (recv of the segment from rank 1, tag 0) waits for ever: ranks wait for each "
      "other in a circle before rank 1, task 2 (send of the segment to rank 0, tag 0)");
}

// An exchange of three whose last rank may add in two steps.
Group exchange_with_steps(bool finish_twice) {
  Group group;
  for (int me = 0; me < 3; ++me) {
    ScheduleBuilder builder("steps", Shape::reduce, 3, me, 1);
    const Place input = place(builder.buffer("input", 1), 0);
    const Place result = place(builder.buffer("result", 1), 0);
    const Place spare = place(builder.buffer("spare", 1), 0);
    const std::uint16_t arrived = builder.buffer("arrived", 3, true);
    builder.pack(input);
    std::vector<Operand> all;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != me) builder.send(peer, 0, kWhole, input, place(arrived, me));
      all.push_back(peer == me ? local(input)
                               : received(builder.recv(peer, 0, kWhole, place(arrived, peer))));
    }
    if (me < 2) {
      builder.merge(all, kWhole, result, true);
    } else if (finish_twice) {
      builder.merge(all, kWhole, spare, true);
      builder.merge({local(spare)}, kWhole, result, true);
    } else {
      builder.merge({all[0], all[1]}, kWhole, spare, false);
      builder.merge({local(spare), all[2]}, kWhole, result, true);
    }
    builder.unpack(local(result), kWhole);
    group.push_back(builder.finish(1));
  }
  return group;
}

TEST_CASE("check: the same sum by other merges, which may round otherwise") {
  CHECK(sentence(exchange_with_steps(false)) ==
        "rank 2: its result of chunk 0 is merged in another way than rank 0's");
}

TEST_CASE("check: a result that is finished twice") {
  CHECK_THAT(sentence(exchange_with_steps(true)),
             Contains("(merge of the segment) merges what is finished already"));
}

TEST_CASE("check: a chunk that is unpacked twice, and one that never is") {
  Group never = direct(3);
  Schedule& s = never[1];
  s.tasks.pop_back();
  CHECK(sentence(never) == "rank 1: its result of chunk 2 is never unpacked");

  Group twice = direct(3);
  twice[1].tasks.push_back(twice[1].tasks.back());
  CHECK_THAT(sentence(twice), Contains("unpacks chunk 2 a second time"));
}

TEST_CASE("check: a broadcast of the wrong rank, a gather that adds") {
  Group wrong_root = group_of("flat", Collective::broadcast, 3);
  for (Schedule& s : wrong_root)
    s.root = 1;
  CHECK(sentence(wrong_root) == "rank 0: its result of chunk 0 comes from rank 0, not from rank 1");

  Group adding = group_of("ring", Collective::allgather, 3);
  task(adding[0], Primitive::copy).kind = Primitive::merge;
  CHECK_THAT(sentence(adding), Contains("where a message may land"));

  Group adding_apart = group_of("direct", Collective::reducescatter, 3);
  for (Schedule& s : adding_apart)
    s.shape = Shape::gather;
  CHECK_THAT(sentence(adding_apart), Contains("is a merge, in a collective that adds nothing"));
}

TEST_CASE("check: a private result at another rank, a block of another sender") {
  Group shared = group_of("direct", Collective::allgather, 3);
  for (Schedule& s : shared)
    s.shape = Shape::scatter;
  CHECK(sentence(shared) == "rank 0: its result of chunk 0 is not finished");

  Group public_result = group_of("direct", Collective::reducescatter, 2);
  // Rank 1 also unpacks what it has of chunk 0: its own contribution.
  Schedule& s = public_result[1];
  s.tasks.push_back(s.tasks.back());
  s.tasks.back().chunk = 0;
  s.tasks.back().first_operand = static_cast<std::uint32_t>(s.operands.size());
  s.operands.push_back(local(place(0, 0)));
  CHECK(sentence(public_result) == "rank 1: its result of chunk 0 belongs to rank 0");

  Group rows = group_of("direct", Collective::alltoall, 2);
  for (Schedule& wrong : rows) {  // Rank 0 claims to have what rank 1 has, and the other way.
    for (Task& t : wrong.tasks) {
      if (t.chunk != kWhole) t.chunk = t.chunk / 2 == 0 ? t.chunk + 2 : t.chunk - 2;
    }
  }
  CHECK(sentence(rows) == "rank 0: its result of chunk 0 comes from rank 1, not from rank 0");
}

TEST_CASE("check: chunks of unequal length taken as one, a grid that does not fit its shape") {
  Group whole = group_of("direct", Collective::reducescatter, 3);
  task(whole[1], Primitive::pack).chunk = kWhole;
  CHECK(sentence(whole) ==
        "rank 1, task 0 (pack of the segment) takes all chunks at once, but each has a length of "
        "its own");

  Group grid = group_of("direct", Collective::alltoall, 3);
  for (Schedule& s : grid)
    s.grid = 3;
  CHECK(sentence(grid) == "the grid has 3 chunks for 3 ranks");
}

TEST_CASE("check: a wrong depth, a tag that is too high, a dependency that points forward") {
  Group depth = ring(3);
  for (Schedule& s : depth)
    s.depth = 3;
  CHECK(sentence(depth) == "the depth is given as 3, but the longest chain has 4 messages");

  Group tags = direct(3);
  for (Schedule& s : tags)
    s.tags = 1;
  CHECK_THAT(sentence(tags), Contains("has a tag that is not below 1"));

  Group forward = direct(3);
  const TaskId merge = nth(forward[0], Primitive::merge, 0);
  forward[0].dependencies.at(forward[0].tasks[merge].first_dependency) = merge;
  CHECK(sentence(forward) ==
        "rank 0, task 5 (merge of chunk 0) waits for task 5, which does not come before it");
}

TEST_CASE("check: ranks that disagree about the plan") {
  CHECK(sentence({}) == "there are no schedules");

  Group other = direct(3);
  other[2] = make_exchange(3, 2);
  CHECK(sentence(other) ==
        "rank 2: algorithm, shape, root, grid, depth or tags differ from rank 0's");

  Group layout = direct(3);
  layout[1].buffers[1].cells = 2;
  CHECK(sentence(layout) == "rank 1: its slot is not laid out as rank 0's");

  Group place_taken = direct(3);
  place_taken[1] = make_direct(3, 2);
  CHECK(sentence(place_taken) == "rank 1 of 3: its schedule is for rank 2 of 3");
}

TEST_CASE("check: the order of contributions is that of right schedules only") {
  Group group = direct(3);
  CHECK(contribution_order(group, 1) == std::vector<int>{0, 1, 2});
  task(group[1], Primitive::merge).finish = false;
  CHECK(contribution_order(group, 1).empty());
}

// ---- All mutants --------------------------------------------------------------------------------

using Mutation = std::function<bool(Schedule&, TaskId)>;  // False: does not apply to this task.

bool is_message(const Task& t) {
  return t.kind == Primitive::send || t.kind == Primitive::recv;
}
bool has_place(const Task& t) {
  return t.kind != Primitive::unpack;
}

// Every way to break a single field of a task.
std::vector<std::pair<std::string, Mutation>> mutations() {
  const auto change = [](auto applies, auto edit) {
    return [=](Schedule& s, TaskId id) {
      if (!applies(s.tasks[id])) return false;
      edit(s, s.tasks[id]);
      return true;
    };
  };
  const auto is_merge = [](const Task& t) { return t.kind == Primitive::merge; };
  const auto has_operands = [](const Task& t) { return t.operand_count > 0; };
  const auto is_send = [](const Task& t) { return t.kind == Primitive::send; };
  return {{"finish", change(is_merge, [](Schedule&, Task& t) { t.finish = !t.finish; })},
          {"tag", change(is_message, [](Schedule&, Task& t) { ++t.tag; })},
          {"cell", change(has_place, [](Schedule&, Task& t) { ++t.at.cell; })},
          {"buffer", change(has_place, [](Schedule&, Task& t) { ++t.at.buffer; })},
          {"remote cell", change(is_send, [](Schedule&, Task& t) { ++t.remote.cell; })},
          {"remote buffer", change(is_send, [](Schedule&, Task& t) { ++t.remote.buffer; })},
          {"peer", change(is_message,
                          [](Schedule& s, Task& t) {
                            do {
                              t.peer = static_cast<std::int16_t>((t.peer + 1) % s.size);
                            } while (t.peer == s.me);
                          })},
          {"chunk",
           [](Schedule& s, TaskId id) {
             if (s.grid == 1) return false;  // Chunk 0 of 1 is the whole segment.
             s.tasks[id].chunk = (s.tasks[id].chunk + 1) % s.grid;
             return true;
           }},
          {"operand", change(has_operands,
                             [](Schedule& s, Task& t) {
                               Operand& first = s.operands[t.first_operand];
                               first.received == kNoTask ? ++first.place.cell : ++first.received;
                             })},
          {"last operand", change(is_merge, [](Schedule&, Task& t) { --t.operand_count; })},
          {"operand order",
           [](Schedule& s, TaskId id) {
             const Task& t = s.tasks[id];
             if (t.operand_count < 2) return false;
             std::swap(s.operands[t.first_operand], s.operands[t.first_operand + 1]);
             return true;
           }},
          {"kind", [](Schedule& s, TaskId id) {
             static constexpr Primitive kNext[] = {Primitive::recv, Primitive::recv,
                                                   Primitive::send, Primitive::merge,
                                                   Primitive::copy, Primitive::pack};
             Task& t = s.tasks[id];
             t.kind = kNext[static_cast<int>(t.kind)];
             return true;
           }}};
}

TEST_CASE("check: no row passes with any single field of any task changed") {
  int mutants = 0;
  for (const AlgorithmRow& row : algorithms()) {
    for (const int size : {4, 5}) {
      const Group right = group_of(row, size, row.collective == Collective::broadcast ? 1 : 0);
      for (int rank = 0; rank < size; ++rank) {
        for (TaskId id = 0; id < right[rank].tasks.size(); ++id) {
          for (const auto& [field, mutate] : mutations()) {
            Group group = right;
            if (!mutate(group[rank], id)) continue;
            ++mutants;
            INFO(name_of(row) << ", size " << size << ", rank " << rank << ", task " << id << " ("
                              << to_string(right[rank].tasks[id].kind) << "): " << field);
            CHECK(sentence(group, row) != "right");
          }
        }
      }
    }
  }
  CHECK(mutants > 5000);
}

// True if `id` waits for `earlier`, directly or not.
bool waits(const Schedule& s, TaskId id, TaskId earlier) {
  const Task& t = s.tasks[id];
  for (std::uint32_t n = 0; n < t.dependency_count; ++n) {
    const TaskId dependency = s.dependencies[t.first_dependency + n];
    if (dependency == earlier || waits(s, dependency, earlier)) return true;
  }
  return false;
}

TEST_CASE("check: no row passes without any dependency that no other implies") {
  int mutants = 0;
  for (const AlgorithmRow& row : algorithms()) {
    for (const int size : {4, 5}) {
      const Group right = group_of(row, size, row.collective == Collective::broadcast ? 1 : 0);
      for (int rank = 0; rank < size; ++rank) {
        for (TaskId id = 0; id < right[rank].tasks.size(); ++id) {
          const Task& t = right[rank].tasks[id];
          // The ring looks for one message at a time because that is cheap, not because it must.
          if (t.kind == Primitive::recv) continue;
          for (std::uint32_t n = 0; n < t.dependency_count; ++n) {
            Group group = right;
            drop_dependency(group[rank], id, n);
            if (waits(group[rank], id, right[rank].dependencies[t.first_dependency + n])) continue;
            ++mutants;
            INFO(name_of(row) << ", size " << size << ", rank " << rank << ", task " << id << " ("
                              << to_string(t.kind) << "), dependency " << n);
            CHECK(sentence(group, row) != "right");
          }
        }
      }
    }
  }
  CHECK(mutants > 500);
}

}  // namespace
}  // namespace hora
