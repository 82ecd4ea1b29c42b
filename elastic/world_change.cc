// See world_change.h. The sole maker keeps who is present and what they have reported; everything
// else follows from that.
//
// Two members that cannot reach each other, but live, are tried once more in a World of the same
// members: new connections may be made where old ones broke. Whoever cannot make them ends.
#include "elastic/world_change.h"

#include <algorithm>

namespace hora {

namespace {

/// Places on hosts, counted anew; hosts are told apart by their names.
void renumber_hosts(std::vector<Member>& members) {
  std::map<std::string, int> sizes, hosts_with;
  for (Member& member : members)
    member.local_rank = sizes[member.host_name]++;
  std::map<int, int> cross_sizes;
  for (Member& member : members) {
    member.local_size = sizes[member.host_name];
    member.cross_rank = cross_sizes[member.local_rank]++;
  }
  for (Member& member : members)
    member.cross_size = cross_sizes[member.local_rank];
}

/// What one member has been told and another has not.
std::vector<KeptAnswer> missed_answers(const std::map<Rank, WorkerReport>& reports) {
  std::uint64_t least_heard = ~std::uint64_t{0};
  for (const auto& [rank, report] : reports)
    least_heard = std::min(least_heard, report.heard);
  std::map<std::uint64_t, KeptAnswer> missed;
  for (const auto& [rank, report] : reports) {
    for (const KeptAnswer& answer : report.answers) {
      if (answer.message > least_heard) missed.emplace(answer.message, answer);
    }
  }
  std::vector<KeptAnswer> answers;
  for (auto& [message, answer] : missed)
    answers.push_back(std::move(answer));
  return answers;
}

class SoleWorldMaker final : public WorldMaker {
 public:
  SoleWorldMaker(World world, const WorldMakerOptions& options)
      : world_(std::move(world)), options_(options) {
    for (int rank = 0; rank < world_.size(); ++rank)
      present_.insert(Rank(rank));
  }

  [[nodiscard]] bool elastic() const override {
    return options_.min_size > 0 && static_cast<int>(present_.size()) > options_.min_size;
  }

  Actions on_lost(Rank rank, const std::string& text, TimePoint now) override {
    if (over_ || present_.erase(rank) == 0) return {};
    reports_.erase(rank);
    add_reason(text);
    return go_on(now);
  }

  Actions on_left(Rank rank, TimePoint now) override {
    if (over_ || present_.erase(rank) == 0) return {};
    left_.insert(rank);
    reports_.erase(rank);
    // Nobody is missed until a change is under way.
    return deadline_ ? go_on(now) : Actions{};
  }

  Actions on_suspect(Rank from, Rank about, const std::string& text, TimePoint now) override {
    if (over_ || deadline_ || !present_.contains(from)) return {};
    if (left_.contains(about)) {
      add_reason(world_.describe(about) + " has left");
      return go_on(now);
    }
    if (!present_.contains(about)) return {};
    add_reason(world_.describe(from) + " cannot reach " + world_.describe(about) + ": " + text);
    return go_on(now);
  }

  Actions on_report(Rank rank, WorkerReport report, TimePoint now) override {
    if (over_ || !deadline_ || !present_.contains(rank) || report.epoch != world_.epoch) return {};
    reports_.emplace(rank, std::move(report));
    return decide(now);
  }

  Actions on_tick(TimePoint now) override {
    if (over_ || !deadline_ || now < *deadline_) return {};
    Actions out;
    for (auto it = present_.begin(); it != present_.end();) {
      const Rank rank = *it;
      if (reports_.contains(rank)) {
        ++it;
        continue;
      }
      const std::string text = world_.describe(rank) + " did not say how far it had come within " +
                               std::to_string(to_ms(options_.report_limit)) + " ms";
      add_reason(text);
      out.push_back({ChangeAction::Kind::leave_out, rank, text, nullptr});
      it = present_.erase(it);
    }
    if (!enough()) {
      give_up(out);
      return out;
    }
    Actions decided = decide(now);
    out.insert(out.end(), decided.begin(), decided.end());
    return out;
  }

  [[nodiscard]] std::optional<TimePoint> next_deadline() const override {
    return over_ ? std::nullopt : deadline_;
  }

 private:
  [[nodiscard]] bool enough() const {
    return options_.min_size > 0 && static_cast<int>(present_.size()) >= options_.min_size;
  }

  void add_reason(const std::string& text) { reason_ += (reason_.empty() ? "" : "; ") + text; }

  void give_up(Actions& out) {
    over_ = true;
    out.push_back({ChangeAction::Kind::give_up, Rank(-1), reason_, nullptr});
  }

  /// Asks whoever has not been asked, or decides if all have answered.
  Actions go_on(TimePoint now) {
    Actions out;
    if (!enough()) {
      give_up(out);
      return out;
    }
    if (!deadline_) {
      deadline_ = now + options_.report_limit;
      for (const Rank rank : present_)
        out.push_back({ChangeAction::Kind::freeze, rank, reason_, nullptr});
      return out;
    }
    return decide(now);
  }

  Actions decide(TimePoint) {
    if (reports_.size() < present_.size()) return {};
    Actions out;
    auto next = make_world(world_, reports_, reason_);
    if (!next) {
      add_reason(next.error().message);
      give_up(out);
      return out;
    }
    over_ = true;
    out.push_back({ChangeAction::Kind::install, Rank(-1), reason_,
                   std::make_shared<const NextWorld>(std::move(*next))});
    return out;
  }

  const World world_;
  const WorldMakerOptions options_;
  std::set<Rank> present_, left_;
  std::map<Rank, WorkerReport> reports_;
  std::optional<TimePoint> deadline_;  ///< Of the reports; set once the members are asked.
  std::string reason_;
  bool over_ = false;
};

}  // namespace

Result<NextWorld> make_world(const World& old, const std::map<Rank, WorkerReport>& reports,
                             std::string reason) {
  NextWorld next;
  next.world.job = old.job;
  next.world.epoch = Epoch(old.epoch.value + 1);
  next.world.min_size = old.min_size;
  next.reason = std::move(reason);
  if (reports.empty()) return fail(ErrorKind::protocol, "a World has members");
  const std::size_t lanes = reports.begin()->second.lanes.size();
  const std::uint32_t window = reports.begin()->second.window;
  for (const auto& [rank, report] : reports) {
    if (report.lanes.size() != lanes || report.window != window) {
      return fail(ErrorKind::protocol, "the members report about different lanes");
    }
    next.world.members.push_back(old.members[index_of(rank)]);
    next.old_ranks.push_back(rank.value);
  }
  renumber_hosts(next.world.members);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::vector<LaneReport> said;
    for (const auto& [rank, report] : reports)
      said.push_back(report.lanes[lane]);
    auto plan = plan_resolution(said, next.old_ranks, window);
    if (!plan) return fail(plan.error());
    next.lanes.push_back(std::move(*plan));
  }
  next.answers = missed_answers(reports);
  return next;
}

std::unique_ptr<WorldMaker> make_sole_world_maker(World world, const WorldMakerOptions& options) {
  return std::make_unique<SoleWorldMaker>(std::move(world), options);
}

}  // namespace hora
