// The engine between two Worlds: a member is lost, and the others go on.
//
//   freeze      the executor is taken apart, so nothing is finished any more; how far each lane is,
//               and the responses that somebody may lack, go to whoever makes Worlds
//   next World  what was in flight is brought to the form that the plan says: responses that never
//               came here are learned from it, runs that nobody has touched are taken back. Calls
//               that are not answered will be asked for again, of a coordinator that knows nothing
//   building    the old session is thrown away, the new one is built, while the engine goes on
//               stepping (engine_renewal.cc)
//   running     once all agree on who shares memory, a new executor goes on: copies are sent to
//               those who lack results, and what nobody has is run by the members that are left
//
// Another death may come at any of these moments. Then it begins again with what there is: the form
// in which the lanes wait (LaneRemains) is that in which they are reported.
//
// Members are named by the ranks with which they were started, where a name must outlive a World.
#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine.h"
#include "runtime/run_anchor.h"
#include "runtime/run_layout.h"
#include "runtime/slot_set.h"
#include "runtime/wire.h"

namespace hora {

namespace {

/// Answers that are kept for members who may have missed them.
constexpr std::size_t kMostAnswersKept = 1024;

}  // namespace

// ---- while the World lasts ----------------------------------------------------------------------

void Engine::keep_response(CollectiveRun& run, const Response& response) const {
  auto anchor = std::make_shared<RunAnchor>();
  anchor->selection = selection_;
  anchor->kept.response = response;
  anchor->kept.segment_bytes = run.segment_bytes;
  anchor->kept.ranks = *members_;
  if (response.kind == Kind::broadcast) {
    anchor->kept.response.root = (*members_)[static_cast<std::size_t>(response.root)];
  }
  run.anchor = std::move(anchor);
}

/// What is answered without a collective leaves no trace in any lane.
void Engine::keep_answers(const WorkerNegotiator::Decoded& decoded) {
  RootMessage message;
  for (const Response& response : decoded.responses) {
    if (response.error.empty()) continue;
    WireResponse& kept = message.responses.emplace_back();
    kept.error = response.error;
    kept.error_kind = response.error_kind;
    for (const ResponseTensor& tensor : response.tensors)
      kept.tensors.push_back({tensor.request, kNoSlot, {}});
  }
  message.stop = decoded.stop;
  if (message.empty()) return;
  answers_.push_back({heard_, encode(message)});
  if (answers_.size() > kMostAnswersKept) answers_.pop_front();
}

// ---- freeze -------------------------------------------------------------------------------------

void Engine::freeze(const ControlEvent& event) {
  if (succession_ == nullptr || event.epoch != session_.world.epoch) return;
  if (phase_ == Phase::frozen) return;
  log_.warning("a member is lost, this rank stands still: " + event.text);
  if (executor_) {
    tasks_run_ = executor_->tasks_run();
    remains_ = executor_->take_apart();
    finish_runs();
    segments_before_ += executor_->segments_finished();
    payload_before_ += executor_->payload_bytes_sent();
    executor_.reset();
  } else if (remains_.empty()) {
    remains_.resize(session_.layout.lanes);
  }
  phase_ = Phase::frozen;
  agreed_ = false;
  suspicion_.reset();
  suspected_ = false;
  early_copies_.clear();
  partial_copies_.clear();
  succession_->frozen(make_report());
}

WorkerReport Engine::make_report() const {
  WorkerReport report;
  report.epoch = session_.world.epoch;
  report.window = session_.layout.window;
  report.heard = heard_;
  report.answers.assign(answers_.begin(), answers_.end());
  for (const LaneRemains& remains : remains_)
    report.lanes.push_back(report_of(remains));
  return report;
}

LaneReport Engine::report_of(const LaneRemains& remains) const {
  LaneReport report{remains.done, remains.started, remains.floor, {}};
  for (const PlacedRun& placed : remains.runs) {
    if (placed.first >= std::max(remains.done, remains.started)) break;
    const KeptResponse& kept = anchor_of(*placed.run).kept;
    report.collectives.push_back({{placed.first, placed.end()}, ending_of(kept), {}, encode(kept)});
  }
  return report;
}

// ---- the next World -----------------------------------------------------------------------------

void Engine::adopt(const ControlEvent& event, TimePoint now) {
  const NextWorld& next = *event.next;
  if (phase_ != Phase::frozen || next.world.epoch <= session_.world.epoch) return;
  const bool fits = next.lanes.size() == remains_.size() &&
                    std::all_of(next.lanes.begin(), next.lanes.end(), [&](const LanePlan& plan) {
                      return plan.done.size() == next.world.members.size();
                    });
  if (!fits) {
    return stop(
        Error{ErrorKind::protocol, "the next World has a plan for other lanes", std::nullopt});
  }
  next_ = event.next;
  adopt_calls();
  for (std::size_t lane = 0; lane < remains_.size() && !stopped_; ++lane)
    adopt_lane(lane);
  if (stopped_) return;

  drop_session();
  session_.world = next.world;
  log_ = Log(log_level_from(config_.log_level), "rank " + std::to_string(next.world.self.value) +
                                                    " epoch " +
                                                    std::to_string(next.world.epoch.value));
  const NegotiationOptions options = negotiation_options(config_, next.world.size());
  negotiator_.emplace(next.world.self, options);
  coordinator_ = is_root() ? std::make_unique<Coordinator>(options) : nullptr;
  votes_.clear();
  apply_answers(now);
  heard_ = 0;
  answers_.clear();
  if (stopped_) return;
  phase_ = Phase::building;
  build_again_ = now;
  succession_->start_session(session_.world);
}

/// Calls that were submitted so far spoke of the ranks of the old World.
void Engine::adopt_calls() {
  const std::lock_guard lock(mail_mutex_);
  for (Call& call : inbox_.calls) {
    const TensorKey key = key_of(call->request());
    table_.emplace(key, std::move(call));
  }
  inbox_.calls.clear();
  const auto adopt = [this](CompletionImpl& call) {
    // Rows for members that there are no more go nowhere.
    if (call.request().kind == Kind::alltoall) call.keep_rows(next_->old_ranks);
    if (call.request().kind != Kind::broadcast) return;
    const auto root = static_cast<std::size_t>(call.request().root);
    const bool known = root < world_->members.size();
    call.set_root(known ? rank_of_first(next_->world, world_->members[root].first_rank)
                        : next_->world.size());
  };
  for (auto& [key, call] : table_)
    adopt(*call);
  for (const std::vector<Call>& batch : held_) {
    for (const Call& call : batch)
      adopt(*call);
  }
  world_ = std::make_shared<const World>(next_->world);
  sets_ = ProcessSets(next_->world.size());
}

void Engine::adopt_lane(std::size_t lane) {
  LaneRemains& remains = remains_[lane];
  const LanePlan& plan = next_->lanes[lane];
  std::vector<PlacedRun> runs;
  for (PlacedRun& placed : remains.runs) {
    if (placed.first < plan.next) {
      runs.push_back(std::move(placed));
    } else {
      give_back(placed);
    }
  }
  remains.runs = std::move(runs);
  for (const Resolved& resolved : plan.collectives) {
    const bool here = std::any_of(
        remains.runs.begin(), remains.runs.end(),
        [&](const PlacedRun& placed) { return placed.first == resolved.collective.at.begin; });
    if (!here && !make_missing(resolved, remains)) return;
    if (!resolved.redo.empty()) fail_lost_parts(resolved, remains);
  }
  std::sort(remains.runs.begin(), remains.runs.end(),
            [](const PlacedRun& a, const PlacedRun& b) { return a.first < b.first; });
  for (const PlacedRun& placed : remains.runs) {
    // A private one that was not shown yet: now everybody has its own.
    if (placed.end() <= plan.done[index_of(next_->world.self)]) finish_run(*placed.run);
  }
  remains.done = remains.started = plan.done[index_of(next_->world.self)];
  remains.floor = *std::min_element(plan.done.begin(), plan.done.end());
  remains.results.erase(remains.results.begin(), remains.results.lower_bound(remains.floor));
}

/// What cannot be redone without the lost - the parts of others in a private result, a broadcast
/// without its root - fails, on all members alike: they have the same plan. Its positions are
/// passed.
void Engine::fail_lost_parts(const Resolved& resolved, LaneRemains& remains) {
  CollectiveRun& run =
      *std::find_if(remains.runs.begin(), remains.runs.end(), [&](const PlacedRun& placed) {
         return placed.first == resolved.collective.at.begin;
       })->run;
  const KeptResponse& kept = anchor_of(run).kept;
  const Response& response = kept.response;
  const bool is_private = ending_of(kept) == Ending::shut;
  const bool without_root = response.kind == Kind::broadcast &&
                            rank_of_first(next_->world, response.root) == next_->world.size();
  if (kept.failed || (!is_private && !without_root)) return;
  const Error error{ErrorKind::peer_lost,
                    "a rank was lost during the " + std::string(to_string(response.kind)) +
                        " of '" + name_text(response.tensors.front().request->name) +
                        (is_private ? "', whose parts nobody else has; submit it again"
                                    : "': its root; what has come of it is undefined"),
                    std::nullopt};
  auto anchor = std::make_shared<RunAnchor>(anchor_of(run));
  anchor->kept.failed = true;
  const auto active = active_.find(run.ticket);
  HORA_CHECK(active != active_.end(), "what is not done is active");
  for (const Call& call : active->second.calls) {
    end_span(call->request());
    finish_call(*call, fail(error));
  }
  active_.erase(active);
  run.anchor = std::move(anchor);
}

/// Nobody has begun it: it will be negotiated again, as of the ranks of the next World.
void Engine::give_back(const PlacedRun& placed) {
  const KeptResponse& kept = anchor_of(*placed.run).kept;
  if (kept.failed) return;
  std::vector<std::int32_t> places;  // Of those who are left, among the ranks that it was for.
  for (std::size_t i = 0; i < kept.ranks.size(); ++i) {
    if (rank_of_first(next_->world, kept.ranks[i]) < next_->world.size()) {
      places.push_back(static_cast<std::int32_t>(i));
    }
  }
  const auto found = active_.find(placed.run->ticket);
  HORA_CHECK(found != active_.end(), "a run that has not begun is active");
  for (Call& call : found->second.calls) {
    const Request& request = call->request();
    if (request.kind == Kind::alltoall) call->keep_rows(places);
    if (request.kind == Kind::broadcast) {
      call->set_root(rank_of_first(next_->world, kept.response.root));
    }
    end_span(request);
    begin_span(request, negotiate_phase(request));
    const TensorKey key = key_of(request);
    table_.emplace(key, std::move(call));
  }
  active_.erase(found);
}

/// Others have got a response that never came here. False: the engine has stopped.
bool Engine::make_missing(const Resolved& resolved, LaneRemains& remains) {
  auto kept = decode_kept(resolved.collective.response);
  if (!kept) {
    stop(kept.error());
    return false;
  }
  Calls calls;
  for (const ResponseTensor& tensor : kept->response.tensors) {
    const auto found = table_.find(key_of(*tensor.request));
    if (found == table_.end()) {
      stop(Error{ErrorKind::protocol,
                 "the others run '" + name_text(tensor.request->name) +
                     "', which this rank has not submitted",
                 std::nullopt});
      for (Call& call : calls)
        call->complete(fail(*stopped_));
      return false;
    }
    end_span(*tensor.request);
    begin_span(*tensor.request, to_string(kept->response.kind));
    calls.push_back(std::move(found->second));
    table_.erase(found);
  }
  auto run = std::make_shared<CollectiveRun>();
  run->ticket = next_ticket_++;
  Response response = kept->response;
  response.set = sets_.global();
  response.root = rank_of_first(session_.world, kept->response.root);
  if (!response.codec.empty() && kept->ranks.size() > 1) {
    lay_out_encoded_run(*run, response, calls);
  } else if (has_extents(response.kind)) {
    // Nobody is done with any of it without this rank, so it is redone, or fails: only its length
    // is kept, as of those who began it.
    run->dtype = response.dtype;
    run->op = response.op;
    lay_out_extents(response, -1, static_cast<int>(kept->ranks.size()), *run);
    run->extents.clear();
  } else if (!lay_out_run(*run, response, calls)) {
    return false;
  }
  run->segment_bytes = kept->segment_bytes;
  const Positions at = resolved.collective.at;
  if (at.begin + run->segments() != at.end) {
    stop(Error{ErrorKind::protocol, "the plan of a World has a collective of another size",
               std::nullopt});
    for (Call& call : calls)
      call->complete(fail(*stopped_));
    return false;
  }
  auto anchor = std::make_shared<RunAnchor>();
  anchor->kept = std::move(*kept);
  run->anchor = std::move(anchor);
  active_.emplace(run->ticket, ActiveRun{response.kind, response.set, std::move(calls)});
  remains.runs.push_back({at.begin, std::move(run)});
  return true;
}

/// A broadcast whose root is lost is negotiated with a root that there is not, so that it fails on
/// all members; here it is said why.
Error Engine::error_of(const Request& request, const Response& response) const {
  if (request.kind == Kind::broadcast && request.root >= session_.world.size()) {
    return {
        ErrorKind::peer_lost,
        "a rank was lost before the broadcast of '" + name_text(request.name) + "' began: its root",
        std::nullopt};
  }
  return {response.error_kind, response.error, std::nullopt};
}

void Engine::apply_answers(TimePoint now) {
  for (const KeptAnswer& answer : next_->answers) {
    if (answer.message <= heard_) continue;
    RootMessage message;
    if (!decode(answer.bytes, message)) continue;
    for (const WireResponse& response : message.responses) {
      for (const NewTensor& tensor : response.tensors) {
        const auto found = table_.find(key_of(*tensor.request));
        if (found == table_.end()) continue;
        const Call call = std::move(found->second);
        table_.erase(found);
        end_span(call->request());
        finish_call(*call, fail(response.error_kind, response.error));
      }
    }
    if (!message.stop) continue;
    if (message.stop->kind != ErrorKind::shutdown) return stop(*message.stop);
    ending_until_ = now + std::chrono::milliseconds(config_.shutdown_timeout_ms);
    end(*message.stop);
  }
}

void Engine::drop_session() {
  session_.links.clear();  // Before their transports.
  session_.witnesses.clear();
  session_.watch.reset();
  session_.transports.clear();
}

}  // namespace hora
