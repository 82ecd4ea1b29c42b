// The symbolic check: run all ranks together on symbols, once.
//
// A symbol stands for the bytes of one chunk: a leaf is what a rank packed, a merge is an
// expression over symbols. Equal expressions have one number, so "the same bytes on all ranks" is
// one comparison, and each symbol carries the list of ranks that it is the sum of, in order.
//
//   cells of rank 0   [a0] [a1] --send a1--.             rank 0 finishes (a0 b0), rank 1 (a1 b1);
//   cells of rank 1   [b0] [b1]            '-> (a1 b1)   then both must unpack both
//
// One run is enough, because the rules on tasks alone (check_tasks.cc, applied first) make every
// other run leave the same symbols; and because a task that can run stays able to (sends are
// asynchronous, nothing is taken back), so that if one order comes to the end then none gets stuck.
// Looked at here:
//
//   merges     add each rank once, chunk by chunk; the finishing one has all of them, in rank
//              order; what is finished is never merged again
//   results    every rank unpacks every chunk once, with the same expression on all ranks; where
//              results are private, the chunks that are its own, and no others
//   progress   nobody waits for ever; the longest chain of messages is `depth`
//
// A codec changes nothing about this: an encoded merge is another expression than a plain one, so
// "the same expression" also says that a chunk is decoded from the same bytes everywhere, its owner
// included.
//
// That completion depends on every rank's start needs no rule of its own: each result holds a leaf
// of every rank (broadcast: of the root), and leaves come from packs. It holds for a segment of no
// elements too, where each message is only a header.
//
// Rank order is that of the topology, host by host (without one 0, 1, .., size-1), from the first
// host on for all chunks or, if hosts divide the grid, from host chunk+1 on for all of them: the
// order in which a ring of hosts, or of ranks, comes by. contribution_order() tells which.
#include "ops/check.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/check_tasks.h"

namespace hora {
namespace {

struct Symbol {
  int chunk = 0;
  bool finished = false;
  std::vector<int> ranks;  // Whose contributions, in the order in which they are added.
};

// All symbols of a run, numbered. Equal expressions get equal numbers.
class Symbols {
 public:
  int leaf(int rank, int chunk) { return intern({-1, rank, chunk}, Symbol{chunk, false, {rank}}); }

  int merge(const std::vector<int>& operands, int chunk, bool finished, bool encoded) {
    std::vector<int> key = {(finished ? 1 : 0) + (encoded ? 2 : 0), chunk};
    key.insert(key.end(), operands.begin(), operands.end());
    Symbol sum{chunk, finished, {}};
    for (const int operand : operands) {
      const std::vector<int>& ranks = (*this)[operand].ranks;
      sum.ranks.insert(sum.ranks.end(), ranks.begin(), ranks.end());
    }
    return intern(std::move(key), std::move(sum));
  }

  const Symbol& operator[](int id) const { return symbols_[static_cast<std::size_t>(id)]; }

 private:
  int intern(std::vector<int> key, Symbol symbol) {
    const auto [it, is_new] = ids_.try_emplace(std::move(key), static_cast<int>(symbols_.size()));
    if (is_new) symbols_.push_back(std::move(symbol));
    return it->second;
  }

  std::map<std::vector<int>, int> ids_;
  std::vector<Symbol> symbols_;
};

constexpr int kNoSymbol = -1;

// Runs a group whose tasks have passed check_tasks. Steps return false with a
// sentence in `finding_`.
class SymbolicRun {
 public:
  SymbolicRun(const ScheduleGroup& group, const Topology& topology);

  Finding run() {
    const bool good =
        comes_to_the_end() && results_are_right() && chunks_follow_one_rule() && depth_is_right();
    return good ? std::nullopt : finding_;
  }
  [[nodiscard]] const std::vector<int>& order_of(int chunk) const {
    const auto rank = static_cast<std::size_t>(std::max(0, group_.of(0).owner_of(chunk)));
    return symbols_[states_[rank].results[static_cast<std::size_t>(chunk)]].ranks;
  }
  [[nodiscard]] bool adds() const {
    return group_.of(0).shape == Shape::reduce || group_.of(0).shape == Shape::scatter;
  }

