// The first half of the symbolic check: rules on the tasks, before anything runs.
//
//   shape        places lie in the slot, operands are what their task may read, dependencies point
//                backwards (so there is no cycle within a rank), landing buffers are for peers only
//   messages     sends and recvs match one to one by (sender, receiver, tag), in chunk and in the
//                cell where the payload lands
//   one writer   a cell is written by one local task, or by one message that lands there, or by a
//                message and the copy that puts the same bytes there (nothing, on a socket)
//   order        who reads a cell waits for its writer, and who reads a message for its recv,
//                through dependencies of the own rank
//   codec        payloads move between encoded cells; a rank encodes each chunk once, where its own
//                contribution enters
//   unpacks      wait for every other task of the rank
//
// Why these come first: with them every order of the tasks, and every moment of landing after the
// sender's start (even before the receiver's own), leaves the same bytes for each reader. Over
// shared memory the cell that is read is the sender's, and the same holds there. So one run on
// symbols (check.cc) speaks for all runs, with views, with sockets and with a mixture.
//
// Cost: per rank, tasks times dependencies in words of bits.
#include "ops/check_tasks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

namespace hora {
namespace {

// Applies the rules to a group. Each returns false after it has put its sentence into `finding`.
class TaskRules {
 public:
  explicit TaskRules(const ScheduleGroup& group) : group_(group) {}

  Finding apply() {
    const bool good = ranks_agree() && every_rank(&TaskRules::is_well_formed) && messages_match() &&
                      every_rank(&TaskRules::has_one_writer_per_cell) &&
                      every_rank(&TaskRules::reads_in_order) &&
                      every_rank(&TaskRules::encodes_once) && every_rank(&TaskRules::unpacks_last);
    return good ? std::nullopt : finding_;
  }

 private:
  struct RankState {
    std::vector<TaskId> writer;                      // Per cell: the local task, or kNoTask.
    std::vector<std::vector<std::uint64_t>> before;  // Per task, bits: the tasks that it waits for.
  };

  bool fail(std::string sentence) {
    finding_ = std::move(sentence);
    return false;
  }
  bool fail(int rank, TaskId id, const std::string& what) {
    return fail(group_.name(rank, id) + " " + what);
  }
  bool every_rank(bool (TaskRules::*rule)(int)) {
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (!(this->*rule)(rank)) return false;
    }
    return true;
  }
  [[nodiscard]] RankState& state(int rank) { return states_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool waits(int rank, TaskId later, TaskId earlier) {
    return (state(rank).before[later][earlier / 64] >> (earlier % 64) & 1) != 0;
  }

  bool ranks_agree();
  bool slot_is_sound();
  bool is_well_formed(int rank);
  bool has_good_peer(int rank, TaskId id);
  bool has_good_dependencies(int rank, TaskId id);
  bool has_good_places(int rank, TaskId id);
  bool has_good_operands(int rank, TaskId id);
  bool messages_match();
  bool has_one_writer_per_cell(int rank);
  bool reads_in_order(int rank);
  bool reads_after_writer(int rank, TaskId id, Place from);
  bool keeps_form(int rank, TaskId id);
  bool encodes_once(int rank);
  bool unpacks_last(int rank);

  const ScheduleGroup& group_;
  std::vector<RankState> states_;
  Finding finding_;
};

bool TaskRules::ranks_agree() {
  if (group_.size() == 0) return fail("there are no schedules");
  const Schedule& a = group_.of(0);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const std::string who = "rank " + std::to_string(rank);
    const Schedule& b = group_.of(rank);
    if (b.me != rank || b.size != group_.size()) {
      return fail(who + " of " + std::to_string(group_.size()) + ": its schedule is for rank " +
                  std::to_string(b.me) + " of " + std::to_string(b.size));
    }
    if (std::tie(a.algorithm, a.shape, a.root, a.grid, a.depth, a.tags) !=
        std::tie(b.algorithm, b.shape, b.root, b.grid, b.depth, b.tags)) {
      return fail(who + ": algorithm, shape, root, grid, depth or tags differ from rank 0's");
    }
    const auto alike = [](const BufferSpec& x, const BufferSpec& y) {
      return x.name == y.name && x.cells == y.cells && x.landing == y.landing &&
             x.encoded == y.encoded;
    };
    if (!std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    alike)) {
      return fail(who + ": its slot is not laid out as rank 0's");
    }
  }
  return slot_is_sound();
}

