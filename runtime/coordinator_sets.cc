// What changes who takes part: process sets that come and go, and ranks that join.
//
// A change of sets is a request of all ranks. Its answer stands in the stream behind everything
// that was complete before it, so every rank changes its table at the same place. A rank sends
// nothing more for a set once it has asked for its removal, and a removal needs all ranks; so when
// one is answered, whatever is still incomplete in the set can never become complete and fails.
//
// A join is no request like others: nobody disagrees about it, it has no shape, and it changes what
// "complete" means for everything else. The table is told, and completes what waited for that rank
// alone. When the last rank has joined nothing is incomplete any more; the joins are answered when
// all that is answered too, and all begin anew.
#include <algorithm>
#include <utility>

#include "runtime/agreement.h"
#include "runtime/base/check.h"
#include "runtime/coordinator_state.h"

namespace hora {

Result<void> Coordinator::State::on_join(Rank from, const SharedRequest& request, TimePoint now) {
  const auto complete = table.join(from);
  if (!complete) return fail(complete.error());
  stall.on_submission(from, request, now);
  Request last = *request;
  last.root = from.value;
  last_join = std::make_shared<const Request>(std::move(last));
  for (const PendingId id : *complete)
    on_complete(id, now);
  if (table.joins() == options.size) released = completions;
  return {};
}

void Coordinator::State::answer_join() {
  if (table.joins() < options.size) return;
  if (!instant.empty() || !ready.empty() || !set_changes.empty()) return;
  table.end_joins();
  announce(std::move(last_join));
}

void Coordinator::State::answer_set_changes() {
  while (!set_changes.empty() && within_budget() && apply_set_change(set_changes.front())) {
    set_changes.erase(set_changes.begin());
  }
}

/// False: not yet.
bool Coordinator::State::apply_set_change(PendingId id) {
  const SharedRequest request = table.at(id).request;
  const bool adds = request->kind == Kind::add_set;
  auto error = fault_of(id);
  if (!error && adds) error = sets.refuse(request->members);
  if (!error && !adds && (request->set == kGlobalSet || !sets.find(request->set))) {
    error = Error{ErrorKind::invalid_argument,
                  "process set " + std::to_string(request->set.value) + " cannot be removed",
                  std::nullopt};
  }
  if (error) {
    answer_error(id, *error);
    return true;
  }
  if (adds) {
    sets.add(sets.free_id(), request->members);
  } else {
    if (is_due(request->set)) return false;
    fail_incomplete(*sets.find(request->set));
    sets.remove(request->set);
  }
  table.remove(id);
  announce(request);
  return true;
}

/// Tensors of the set are complete and not answered.
bool Coordinator::State::is_due(SetId set) const {
  const auto of_set = [&](PendingId id) { return table.at(id).request->set == set; };
  return std::any_of(instant.begin(), instant.end(), of_set) ||
         std::any_of(ready.begin(), ready.end(), of_set);
}

void Coordinator::State::fail_incomplete(const ProcessSet& removed) {
  PendingId next = kNoPending;
  for (PendingId id = table.oldest(); id != kNoPending; id = next) {
    next = table.at(id).newer;
    if (table.at(id).set->id != removed.id) continue;
    const SharedRequest request = table.at(id).request;
    const Error error{ErrorKind::mismatch,
                      "process set " + std::to_string(removed.id.value) +
                          " was removed while tensor '" + name_text(request->name) +
                          "' waited for " + ranks_text(table.missing_of(id)) +
                          "; wait for all collectives of a process set before it is removed",
                      std::nullopt};
    if (!request->group.empty()) {
      // Members that were complete wait for this one in vain.
      const auto waiting = groups.fail(group_key(*request), request->group_size, error);
      for (const PendingId member : waiting.members)
        answer_error(member, error);
    }
    answer_error(id, error);
  }
}

/// An answer that no slot is worth.
void Coordinator::State::announce(SharedRequest request) {
  WireResponse& response = outgoing.responses.emplace_back();
  response.lane = kSmallLane;
  body_bytes += kRequestOverhead + request->name.size() + 4 * request->members.size();
  response.tensors.push_back({std::move(request), kNoSlot, {}});
}

}  // namespace hora
