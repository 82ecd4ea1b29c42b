// See repair_model.h. A state is a few dozen bytes: per member how far it has started and finished,
// what stands in its slots, which parts of its tensors are written; and the newest World with its
// plan. Members that are not in the newest World cannot touch it any more and are forgotten.
#include "tests/elastic/repair_model.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "ops/transport/lane_layout.h"
#include "runtime/base/freeze_word.h"

namespace hora::test {

namespace {

constexpr std::size_t kMembers = 4, kPositions = 8, kWindow = 4;
using Byte = std::uint8_t;
using Mask = std::uint8_t;

struct Worker {
  Byte alive, frozen, installed;      // `installed`: its World.
  Byte started, done;                 // In that World.
  Byte report_started, report_done;   // What it has said last.
  Mask written, lost;                 // By position: the caller's tensor, the input.
  std::array<Byte, kWindow> slot;     // Position + 1 of the result that stands in it; 0: none.
  std::array<Mask, kPositions> from;  // By position: the contributors of its result; 0: none.
};

struct State {
  std::array<Worker, kMembers> workers;
  Byte newest;              // World.
  Mask members, before;     // Of the newest World and the one before.
  Byte copy_to, redo_from;  // Of its plan.
  Byte redo_before;         // Of the plan of the World before.
  std::array<Byte, kMembers> counts;
  Byte crashes;

  friend bool operator==(const State& a, const State& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
};
static_assert(std::has_unique_object_representations_v<State>);

struct Hash {
  std::size_t operator()(const State& state) const {
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&state);
    for (std::size_t i = 0; i < sizeof state; ++i)
      hash = (hash ^ bytes[i]) * 0x100000001b3;
    return static_cast<std::size_t>(hash ^ (hash >> 29));
  }
};

class Explorer {
 public:
  explicit Explorer(const ModelOptions& options) : options_(options) {
    layout_.window = static_cast<std::uint32_t>(options.window);
    positions_ = static_cast<int>(options.collectives.size()) * options.segments;
  }

  Exploration run(std::size_t most_states) {
    visit(first_state(), 0, "start");
    for (std::size_t next = 0; next < states_.size() && found_.violation.empty(); ++next) {
      if (states_.size() > most_states) break;
      current_ = next;
      moved_ = false;
      const State state = *states_[next];
      expand(state);
      if (!moved_ && unharmed(state) && !finished(state)) {
        last_step_ = "nothing more";
        violate("a World without failure is stuck");
      }
    }
    found_.states = states_.size();
    return found_;
  }

 private:
  struct Origin {
    std::size_t parent;
    std::string step;
  };

  // ---- what the rules look at

  [[nodiscard]] int begin_of(int collective) const { return collective * options_.segments; }
  [[nodiscard]] int collective_of(int position) const { return position / options_.segments; }
  [[nodiscard]] Ending ending_of(int position) const {
    return options_.collectives[static_cast<std::size_t>(collective_of(position))];
  }
  [[nodiscard]] bool mutant(Mutant which) const { return options_.mutant == which; }
  static bool has(Mask mask, std::size_t bit) { return (mask >> bit & 1) != 0; }
  static Mask bit(std::size_t index) { return static_cast<Mask>(1u << index); }

  /// The count of member m, as it stands for the others in the newest World.
  [[nodiscard]] int count_of(const State& s, std::size_t m) const {
    const Worker& worker = s.workers[m];
    if (mutant(Mutant::plan_taken_as_done) && worker.installed == s.newest) {
      return std::max<int>(worker.done, s.copy_to);
    }
    // Until its own is heard, the count of its report holds.
    return worker.installed == s.newest ? worker.done : s.counts[m];
  }
  /// How far it is done; what is restarted does not count.
  static int done_in(const State& s, std::size_t m) {
    const Worker& worker = s.workers[m];
    return worker.installed == s.newest ? worker.done : std::min(worker.done, s.counts[m]);
  }
  [[nodiscard]] int floor_of(const State& s) const {
    int floor = positions_;
    for (std::size_t m = 0; m < kMembers; ++m) {
      if (has(s.members, m)) floor = std::min(floor, count_of(s, m));
    }
    return floor;
  }

