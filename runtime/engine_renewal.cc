// The engine goes on in the next World: its session is built, its executor begins where the plan
// says, and copies of results go to those who lack them.
//
// A run that is redone gets a template, a divisor and contributors of the members that are left;
// its segments stay as they were cut. What has failed is passed.
//
// A copy travels in parts of control messages, and may come before the executor is there.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine.h"
#include "runtime/run_anchor.h"
#include "runtime/run_layout.h"
#include "runtime/slot_set.h"

namespace hora {

namespace {

/// How often a session that is being built is looked at, should its wake be lost.
constexpr Duration kBuildPause = 10ms;
constexpr std::size_t kCopyPart = std::size_t{1} << 20;
constexpr std::uint64_t kCopyMagic = 0x79706f4361726f48;  // "HoraCopy"

/// Lane, position, contributors and length, then a part of the bytes; at least one, if it is empty.
std::vector<std::vector<std::byte>> copy_messages(std::uint16_t lane, std::uint64_t position,
                                                  const SegmentResult& result) {
  std::vector<std::vector<std::byte>> messages;
  std::size_t at = 0;
  do {
    const std::size_t part = std::min(kCopyPart, result.bytes.size() - at);
    ByteWriter out(messages.emplace_back());
    out.bytes(std::as_bytes(std::span(&kCopyMagic, 1)));
    for (const std::uint64_t number :
         {std::uint64_t{lane}, position, std::uint64_t{result.contributors->size()}}) {
      out.varint(number);
    }
    for (const std::int32_t rank : *result.contributors)
      out.varint(static_cast<std::uint64_t>(rank));
    out.varint(result.bytes.size());
    out.bytes(std::span(result.bytes).subspan(at, part));
    at += part;
  } while (at < result.bytes.size());
  return messages;
}

}  // namespace

// ---- the new session ----------------------------------------------------------------------------

bool Engine::go_on_building(TimePoint now) {
  auto session = succession_->try_session();
  if (!session) {
    stop(session.error());
    return true;
  }
  if (!*session) {
    build_again_ = now + kBuildPause;
    return false;
  }
  install(std::move(*session));
  return true;
}

/// A group is negotiated as a whole; what is left of one of which a part was answered goes alone.
void Engine::split_groups() {
  std::map<std::string, std::int32_t> waiting;
  for (const auto& [key, call] : table_)
    ++waiting[call->request().group];
  for (const auto& [key, call] : table_) {
    const Request& request = call->request();
    if (!request.group.empty() && waiting[request.group] < request.group_size) call->leave_group();
  }
}

void Engine::install(std::unique_ptr<Session> session) {
  session_ = std::move(*session);
  // Before anything can come over the links they know what is done here.
  for (const auto& link : session_.links) {
    for (std::uint16_t lane = 0; link && lane < session_.layout.lanes; ++lane)
      link->set_count(lane, remains_[lane].done);
  }
  phase_ = Phase::running;
  split_groups();
  for (const auto& [key, call] : table_)
    negotiator_->submit(call->request());
  if (std::exchange(flush_wanted_, false)) negotiator_->flush();
  if (shutdown_words_ && !ending_) negotiator_->shutdown(*shutdown_words_);
  start_agreement();
}

std::vector<LaneStart> Engine::lane_starts() {
  std::vector<LaneStart> starts;
  for (std::size_t lane = 0; lane < remains_.size(); ++lane) {
    LaneRemains& remains = remains_[lane];
    LaneStart& start = starts.emplace_back();
    start.done = remains.done;
    start.next = next_->lanes[lane].next;
    start.results = std::move(remains.results);
    for (const PlacedRun& placed : remains.runs) {
      if (placed.end() <= remains.done) {
        start.past.push_back(placed);
        continue;
      }
      const auto& plan = next_->lanes[lane].collectives;
      const auto resolved = std::find_if(plan.begin(), plan.end(), [&](const Resolved& one) {
        return one.collective.at.begin == placed.first;
      });
      HORA_CHECK(resolved != plan.end(), "what is not done is in the plan");
      const bool redone = !resolved->redo.empty();
      if ((redone || placed.run->schedule == nullptr) && !renew(*placed.run)) return {};
      start.runs.push_back(
          {placed, redone ? std::max(placed.first, resolved->redo.begin) : placed.end()});
    }
  }
  remains_.clear();
  return starts;
}

/// Makes a run ready for the members that are left. False: the engine has stopped.
bool Engine::renew(CollectiveRun& run) {
  auto anchor = std::make_shared<RunAnchor>(anchor_of(run));
  anchor->selection = selection_;
  KeptResponse& kept = anchor->kept;
  const Response& response = kept.response;
  run.contributors = members_;
  if (reduces(response.kind) && response.op == ReduceOp::average) {
    run.finish.divisor = session_.world.size();
  }
  const std::int32_t root =
      response.kind == Kind::broadcast ? rank_of_first(session_.world, response.root) : 0;
  if (kept.failed) {
    run.schedule = &selection_->bystander();
    run.anchor = std::move(anchor);
    return true;
  }
  if (ending_of(kept) == Ending::whole) {
    kept.response = without_lost(kept, *members_);
    kept.ranks = *members_;
    run.extents.clear();  // The row of positions stays as long as it was: total_bytes too.
    OwnOutput own =
        lay_out_extents(kept.response, session_.world.self.value, session_.world.size(), run);
    CompletionImpl& call = *active_.at(run.ticket).calls.front();
    if (!give_output(run, kept.response, std::move(own), call)) return false;
  }
  auto schedule = run.codec ? selection_->choose_encoded_again(*run.codec, run.total_bytes,
                                                               *sets_.global(), run.segment_bytes)
                            : selection_->choose_again(response.kind, response.dtype, response.op,
                                                       run.total_bytes, Rank(root), *sets_.global(),
                                                       run.segment_bytes);
  if (!schedule) {
    stop(schedule.error());
    return false;
  }
  run.schedule = *schedule;
  run.anchor = std::move(anchor);
  return true;
}

// ---- copies -------------------------------------------------------------------------------------

void Engine::send_copies() {
  const std::size_t me = index_of(session_.world.self);
  for (std::uint16_t lane = 0; lane < session_.layout.lanes; ++lane) {
    const LanePlan& plan = next_->lanes[lane];
    for (const Resolved& resolved : plan.collectives) {
      for (std::uint64_t p = resolved.copy.begin; p < resolved.copy.end; ++p) {
        if (plan.giver(resolved, p) != me) continue;
        const SegmentResult* result = executor_->inherited(lane, p);
        HORA_CHECK(result != nullptr, "who is done with a position holds its result");
        for (std::size_t to = 0; to < plan.done.size(); ++to) {
          if (plan.done[to] > p) continue;
          for (const auto& part : copy_messages(lane, p, *result))
            session_.links[to]->send_control(part);
        }
      }
    }
  }
  for (const auto& message : std::exchange(early_copies_, {}))
    on_copy(message);
}

/// False: it is another kind of message.
bool Engine::on_copy(std::span<const std::byte> message) {
  if (message.size() < sizeof kCopyMagic ||
      std::memcmp(message.data(), &kCopyMagic, sizeof kCopyMagic) != 0) {
    return false;
  }
  if (!executor_) {
    early_copies_.emplace_back(message.begin(), message.end());
    return true;
  }
  const auto malformed = [this] {
    stop(Error{ErrorKind::protocol, "a member sent a malformed copy of a result", std::nullopt});
    return true;
  };
  ByteReader in(message.subspan(sizeof kCopyMagic));
  std::uint64_t lane = 0, position = 0, count = 0, total = 0;
  if (!in.varint(lane) || lane >= session_.layout.lanes || !in.varint(position) ||
      !in.varint(count) || count > message.size()) {
    return malformed();
  }
  std::vector<std::int32_t> contributors;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rank = 0;
    if (!in.varint(rank) || rank > 1u << 20) return malformed();
    contributors.push_back(static_cast<std::int32_t>(rank));
  }
  if (!in.varint(total)) return malformed();
  SegmentResult& partial = partial_copies_[{static_cast<std::uint16_t>(lane), position}];
  partial.bytes.insert(partial.bytes.end(), in.rest().begin(), in.rest().end());
  if (partial.bytes.size() > total) return malformed();
  if (partial.bytes.size() < total) return true;
  partial.contributors = std::make_shared<const std::vector<std::int32_t>>(std::move(contributors));
  SegmentResult whole = std::move(partial);
  partial_copies_.erase({static_cast<std::uint16_t>(lane), position});
  const auto accepted =
      executor_->accept_copy(static_cast<std::uint16_t>(lane), position, std::move(whole));
  if (!accepted) stop(accepted.error());
  return true;
}

}  // namespace hora