 private:
  struct RankState {
    std::vector<int> cells;      // Per cell: its symbol, or kNoSymbol.
    std::vector<int> results;    // Per chunk: the symbol unpacked.
    std::vector<TaskId> sender;  // Per recv: the send of its peer.
    std::vector<bool> done;      // Per task.
    std::vector<int> hops;       // Per task: messages on the longest chain up to it.
  };

  bool fail(std::string sentence) {
    finding_ = std::move(sentence);
    return false;
  }
  bool fail(int rank, TaskId id, const std::string& what) {
    return fail(group_.name(rank, id) + " " + what);
  }
  [[nodiscard]] RankState& state(int rank) { return states_[static_cast<std::size_t>(rank)]; }

  bool comes_to_the_end();
  bool is_ready(int rank, TaskId id);
  void count_hops(int rank, TaskId id);
  int read(int rank, const Operand& operand, int chunk, int i);
  bool evaluate(int rank, TaskId id);
  bool evaluate_merge(int rank, TaskId id, const std::vector<int>& operands, int i);
  bool evaluate_unpack(int rank, TaskId id, int symbol, int chunk);
  [[nodiscard]] std::vector<int> ranks_from(int host) const;
  [[nodiscard]] bool in_rank_order(const Symbol& sum) const;
  bool results_are_right();
  bool result_is_right(int rank, int chunk);
  bool chunks_follow_one_rule();
  bool depth_is_right();

  const ScheduleGroup& group_;
  const Topology& topology_;
  std::vector<RankState> states_;
  Symbols symbols_;
  Finding finding_;
};

SymbolicRun::SymbolicRun(const ScheduleGroup& group, const Topology& topology)
    : group_(group), topology_(topology) {
  std::map<std::pair<std::pair<int, int>, int>, TaskId> sends;  // By ((sender, receiver), tag).
  for (int rank = 0; rank < group.size(); ++rank) {
    const Schedule& s = group.of(rank);
    const std::size_t tasks = s.tasks.size();
    states_.push_back({std::vector<int>(s.cells(false), kNoSymbol),
                       std::vector<int>(static_cast<std::size_t>(s.grid), kNoSymbol),
                       std::vector<TaskId>(tasks, kNoTask), std::vector<bool>(tasks, false),
                       std::vector<int>(tasks, 0)});
    for (TaskId id = 0; id < group.tasks(rank); ++id) {
      const Task& t = s.tasks[id];
      if (t.kind == Primitive::send) sends[{{rank, t.peer}, t.tag}] = id;
    }
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    for (TaskId id = 0; id < group.tasks(rank); ++id) {
      const Task& t = group.task(rank, id);
      if (t.kind == Primitive::recv) state(rank).sender[id] = sends.at({{t.peer, rank}, t.tag});
    }
  }
}

bool SymbolicRun::comes_to_the_end() {
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < group_.size(); ++rank) {
      for (TaskId id = 0; id < group_.tasks(rank); ++id) {
        if (state(rank).done[id] || !is_ready(rank, id)) continue;
        if (!evaluate(rank, id)) return false;
        count_hops(rank, id);
        state(rank).done[id] = true;
        moved = true;
      }
    }
  }
  // Dependencies point backwards, so the first task of a rank that never runs is a recv.
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (TaskId id = 0; id < group_.tasks(rank); ++id) {
      if (!state(rank).done[id]) {
        return fail(rank, id,
                    "waits for ever: ranks wait for each other in a circle before " +
                        group_.name(group_.task(rank, id).peer, state(rank).sender[id]));
      }
    }
  }
  return true;
}

bool SymbolicRun::is_ready(int rank, TaskId id) {
  const Task& t = group_.task(rank, id);
  for (std::uint32_t i = 0; i < t.dependency_count; ++i) {
    if (!state(rank).done[group_.of(rank).dependencies[t.first_dependency + i]]) return false;
  }
  return t.kind != Primitive::recv || state(t.peer).done[state(rank).sender[id]];
}