bool TaskRules::slot_is_sound() {
  const Schedule& s = group_.of(0);
  if (s.grid < 1) return fail("the grid has no chunks");
  const int size = group_.size();
  const bool one_each = s.shape == Shape::gather || s.shape == Shape::scatter;
  if ((one_each && s.grid != size) || (s.shape == Shape::transpose && s.grid != size * size)) {
    return fail("the grid has " + std::to_string(s.grid) + " chunks for " + std::to_string(size) +
                " ranks");
  }
  if (s.root < 0 || s.root >= group_.size()) return fail("the root is no member");
  const auto landing_first = [](const BufferSpec& x, const BufferSpec& y) {
    return x.landing && !y.landing;
  };
  if (std::adjacent_find(s.buffers.begin(), s.buffers.end(), landing_first) != s.buffers.end()) {
    return fail("a landing buffer lies before one that is always laid out");
  }
  states_.resize(static_cast<std::size_t>(group_.size()));
  return true;
}

bool TaskRules::is_well_formed(int rank) {
  const Schedule& s = group_.of(rank);
  RankState& own = state(rank);
  own.writer.assign(s.cells(false), kNoTask);
  own.before.assign(s.tasks.size(), std::vector<std::uint64_t>((s.tasks.size() + 63) / 64));
  for (TaskId id = 0; id < group_.tasks(rank); ++id) {
    const std::int32_t chunk = s.tasks[id].chunk;
    if (chunk != kWhole && (chunk < 0 || chunk >= s.grid)) {
      return fail(rank, id, "is outside the grid of " + std::to_string(s.grid));
    }
    if (chunk == kWhole && is_ragged(s.shape)) {
      return fail(rank, id, "takes all chunks at once, but each has a length of its own");
    }
    if (!has_good_peer(rank, id) || !has_good_dependencies(rank, id) ||
        !has_good_places(rank, id) || !has_good_operands(rank, id)) {
      return false;
    }
  }
  return true;
}

bool TaskRules::has_good_peer(int rank, TaskId id) {
  const Task& t = group_.task(rank, id);
  if (t.kind != Primitive::send && t.kind != Primitive::recv) return true;
  if (t.peer < 0 || t.peer >= group_.size() || t.peer == rank) {
    return fail(rank, id, "has a peer that is no other member");
  }
  if (t.tag >= group_.of(rank).tags) {
    return fail(rank, id, "has a tag that is not below " + std::to_string(group_.of(rank).tags));
  }
  return true;
}

bool TaskRules::has_good_dependencies(int rank, TaskId id) {
  const Schedule& s = group_.of(rank);
  const Task& t = s.tasks[id];
  std::vector<std::vector<std::uint64_t>>& before = state(rank).before;
  if (std::size_t{t.first_dependency} + t.dependency_count > s.dependencies.size()) {
    return fail(rank, id, "has dependencies outside their list");
  }
  for (std::uint32_t i = 0; i < t.dependency_count; ++i) {
    const TaskId earlier = s.dependencies[t.first_dependency + i];
    if (earlier >= id) {
      return fail(rank, id,
                  "waits for task " + std::to_string(earlier) + ", which does not come before it");
    }
    for (std::size_t word = 0; word < before[id].size(); ++word) {
      before[id][word] |= before[earlier][word];
    }
    before[id][earlier / 64] |= std::uint64_t{1} << (earlier % 64);
  }
  return true;
}

bool TaskRules::has_good_places(int rank, TaskId id) {
  const Task& t = group_.task(rank, id);
  const std::vector<BufferSpec>& buffers = group_.of(rank).buffers;
  const auto inside = [&](Place at) {
    return at.buffer < buffers.size() && at.cell + group_.span(t) <= buffers[at.buffer].cells;
  };
  if (t.kind != Primitive::unpack && !inside(t.at)) return fail(rank, id, "lies outside the slot");
  if (t.kind == Primitive::send && !inside(t.remote)) {
    return fail(rank, id, "lands outside the slot of its peer");
  }
  if ((writes_cell(t) || t.kind == Primitive::send) && buffers[t.at.buffer].landing) {
    return fail(rank, id,
                "uses the landing buffer '" + buffers[t.at.buffer].name +
                    "', which is not laid out when all share memory");
  }
  std::string problem;
  group_.for_operands(rank, id, [&](const Operand& operand) {
    if (operand.received != kNoTask || operand.caller) return;
    if (!inside(operand.place)) {
      problem = "reads outside the slot";
    } else if (buffers[operand.place.buffer].landing) {
      problem = "reads the landing buffer '" + buffers[operand.place.buffer].name +
                "', which is not laid out when all share memory";
    }
  });
  return problem.empty() || fail(rank, id, problem);
}