  [[nodiscard]] bool may_start(const State& s, std::size_t r) const {
    const int position = s.workers[r].started;
    if (position >= positions_) return false;
    const int floor = floor_of(s);
    const int before = position - position % options_.segments;
    const bool shut = position > 0 && position == before && ending_of(position - 1) == Ending::shut;
    if (shut && !mutant(Mutant::no_shut) && floor < before) return false;
    LaneLayout layout = layout_;
    if (mutant(Mutant::window_too_wide)) ++layout.window;
    const int trusted = mutant(Mutant::slot_reused_early) ? s.workers[r].done : floor;
    return layout.may_start(static_cast<std::uint64_t>(position),
                            static_cast<std::uint64_t>(trusted));
  }

  /// Everybody whose input the result of its next position needs has published it.
  [[nodiscard]] bool complete(const State& s, std::size_t r) const {
    const Worker& worker = s.workers[r];
    const bool old = worker.installed != s.newest;
    // What is copied has not been started in this World.
    if (worker.done >= worker.started || worker.done < (old ? s.redo_before : s.redo_from)) {
      return false;
    }
    for (std::size_t m = 0; m < kMembers; ++m) {
      if (!has(old ? s.before : s.members, m)) continue;
      const Worker& other = s.workers[m];
      const int started = other.installed == worker.installed       ? other.started
                          : other.installed == worker.installed + 1 ? other.report_started
                                                                    : 0;
      if (started <= worker.done) return false;
    }
    return true;
  }

  /// No fault since the newest World was made: it must get to the end by itself.
  [[nodiscard]] bool unharmed(const State& s) const {
    for (std::size_t m = 0; m < kMembers; ++m) {
      const Worker& worker = s.workers[m];
      if (!has(s.members, m)) continue;
      if (worker.alive == 0 || worker.frozen != 0 || worker.installed != s.newest) return false;
    }
    return true;
  }
  [[nodiscard]] bool finished(const State& s) const { return floor_of(s) == positions_; }

  // ---- steps

  [[nodiscard]] State first_state() const {
    State s;
    std::memset(&s, 0, sizeof s);
    s.newest = 1;
    for (std::size_t m = 0; m < static_cast<std::size_t>(options_.members); ++m) {
      s.workers[m].alive = 1;
      s.workers[m].installed = 1;
      s.members = static_cast<Mask>(s.members | bit(m));
    }
    return s;
  }

  void expand(const State& s) {
    for (std::size_t r = 0; r < kMembers; ++r) {
      const Worker& worker = s.workers[r];
      if (!has(s.members, r) || worker.alive == 0) continue;
      if (worker.frozen == 0 && worker.installed == s.newest) {
        start(s, r);
        copy(s, r);
        show(s, r);
      }
      finish(s, r);
      if (worker.frozen != 0 && worker.installed != s.newest) install(s, r);
      if (s.newest < options_.worlds && worker.installed == s.newest) freeze(s, r);
      crash(s, r);
    }
    if (s.newest < options_.worlds) choose(s);
  }

  void start(const State& s, std::size_t r) {
    if (!may_start(s, r)) return;
    State next = s;
    Worker& worker = next.workers[r];
    const int position = worker.started++;
    worker.slot[static_cast<std::size_t>(position % options_.window)] = 0;
    moved_ = true;
    const bool input = !has(worker.written, static_cast<std::size_t>(position)) &&
                       !has(worker.lost, static_cast<std::size_t>(position));
    if (!input) {
      last_step_ = std::to_string(r) + " starts " + std::to_string(position);
      return violate("a segment starts without its input");
    }
    visit(next, r, "starts " + std::to_string(position));
  }

  void finish(const State& s, std::size_t r) {
    if (!complete(s, r)) return;
    const auto position = static_cast<std::size_t>(s.workers[r].done);
    if (mutant(Mutant::written_before_freeze) && !has(s.workers[r].written, position)) {
      if (s.workers[r].frozen != 0) return;
      State next = s;
      next.workers[r].written = static_cast<Mask>(next.workers[r].written | bit(position));
      moved_ = true;
      return visit(next, r, "writes " + std::to_string(position));
    }
    if (!advance(s, r)) return;
    State next = s;
    const Worker& worker = s.workers[r];
    obtain(next, r, worker.installed == s.newest ? s.members : s.before);
    moved_ = true;
    visit(next, r, "finishes " + std::to_string(position));
  }

