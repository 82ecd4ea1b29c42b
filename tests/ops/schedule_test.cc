// What the builder makes of the words of an algorithm.
//
// Above all the dependencies, which an algorithm never states: those on data, those of after(), and
// those that make every unpack last.
#include "ops/schedule.h"

#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace hora {
namespace {

std::vector<TaskId> dependencies_of(const Schedule& schedule, TaskId id) {
  const Task& task = schedule.tasks.at(id);
  const auto first = schedule.dependencies.begin() + task.first_dependency;
  return {first, first + task.dependency_count};
}

// All tasks that `id` waits for, directly or not.
std::set<TaskId> everything_before(const Schedule& schedule, TaskId id) {
  std::set<TaskId> before;
  for (const TaskId earlier : dependencies_of(schedule, id)) {
    before.insert(earlier);
    before.merge(everything_before(schedule, earlier));
  }
  return before;
}

TEST_CASE("schedule: a task waits for the writers of the cells and the recvs that it reads") {
  ScheduleBuilder builder("example", Shape::reduce, 2, 0, 2);
  const std::uint16_t input = builder.buffer("input", 2);
  const std::uint16_t result = builder.buffer("result", 1);
  const std::uint16_t arrived = builder.buffer("arrived", 1, true);
  const TaskId left = builder.pack(place(input, 0), 0);
  const TaskId right = builder.pack(place(input, 1), 1);
  const TaskId send = builder.send(1, 0, 1, place(input, 1), place(arrived, 0));
  const TaskId recv = builder.recv(1, 0, 0, place(arrived, 0));
  const TaskId merge =
      builder.merge({local(place(input, 0)), received(recv)}, 0, place(result, 0), true);
  builder.unpack(local(place(result, 0)), 0);
  const Schedule schedule = builder.finish(1);

  CHECK(dependencies_of(schedule, left).empty());
  CHECK(dependencies_of(schedule, send) == std::vector<TaskId>{right});
  CHECK(dependencies_of(schedule, recv).empty());
  CHECK(dependencies_of(schedule, merge) == std::vector<TaskId>{left, recv});
}

TEST_CASE(
    "schedule: a task of the whole segment waits for the writers of all its cells, once each") {
  ScheduleBuilder builder("example", Shape::copy, 2, 0, 3);
  const std::uint16_t data = builder.buffer("data", 3);
  const TaskId first = builder.pack(place(data, 0), 0);
  const TaskId second = builder.pack(place(data, 1), 1);
  const TaskId third = builder.pack(place(data, 2), 2);
  const TaskId send = builder.send(1, 0, kWhole, place(data, 0), place(data, 0));
  builder.after(send, first);
  builder.unpack(local(place(data, 0)), kWhole);
  const Schedule schedule = builder.finish(1);

  CHECK(dependencies_of(schedule, send) == std::vector<TaskId>{first, second, third});
}

TEST_CASE("schedule: after() orders tasks that share no data") {
  ScheduleBuilder builder("example", Shape::copy, 2, 1, 1);
  const Place data = place(builder.buffer("data", 1), 0);
  const Place spare = place(builder.buffer("spare", 1), 0);
  const TaskId first = builder.recv(0, 0, kWhole, data);
  const TaskId second = builder.recv(0, 1, kWhole, spare);
  builder.after(second, first);
  builder.unpack(received(second), kWhole);
  const Schedule schedule = builder.finish(1);

  CHECK(dependencies_of(schedule, second) == std::vector<TaskId>{first});
}

TEST_CASE("schedule: every unpack waits for every task that is no unpack") {
  ScheduleBuilder builder("example", Shape::reduce, 3, 0, 2);
  const std::uint16_t input = builder.buffer("input", 2);
  const std::uint16_t arrived = builder.buffer("arrived", 2, true);
  builder.pack(place(input, 0));
  builder.send(1, 0, 0, place(input, 0), place(arrived, 0));
  builder.send(2, 0, 1, place(input, 1), place(arrived, 0));
  const TaskId one = builder.recv(1, 0, 0, place(arrived, 0));
  const TaskId two = builder.recv(2, 0, 1, place(arrived, 1));
  const TaskId unpacks[] = {builder.unpack(received(one), 0), builder.unpack(received(two), 1)};
  const Schedule schedule = builder.finish(1);

  for (const TaskId unpack : unpacks) {
    const std::set<TaskId> before = everything_before(schedule, unpack);
    for (TaskId id = 0; id < unpacks[0]; ++id)
      CHECK(before.count(id) == 1);
  }
}

TEST_CASE("schedule: landing buffers are not counted when all share memory") {
  ScheduleBuilder builder("example", Shape::reduce, 4, 0, 4);
  const std::uint16_t input = builder.buffer("input", 4);
  builder.buffer("empty", 0);
  builder.buffer("arrived", 3, true);
  builder.pack(place(input, 0));
  builder.unpack(local(place(input, 0)), kWhole);
  const Schedule schedule = builder.finish(0);

  CHECK(schedule.cells(true) == 4);
  CHECK(schedule.cells(false) == 7);
}

TEST_CASE("schedule: tags are one more than the highest used or reserved") {
  const auto tags = [](int reserved) {
    ScheduleBuilder builder("example", Shape::copy, 2, 0, 1);
    const Place data = place(builder.buffer("data", 1), 0);
    builder.pack(data);
    builder.send(1, 4, kWhole, data, data);
    builder.unpack(local(data), kWhole);
    builder.reserve_tags(reserved);
    return builder.finish(1).tags;
  };
  CHECK(tags(0) == 5);
  CHECK(tags(7) == 7);
}

TEST_CASE("schedule: traffic counts what a rank sends, in segments") {
  ScheduleBuilder builder("example", Shape::reduce, 2, 0, 4);
  const std::uint16_t data = builder.buffer("data", 4);
  builder.pack(place(data, 0));
  builder.send(1, 0, kWhole, place(data, 0), place(data, 0));
  builder.send(1, 1, 2, place(data, 2), place(data, 2));
  builder.unpack(local(place(data, 0)), kWhole);
  const Traffic traffic = traffic_of(builder.finish(1));

  CHECK(traffic.messages == 2);
  CHECK(traffic.segments == 1.25);
}

TEST_CASE("schedule: what describes the plan is kept") {
  ScheduleBuilder builder("example", Shape::gather, 5, 3, 5);
  const Place own = place(builder.buffer("own", 1), 0);
  const TaskId pack = builder.pack(own, 3);
  builder.unpack(local(own), 3);
  const Schedule schedule = builder.finish(6, 2);

  CHECK(schedule.algorithm == "example");
  CHECK(schedule.shape == Shape::gather);
  CHECK(schedule.size == 5);
  CHECK(schedule.me == 3);
  CHECK(schedule.grid == 5);
  CHECK(schedule.depth == 6);
  CHECK(schedule.root == 2);
  CHECK(schedule.tasks.at(pack).chunk == 3);
  CHECK(schedule.tasks.at(pack).at == own);
}

TEST_CASE("schedule: primitives have names") {
  const Primitive all[] = {Primitive::pack, Primitive::send,  Primitive::recv,
                           Primitive::copy, Primitive::merge, Primitive::unpack};
  std::string names;
  for (const Primitive primitive : all)
    names += std::string(to_string(primitive)) + " ";
  CHECK(names == "pack send recv copy merge unpack ");
}

}  // namespace
}  // namespace hora