bool TaskRules::has_good_operands(int rank, TaskId id) {
  const Schedule& s = group_.of(rank);
  const Task& t = s.tasks[id];
  const bool takes_one = t.kind == Primitive::copy || t.kind == Primitive::unpack;
  const bool right_count =
      t.kind == Primitive::merge ? t.operand_count >= 1 : t.operand_count == (takes_one ? 1u : 0u);
  if (!right_count || std::size_t{t.first_operand} + t.operand_count > s.operands.size()) {
    return fail(rank, id, "has " + std::to_string(t.operand_count) + " operands");
  }
  std::string problem;
  group_.for_operands(rank, id, [&](const Operand& operand) {
    if (operand.caller && (t.kind != Primitive::merge || operand.received != kNoTask)) {
      problem = "reads the caller's tensors, which only a merge may";
    }
    if (operand.received == kNoTask) return;
    if (operand.received >= id || s.tasks[operand.received].kind != Primitive::recv) {
      problem = "reads what task " + std::to_string(operand.received) +
                " received, which is no earlier recv";
    } else if (s.tasks[operand.received].chunk != t.chunk) {
      problem = "reads another chunk, " + group_.name(rank, operand.received);
    } else if (!waits(rank, id, operand.received)) {
      problem = "does not wait for what it reads, " + group_.name(rank, operand.received);
    }
  });
  return problem.empty() || fail(rank, id, problem);
}

bool TaskRules::messages_match() {
  std::map<std::tuple<int, int, int>, TaskId> sends;  // By (sender, receiver, tag).
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (TaskId id = 0; id < group_.tasks(rank); ++id) {
      const Task& t = group_.task(rank, id);
      if (t.kind == Primitive::send && !sends.try_emplace({rank, t.peer, t.tag}, id).second) {
        return fail(rank, id, "has the tag of another message to the same rank");
      }
    }
  }
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (TaskId id = 0; id < group_.tasks(rank); ++id) {
      const Task& t = group_.task(rank, id);
      if (t.kind != Primitive::recv) continue;
      const auto found = sends.find({t.peer, rank, t.tag});
      if (found == sends.end()) {
        return fail(rank, id, "waits for a message that nobody sends, or that another task took");
      }
      const Task& sent = group_.task(t.peer, found->second);
      const std::string sender = group_.name(t.peer, found->second);
      if (sent.chunk != t.chunk) return fail(rank, id, "gets another chunk from " + sender);
      if (sent.remote != t.at) {
        return fail(rank, id,
                    "looks for its payload in " + group_.name(t.at, 0) + ", but " + sender +
                        " lands it in " + group_.name(sent.remote, 0));
      }
      sends.erase(found);
    }
  }
  if (sends.empty()) return true;
  const auto& [key, id] = *sends.begin();
  return fail(std::get<0>(key), id, "is a message that nobody receives");
}

bool TaskRules::has_one_writer_per_cell(int rank) {
  const Schedule& s = group_.of(rank);
  std::vector<TaskId>& writer = state(rank).writer;
  std::vector<TaskId> lander(writer.size(), kNoTask);
  for (TaskId id = 0; id < group_.tasks(rank); ++id) {
    const Task& t = s.tasks[id];
    if (!writes_cell(t) && t.kind != Primitive::recv) continue;
    std::vector<TaskId>& first = t.kind == Primitive::recv ? lander : writer;
    for (int i = 0; i < group_.span(t); ++i) {
      TaskId& other = first[group_.cell(t.at, i)];
      if (other != kNoTask) {
        return fail(rank, id,
                    "writes " + group_.name(t.at, i) + ", which has the bytes of " +
                        group_.name(rank, other));
      }
      other = id;
    }
  }
  for (TaskId id = 0; id < group_.tasks(rank); ++id) {
    const Task& t = s.tasks[id];
    if (!writes_cell(t)) continue;
    for (int i = 0; i < group_.span(t); ++i) {
      const TaskId recv = lander[group_.cell(t.at, i)];
      if (recv == kNoTask) continue;
      const bool same_bytes = t.kind == Primitive::copy && s.tasks[recv].at == t.at &&
                              s.operands[t.first_operand].received == recv;
      if (!same_bytes) {
        return fail(rank, id,
                    "writes " + group_.name(t.at, i) + ", where a message may land at any time, " +
                        group_.name(rank, recv));
      }
    }
  }
  return true;
}

bool TaskRules::reads_in_order(int rank) {
  for (TaskId id = 0; id < group_.tasks(rank); ++id) {
    const Task& t = group_.task(rank, id);
    bool good = t.kind != Primitive::send || reads_after_writer(rank, id, t.at);
    group_.for_operands(rank, id, [&](const Operand& operand) {
      const bool place = operand.received == kNoTask && !operand.caller;
      if (place) good = good && reads_after_writer(rank, id, operand.place);
    });
    if (!good) return false;
  }
  return true;
}