  void copy(const State& s, std::size_t r) {
    const Worker& worker = s.workers[r];
    const auto position = static_cast<std::size_t>(worker.done);
    if (worker.done >= s.copy_to || worker.done >= s.redo_from) return;
    for (std::size_t h = 0; h < kMembers; ++h) {
      const Worker& holder = s.workers[h];
      if (!has(s.members, h) || holder.alive == 0 || holder.done <= worker.done) continue;
      const auto slot = position % static_cast<std::size_t>(options_.window);
      if (holder.slot[slot] != position + 1) continue;
      if (mutant(Mutant::copy_onto_input) && !has(worker.lost, position)) {
        State next = s;
        next.workers[r].lost = static_cast<Mask>(next.workers[r].lost | bit(position));
        moved_ = true;
        visit(next, r, "has half a copy of " + std::to_string(position));
        continue;
      }
      if (!advance(s, r)) continue;
      State next = s;
      obtain(next, r, holder.from[position]);
      moved_ = true;
      visit(next, r, "copies " + std::to_string(position) + " from " + std::to_string(h));
    }
  }

  /// The handle of a shut collective completes: its results are given to the caller.
  void show(const State& s, std::size_t r) {
    const int floor = mutant(Mutant::no_shut) ? s.workers[r].done : floor_of(s);
    for (std::size_t c = 0; c < options_.collectives.size(); ++c) {
      if (options_.collectives[c] != Ending::shut) continue;
      const int begin = begin_of(static_cast<int>(c));
      if (floor < begin + options_.segments) continue;
      if (has(s.workers[r].written, static_cast<std::size_t>(begin))) continue;
      State next = s;
      write(next.workers[r], begin, begin + options_.segments);
      moved_ = true;
      visit(next, r, "shows collective " + std::to_string(c));
    }
  }

  void freeze(const State& s, std::size_t r) {
    if (s.workers[r].frozen != 0) return;
    State next = s;
    Worker& worker = next.workers[r];
    worker.frozen = 1;
    worker.report_started = worker.started;
    worker.report_done = worker.done;
    visit(next, r, "freezes");
  }

  void crash(const State& s, std::size_t r) {
    // A death in the last World only keeps others from moving.
    if (s.crashes == options_.crashes || s.newest == options_.worlds) return;
    State next = s;
    next.workers[r].alive = 0;
    ++next.crashes;
    visit(next, r, "dies");
  }

  void install(const State& s, std::size_t r) {
    State next = s;
    Worker& worker = next.workers[r];
    if (s.counts[r] < reported_done(s, r)) {  // A collective is restarted.
      for (std::size_t p = s.counts[r]; p < kPositions; ++p)
        worker.from[p] = 0;
      worker.done = s.counts[r];
    }
    worker.started = std::max(s.redo_from, s.counts[r]);
    worker.frozen = 0;
    worker.installed = s.newest;
    moved_ = true;
    visit(next, r, "installs World " + std::to_string(s.newest));
  }

  /// The next World: any set of members that have reported.
  void choose(const State& s) {
    Mask reporters = 0;
    for (std::size_t m = 0; m < kMembers; ++m) {
      const Worker& worker = s.workers[m];
      if (has(s.members, m) && worker.frozen != 0 && worker.installed == s.newest) {
        reporters = static_cast<Mask>(reporters | bit(m));
      }
    }
    for (Mask chosen = reporters; chosen != 0; chosen = static_cast<Mask>((chosen - 1) & reporters))
      make_world(s, chosen);
  }

