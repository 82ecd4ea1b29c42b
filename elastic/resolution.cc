// See resolution.h. First all reports are joined to one list of collectives, then each of them is
// looked at by itself: how far its group is (`lowest`, `highest`, within its own positions), and
// whether anybody has touched it or one behind it.
#include "elastic/resolution.h"

#include <algorithm>
#include <map>
#include <string>

namespace hora {

namespace {

tl::unexpected<Error> contradiction(const std::string& what) {
  return fail(ErrorKind::protocol, "the members' reports contradict each other: " + what);
}

std::string text_of(const Positions& at) {
  return "positions " + std::to_string(at.begin) + " to " + std::to_string(at.end);
}

/// All collectives that somebody names, in order.
Result<std::vector<LaneCollective>> joined(const std::vector<LaneReport>& reports) {
  std::map<std::uint64_t, const LaneCollective*> by_begin;
  for (const LaneReport& report : reports) {
    for (const LaneCollective& collective : report.collectives) {
      if (collective.at.empty()) return contradiction("a collective without positions");
      const auto [found, added] = by_begin.emplace(collective.at.begin, &collective);
      if (!added && !(*found->second == collective)) {
        return contradiction("different collectives at " + text_of(collective.at));
      }
    }
  }
  std::vector<LaneCollective> all;
  for (const auto& [begin, collective] : by_begin) {
    if (!all.empty() && all.back().at.end != begin) {
      return contradiction("nobody names the collectives from position " +
                           std::to_string(all.back().at.end) + " to " + std::to_string(begin));
    }
    all.push_back(*collective);
  }
  return all;
}

/// How far the group is within one collective.
struct Extent {
  std::uint64_t lowest, highest;
};

Extent extent_of(const LaneCollective& collective, const std::vector<LaneReport>& reports) {
  const auto [begin, end] = collective.at;
  Extent extent{end, begin};
  for (const std::int32_t member : collective.group) {
    const std::uint64_t done =
        std::clamp(reports[static_cast<std::size_t>(member)].done, begin, end);
    extent.lowest = std::min(extent.lowest, done);
    extent.highest = std::max(extent.highest, done);
  }
  return extent;
}

/// The group by places in the new World; those that are not in it are gone.
std::vector<std::int32_t> surviving(const std::vector<std::int32_t>& group,
                                    const std::vector<std::int32_t>& old_ranks) {
  std::vector<std::int32_t> places;
  for (std::size_t place = 0; place < old_ranks.size(); ++place) {
    if (group.empty() || std::find(group.begin(), group.end(), old_ranks[place]) != group.end()) {
      places.push_back(static_cast<std::int32_t>(place));
    }
  }
  return places;
}

Resolved resolve(LaneCollective collective, const Extent& extent) {
  const auto [begin, end] = collective.at;
  const bool complete = collective.ending == Ending::halves ||
                        (collective.ending == Ending::whole && extent.highest == end) ||
                        (collective.ending == Ending::shut && extent.lowest == end);
  Resolved resolved{std::move(collective), {}, {}};
  resolved.redo = {complete ? extent.highest : begin, end};
  if (complete) resolved.copy = {std::min(extent.lowest, extent.highest), extent.highest};
  return resolved;
}

}  // namespace

std::size_t LanePlan::giver(const Resolved& resolved, std::uint64_t position) const {
  std::vector<std::size_t> holders;
  for (const std::int32_t member : resolved.collective.group) {
    const auto place = static_cast<std::size_t>(member);
    if (done[place] > position) holders.push_back(place);
  }
  // plan_resolution made the range of what somebody holds.
  return holders[static_cast<std::size_t>(position % holders.size())];
}

Result<LanePlan> plan_resolution(const std::vector<LaneReport>& reports,
                                 const std::vector<std::int32_t>& old_ranks, std::uint32_t window) {
  if (reports.empty() || reports.size() != old_ranks.size()) {
    return fail(ErrorKind::protocol, "a World has members, and each of them reports");
  }
  LanePlan plan;
  std::uint64_t touched_to = 0;  // The end of what anybody has started.
  for (const LaneReport& report : reports) {
    plan.done.push_back(report.done);
    touched_to = std::max({touched_to, report.done, report.started});
  }
  const std::uint64_t lowest = *std::min_element(plan.done.begin(), plan.done.end());
  if (touched_to - lowest > window) {
    return contradiction("one is " + std::to_string(touched_to - lowest) +
                         " positions ahead of another, the window is " + std::to_string(window));
  }
  auto all = joined(reports);
  if (!all) return fail(all.error());
  const std::uint64_t known_from = all->empty() ? touched_to : all->front().at.begin;
  const std::uint64_t known_to = all->empty() ? touched_to : all->back().at.end;
  if (known_from > lowest || known_to < touched_to) {
    return contradiction("nobody names all collectives from position " + std::to_string(lowest) +
                         " to " + std::to_string(touched_to));
  }

  plan.next = touched_to;
  for (LaneCollective& collective : *all) {
    if (collective.at.end <= lowest) continue;  // Everybody is done with it.
    if (collective.at.begin >= touched_to) break;
    collective.group = surviving(collective.group, old_ranks);
    const Extent extent = extent_of(collective, reports);
    Resolved resolved = resolve(std::move(collective), extent);
    for (const std::int32_t member : resolved.collective.group) {
      std::uint64_t& done = plan.done[static_cast<std::size_t>(member)];
      if (resolved.redo.empty() || done <= resolved.redo.begin) continue;
      if (done > resolved.redo.end) {
        return contradiction("one went on while others lacked " + text_of(resolved.redo));
      }
      done = resolved.redo.begin;  // Restarted: what was done of it was shown to nobody.
    }
    plan.next = resolved.collective.at.end;
    plan.collectives.push_back(std::move(resolved));
  }
  return plan;
}

}  // namespace hora