bool TaskRules::reads_after_writer(int rank, TaskId id, Place from) {
  for (int i = 0; i < group_.span(group_.task(rank, id)); ++i) {
    const TaskId writer = state(rank).writer[group_.cell(from, i)];
    if (writer == kNoTask) {
      return fail(rank, id, "reads " + group_.name(from, i) + ", which no task of its rank writes");
    }
    if (!waits(rank, id, writer)) {
      return fail(
          rank, id,
          "reads " + group_.name(from, i) + " without waiting for " + group_.name(rank, writer));
    }
  }
  return true;
}

// Payloads move between encoded cells only; a merge reads and writes either.
bool TaskRules::keeps_form(int rank, TaskId id) {
  const Schedule& s = group_.of(rank);
  const Task& t = s.tasks[id];
  if (t.kind == Primitive::unpack || t.kind == Primitive::merge) return true;
  const bool encoded = s.buffers[t.at.buffer].encoded;
  bool good = t.kind != Primitive::pack || !encoded;
  if (t.kind == Primitive::send) good = s.buffers[t.remote.buffer].encoded == encoded;
  if (t.kind == Primitive::copy) good = s.is_encoded(s.operands[t.first_operand]) == encoded;
  return good || fail(rank, id, "takes encoded cells for plain ones, or plain ones for encoded");
}

// Where there are encoded cells, a rank encodes each chunk once, with its own contribution in it:
// that is where its residual belongs.
bool TaskRules::encodes_once(int rank) {
  const Schedule& s = group_.of(rank);
  const auto is_encoded = [](const BufferSpec& buffer) { return buffer.encoded; };
  const bool has_codec = std::any_of(s.buffers.begin(), s.buffers.end(), is_encoded);
  std::vector<int> encoded(static_cast<std::size_t>(s.grid), 0);
  for (TaskId id = 0; id < group_.tasks(rank); ++id) {
    const Task& t = s.tasks[id];
    if (!keeps_form(rank, id)) return false;
    int from_caller = 0;
    group_.for_operands(rank, id, [&](const Operand& o) { from_caller += o.caller ? 1 : 0; });
    const bool encodes = t.kind == Primitive::merge && s.buffers[t.at.buffer].encoded;
    if (from_caller != (encodes ? 1 : 0)) {
      return fail(rank, id,
                  encodes ? "encodes without the own contribution of its rank"
                          : "reads the caller's tensors, but does not encode");
    }
    for (int i = 0; encodes && i < group_.span(t); ++i)
      ++encoded[static_cast<std::size_t>(t.chunk == kWhole ? i : t.chunk)];
  }
  for (std::size_t chunk = 0; has_codec && chunk < encoded.size(); ++chunk) {
    if (encoded[chunk] != 1) {
      return fail("rank " + std::to_string(rank) + " encodes chunk " + std::to_string(chunk) + " " +
                  std::to_string(encoded[chunk]) + " times, not once");
    }
  }
  return true;
}

bool TaskRules::unpacks_last(int rank) {
  for (TaskId id = 0; id < group_.tasks(rank); ++id) {
    if (group_.task(rank, id).kind != Primitive::unpack) continue;
    for (TaskId other = 0; other < group_.tasks(rank); ++other) {
      if (group_.task(rank, other).kind != Primitive::unpack && !waits(rank, id, other)) {
        return fail(
            rank, id,
            "overwrites the caller's tensor without waiting for " + group_.name(rank, other));
      }
    }
  }
  return true;
}

}  // namespace

std::string ScheduleGroup::name(int rank, TaskId id) const {
  const Task& t = task(rank, id);
  std::string text = "rank " + std::to_string(rank) + ", task " + std::to_string(id) + " (" +
                     std::string(to_string(t.kind));
  text += t.chunk == kWhole ? " of the segment" : " of chunk " + std::to_string(t.chunk);
  if (t.kind == Primitive::send) text += " to rank " + std::to_string(t.peer);
  if (t.kind == Primitive::recv) text += " from rank " + std::to_string(t.peer);
  if (t.kind == Primitive::send || t.kind == Primitive::recv) {
    text += ", tag " + std::to_string(t.tag);
  }
  return text + ")";
}

std::string ScheduleGroup::name(Place at, int i) const {
  return "cell " + std::to_string(at.cell + i) + " of '" + of(0).buffers[at.buffer].name + "'";
}

Finding check_tasks(const ScheduleGroup& group) {
  return TaskRules(group).apply();
}

}  // namespace hora