void SymbolicRun::count_hops(int rank, TaskId id) {
  const Task& t = group_.task(rank, id);
  int& hops = state(rank).hops[id];
  if (t.kind == Primitive::recv) hops = state(t.peer).hops[state(rank).sender[id]] + 1;
  for (std::uint32_t i = 0; i < t.dependency_count; ++i) {
    const TaskId earlier = group_.of(rank).dependencies[t.first_dependency + i];
    hops = std::max(hops, state(rank).hops[earlier]);
  }
}

// The symbol of cell `i` of an operand. What was received is read where the sender has it.
int SymbolicRun::read(int rank, const Operand& operand, int chunk, int i) {
  if (operand.caller) return symbols_.leaf(rank, chunk);
  if (operand.received == kNoTask) return state(rank).cells[group_.cell(operand.place, i)];
  const int peer = group_.task(rank, operand.received).peer;
  const Task& sent = group_.task(peer, state(rank).sender[operand.received]);
  return state(peer).cells[group_.cell(sent.at, i)];
}

bool SymbolicRun::evaluate(int rank, TaskId id) {
  const Task& t = group_.task(rank, id);
  for (int i = 0; i < group_.span(t); ++i) {
    const int chunk = t.chunk == kWhole ? i : t.chunk;
    std::vector<int> operands;
    group_.for_operands(rank, id,
                        [&](const Operand& o) { operands.push_back(read(rank, o, chunk, i)); });
    if (t.kind == Primitive::send) operands.push_back(state(rank).cells[group_.cell(t.at, i)]);
    for (const int operand : operands) {
      if (symbols_[operand].chunk != chunk) {
        return fail(rank, id,
                    "reads chunk " + std::to_string(symbols_[operand].chunk) + " for chunk " +
                        std::to_string(chunk));
      }
    }
    int* const cell = writes_cell(t) ? &state(rank).cells[group_.cell(t.at, i)] : nullptr;
    if (t.kind == Primitive::pack) *cell = symbols_.leaf(rank, chunk);
    if (t.kind == Primitive::copy) *cell = operands[0];
    if (t.kind == Primitive::merge && !evaluate_merge(rank, id, operands, i)) return false;
    if (t.kind == Primitive::unpack && !evaluate_unpack(rank, id, operands[0], chunk)) return false;
  }
  return true;
}

bool SymbolicRun::evaluate_merge(int rank, TaskId id, const std::vector<int>& operands, int i) {
  const Task& t = group_.task(rank, id);
  if (!adds()) {
    return fail(rank, id, "is a merge, in a collective that adds nothing");
  }
  std::vector<bool> added(static_cast<std::size_t>(group_.size()), false);
  for (const int operand : operands) {
    if (symbols_[operand].finished) return fail(rank, id, "merges what is finished already");
    for (const int other : symbols_[operand].ranks) {
      if (added[static_cast<std::size_t>(other)]) {
        return fail(rank, id, "adds the contribution of rank " + std::to_string(other) + " twice");
      }
      added[static_cast<std::size_t>(other)] = true;
    }
  }
  const bool encoded = group_.of(rank).buffers[t.at.buffer].encoded;
  const int sum = symbols_.merge(operands, t.chunk == kWhole ? i : t.chunk, t.finish, encoded);
  if (t.finish) {
    const auto missing = std::find(added.begin(), added.end(), false);
    if (missing != added.end()) {
      return fail(
          rank, id,
          "finishes without the contribution of rank " + std::to_string(missing - added.begin()));
    }
    if (!in_rank_order(symbols_[sum])) {
      std::string order;
      for (const int other : symbols_[sum].ranks)
        order += " " + std::to_string(other);
      return fail(rank, id, "adds the ranks in the order" + order);
    }
  }
  state(rank).cells[group_.cell(t.at, i)] = sum;
  return true;
}