  void make_world(const State& s, Mask chosen) {
    std::vector<LaneReport> reports;
    std::vector<std::int32_t> old_ranks;
    std::vector<std::size_t> who;
    for (std::size_t m = 0; m < kMembers; ++m) {
      if (!has(chosen, m)) continue;
      reports.push_back(report_of(s, m));
      old_ranks.push_back(static_cast<std::int32_t>(m));
      who.push_back(m);
    }
    const auto plan = plan_resolution(reports, old_ranks, layout_.window);
    last_step_ = "the reporters are to become World " + std::to_string(s.newest + 1);
    if (!plan) return violate(plan.error().message);

    State next = s;
    next.before = s.members;
    next.redo_before = s.redo_from;
    next.members = chosen;
    ++next.newest;
    next.counts.fill(0);
    for (std::size_t i = 0; i < who.size(); ++i)
      next.counts[who[i]] = static_cast<Byte>(plan->done[i]);
    take_plan(next, *plan, s);
    for (std::size_t m = 0; m < kMembers; ++m) {
      if (!has(chosen, m)) std::memset(&next.workers[m], 0, sizeof(Worker));
    }
    visit(next, who.front(), "and others become World " + std::to_string(next.newest));
  }

  [[nodiscard]] int reported_done(const State& s, std::size_t m) const {
    return mutant(Mutant::no_freeze) ? s.workers[m].report_done : s.workers[m].done;
  }

  [[nodiscard]] LaneReport report_of(const State& s, std::size_t m) const {
    const Worker& worker = s.workers[m];
    const bool goes_on = mutant(Mutant::no_freeze);
    LaneReport report;
    report.done = goes_on ? worker.report_done : worker.done;
    report.started = goes_on ? worker.report_started : worker.started;
    report.floor = static_cast<std::uint64_t>(floor_of(s));
    const std::uint64_t to = std::max(report.done, report.started);
    for (std::size_t c = 0; c < options_.collectives.size(); ++c) {
      const auto begin = static_cast<std::uint64_t>(begin_of(static_cast<int>(c)));
      const std::uint64_t end = begin + static_cast<std::uint64_t>(options_.segments);
      if (end <= report.floor || begin >= to) continue;
      report.collectives.push_back({{begin, end}, options_.collectives[c], {}, {}});
    }
    return report;
  }

  /// Notes the plan: a row of copies, then a row of redoes.
  void take_plan(State& next, const LanePlan& plan, const State& s) {
    std::uint64_t redo = plan.next, copy = 0;
    bool redoes = false, copies = false, apart = false;
    for (const Resolved& resolved : plan.collectives) {
      if (!resolved.copy.empty()) {
        if (redoes) violate("a copy behind a redo");
        copy = resolved.copy.end;
        copies = true;
      }
      if (resolved.redo.empty()) continue;
      apart = apart || (copies && resolved.copy.empty());
      if (!redoes) redo = resolved.redo.begin;
      redoes = true;
    }
    for (std::size_t m = 0; m < kMembers; ++m) {
      if (has(next.members, m) && next.counts[m] < reported_done(s, m)) {
        found_.restarted_whole = true;
      }
      if (has(s.members, m) && s.workers[m].done < s.copy_to) found_.plan_cut_short = true;
    }
    found_.plan_with_both = found_.plan_with_both || (copies && redoes);
    found_.both_apart = found_.both_apart || apart;
    if (mutant(Mutant::no_copy) && copies) {
      redo = *std::min_element(plan.done.begin(), plan.done.end());
      copy = 0;
      for (Byte& count : next.counts)
        count = std::min(count, static_cast<Byte>(redo));
    }
    next.copy_to = static_cast<Byte>(copy);
    next.redo_from = static_cast<Byte>(redo);
  }

  // ---- effects

  [[nodiscard]] bool advance(const State& s, std::size_t r) const {
    const Worker& worker = s.workers[r];
    FreezeWord word(Epoch(worker.installed), worker.done);
    if (worker.frozen != 0 && !mutant(Mutant::no_freeze)) word.freeze(Epoch(worker.installed));
    return word.advance();
  }

  static void write(Worker& worker, int begin, int end) {
    for (int p = begin; p < end; ++p)
      worker.written = static_cast<Mask>(worker.written | bit(static_cast<std::size_t>(p)));
  }

  /// Member r is done with its next position.
  void obtain(State& s, std::size_t r, Mask contributors) {
    Worker& worker = s.workers[r];
    const int position = worker.done++;
    const auto p = static_cast<std::size_t>(position);
    worker.from[p] = contributors;
    worker.slot[p % static_cast<std::size_t>(options_.window)] = static_cast<Byte>(position + 1);
    if (ending_of(position) == Ending::halves) write(worker, position, position + 1);
    // A collective that may restart is written when all of it is here.
    if (ending_of(position) == Ending::whole && worker.done % options_.segments == 0) {
      write(worker, worker.done - options_.segments, worker.done);
    }
  }