// All ranks, host by host around from one of them.
std::vector<int> SymbolicRun::ranks_from(int host) const {
  std::vector<int> ranks;
  for (int i = 0; i < topology_.host_count(); ++i) {
    const int next = (host + i) % topology_.host_count();
    const std::vector<int>& more = topology_.hosts[static_cast<std::size_t>(next)];
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  return ranks;
}

bool SymbolicRun::in_rank_order(const Symbol& sum) const {
  const int hosts = topology_.host_count();
  if (sum.ranks == ranks_from(0)) return true;
  return group_.of(0).grid % hosts == 0 && sum.ranks == ranks_from((sum.chunk + 1) % hosts);
}

bool SymbolicRun::evaluate_unpack(int rank, TaskId id, int symbol, int chunk) {
  int& result = state(rank).results[static_cast<std::size_t>(chunk)];
  if (result != kNoSymbol) {
    return fail(rank, id, "unpacks chunk " + std::to_string(chunk) + " a second time");
  }
  result = symbol;
  return true;
}

bool SymbolicRun::results_are_right() {
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (int chunk = 0; chunk < group_.of(rank).grid; ++chunk) {
      if (!result_is_right(rank, chunk)) return false;
    }
  }
  return true;
}

bool SymbolicRun::result_is_right(int rank, int chunk) {
  const std::string who =
      "rank " + std::to_string(rank) + ": its result of chunk " + std::to_string(chunk) + " ";
  const Schedule& s = group_.of(rank);
  const int result = state(rank).results[static_cast<std::size_t>(chunk)];
  const int owner = s.owner_of(chunk);
  if (owner >= 0 && owner != rank) {
    return result == kNoSymbol || fail(who + "belongs to rank " + std::to_string(owner));
  }
  if (result == kNoSymbol) return fail(who + "is never unpacked");
  if (adds()) {
    if (!symbols_[result].finished) return fail(who + "is not finished");
    if (owner < 0 && result != state(0).results[static_cast<std::size_t>(chunk)]) {
      return fail(who + "is merged in another way than rank 0's");
    }
    return true;
  }
  int source = s.root;
  if (s.shape == Shape::gather) source = chunk;
  if (s.shape == Shape::transpose) source = chunk / s.size;
  if (symbols_[result].ranks.front() != source) {
    return fail(who + "comes from rank " + std::to_string(symbols_[result].ranks.front()) +
                ", not from rank " + std::to_string(source));
  }
  return true;
}

bool SymbolicRun::chunks_follow_one_rule() {
  if (!adds()) return true;
  const int first = topology_.host_of(order_of(0).front());
  for (int chunk = 1; chunk < group_.of(0).grid; ++chunk) {
    const int other = topology_.host_of(order_of(chunk).front());
    const int expected = first == 0 ? 0 : (chunk + 1) % topology_.host_count();
    if (other != expected) {
      return fail("chunk 0 is added from rank " + std::to_string(order_of(0).front()) +
                  " on, chunk " + std::to_string(chunk) + " from rank " +
                  std::to_string(order_of(chunk).front()) + " on: chunks follow different rules");
    }
  }
  return true;
}

bool SymbolicRun::depth_is_right() {
  int longest = 0;
  for (const RankState& rank : states_) {
    for (const int hops : rank.hops)
      longest = std::max(longest, hops);
  }
  const int depth = group_.of(0).depth;
  return longest == depth ||
         fail("the depth is given as " + std::to_string(depth) + ", but the longest chain has " +
              std::to_string(longest) + " messages");
}

}  // namespace

std::optional<std::string> check_schedules(const std::vector<Schedule>& by_rank,
                                           const Topology& topology) {
  const ScheduleGroup group(by_rank);
  if (Finding finding = check_tasks(group)) return finding;
  return SymbolicRun(group, topology).run();
}

std::optional<std::string> check_schedules(const std::vector<Schedule>& by_rank) {
  return check_schedules(by_rank, Topology::separate(static_cast<int>(by_rank.size())));
}

std::vector<int> contribution_order(const std::vector<Schedule>& by_rank, const Topology& topology,
                                    int chunk) {
  const ScheduleGroup group(by_rank);
  if (check_tasks(group)) return {};
  SymbolicRun run(group, topology);
  return run.run() ? std::vector<int>{} : run.order_of(chunk);
}

std::vector<int> contribution_order(const std::vector<Schedule>& by_rank, int chunk) {
  return contribution_order(by_rank, Topology::separate(static_cast<int>(by_rank.size())), chunk);
}

}  // namespace hora