  // ---- bookkeeping

  /// Forgets what no rule looks at any more, so that states that behave alike are the same.
  void forget(State& s) const {
    const int lowest = lowest_of(s);
    if (s.copy_to <= lowest) s.copy_to = 0;
    if (s.redo_from <= lowest) s.redo_from = 0;
    for (std::size_t m = 0; m < kMembers; ++m) {
      Worker& worker = s.workers[m];
      if (worker.installed == s.newest) s.counts[m] = 0;
      std::fill_n(worker.from.begin(), lowest, Mask{0});
      for (Byte& position : worker.slot) {
        if (position <= lowest) position = 0;
      }
      // What was said is what is, but for a worker that goes on.
      if (!mutant(Mutant::no_freeze)) worker.report_started = worker.report_done = 0;
    }
    if (!mutant(Mutant::no_freeze)) s.before = s.redo_before = 0;
  }

  void visit(State state, std::size_t who, const std::string& step) {
    if (!found_.violation.empty()) return;
    check(state, std::to_string(who) + " " + step);
    forget(state);
    const auto [found, added] = indices_.emplace(state, states_.size());
    if (!added) return;
    states_.push_back(&found->first);
    origins_.push_back({current_, std::to_string(who) + " " + step});
  }

  [[nodiscard]] int lowest_of(const State& s) const {
    int lowest = positions_;
    for (std::size_t m = 0; m < kMembers; ++m) {
      if (has(s.members, m)) lowest = std::min(lowest, done_in(s, m));
    }
    return lowest;
  }

  void check(const State& s, const std::string& step) {
    last_step_ = step;
    const int lowest = lowest_of(s);
    int highest = 0;
    for (std::size_t m = 0; m < kMembers; ++m) {
      if (has(s.members, m)) highest = std::max(highest, done_in(s, m));
    }
    found_.most_apart = std::max(found_.most_apart, highest - lowest);
    if (highest - lowest > options_.window) violate("members are more than a window apart");
    for (int position = lowest; position < highest; ++position)
      check_holders(s, static_cast<std::size_t>(position));
    for (std::size_t p = 0; p < static_cast<std::size_t>(positions_); ++p)
      check_contributors(s, p);
  }

  /// Whoever has what others lack can give it.
  void check_holders(const State& s, std::size_t position) {
    if (ending_of(static_cast<int>(position)) == Ending::shut) return;
    for (std::size_t m = 0; m < kMembers; ++m) {
      const Worker& worker = s.workers[m];
      if (!has(s.members, m) || done_in(s, m) <= static_cast<int>(position)) continue;
      if (worker.slot[position % static_cast<std::size_t>(options_.window)] != position + 1) {
        violate("a result that somebody lacks has left its slot");
      }
    }
  }

  void check_contributors(const State& s, std::size_t position) {
    Mask first = 0;
    for (std::size_t m = 0; m < kMembers; ++m) {
      const Worker& worker = s.workers[m];
      if (!has(s.members, m) || done_in(s, m) <= static_cast<int>(position)) continue;
      if (first == 0) first = worker.from[position];
      if (worker.from[position] != first) violate("members have different results of a position");
    }
  }

  void violate(const std::string& what) {
    if (!found_.violation.empty()) return;
    found_.violation = what;
    for (std::size_t at = current_; at != 0; at = origins_[at].parent)
      found_.trace.push_back(origins_[at].step);
    std::reverse(found_.trace.begin(), found_.trace.end());
    found_.trace.push_back(last_step_);
  }

  const ModelOptions options_;
  LaneLayout layout_;
  int positions_ = 0;
  std::unordered_map<State, std::size_t, Hash> indices_;
  std::vector<const State*> states_;  // The map's keys do not move.
  std::vector<Origin> origins_;
  std::size_t current_ = 0;
  bool moved_ = false;
  std::string last_step_;
  Exploration found_;
};

}  // namespace

Exploration explore(const ModelOptions& options, std::size_t most_states) {
  return Explorer(options).run(most_states);
}

}  // namespace hora::test
