#include "runtime/engine.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/fault.h"
#include "runtime/sharing.h"

namespace hora {

namespace {

/// Bytes that one step touches before it looks at the inbox again: about 30 us of work.
constexpr std::size_t kStepBudgetBytes = 256 << 10;

}  // namespace

NegotiationOptions negotiation_options(const Config& config, int size) {
  NegotiationOptions options;
  options.size = size;
  options.sets = config.process_sets;
  options.fusion_bytes = config.fusion_bytes;
  options.target_bytes = config.fusion_target_bytes;
  options.hold = std::chrono::milliseconds(config.fusion_hold_ms);
  options.cache_capacity = config.cache_capacity;
  // Who asks for an algorithm gets it.
  options.carry_bytes = config.algorithm.empty() ? config.carry_bytes : 0;
  options.stall_check = !config.stall_check_disable;
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
  };
  options.stall_warning = seconds(config.stall_check_seconds);
  options.stall_shutdown = seconds(config.stall_shutdown_seconds);
  return options;
}

std::shared_ptr<const World> Engine::world() const {
  const std::lock_guard lock(mail_mutex_);
  return world_;
}

Engine::Engine(const Config& config, Session& session, Arena& arena, const Log& log,
               Timeline& timeline, Succession* succession)
    : config_(config),
      session_(session),
      log_(log),
      timeline_(timeline),
      sets_(session.world.size(), config.process_sets),
      negotiator_(std::in_place, session.world.self,
                  negotiation_options(config, session.world.size())),
      arena_(arena),
      succession_(succession),
      world_(std::make_shared<const World>(session.world)) {
  if (is_root()) {
    coordinator_ = std::make_unique<Coordinator>(negotiation_options(config, session.world.size()));
  }
  start_agreement();
}

Engine::~Engine() {
  stop(Error{ErrorKind::shutdown, "Hora has been shut down on this rank.", std::nullopt});
}

// ---- any thread ---------------------------------------------------------------------------------

Result<Handle> Engine::post(Submission submission) {
  if (submission.request.kind == Kind::join) submission.request.name = kJoinName;
  const Call call = std::make_shared<CompletionImpl>(std::move(submission));
  if (auto posted = post_calls({&call, 1}); !posted) return refused({&call, 1}, posted.error());
  return call;
}

Result<std::vector<Handle>> Engine::post_group(std::vector<Submission> members) {
  std::vector<Call> calls;
  calls.reserve(members.size());
  for (Submission& member : members)
    calls.push_back(std::make_shared<CompletionImpl>(std::move(member)));
  if (auto posted = post_calls(calls); !posted) return refused(calls, posted.error());
  return std::vector<Handle>(calls.begin(), calls.end());
}

/// Puts all calls into the inbox, or none; or holds all back, behind refusals of their names.
Result<void> Engine::post_calls(std::span<const Call> calls) {
  const std::lock_guard lock(mail_mutex_);
  if (refuse_) return fail(*refuse_);
  for (const Call& call : calls)
    HORA_TRY(admit(call->request()));
  const std::size_t started = in_flight_.size() + held_count();
  if (started + calls.size() > config_.submit_queue_limit) {
    return fail(ErrorKind::resource, "there are " + std::to_string(started) +
                                         " tensors in flight; wait for some, or raise "
                                         "HORA_SUBMIT_QUEUE_LIMIT");
  }
  // What changes who takes part comes after all that was submitted before it.
  bool behind = !held_.empty() && !is_collective(calls.front()->request().kind);
  std::unordered_set<TensorKey, TensorKeyHash> own;
  for (const Call& call : calls) {
    const TensorKey key = key_of(call->request());
    const Holder holder = holder_of(key);
    if (holder == Holder::call || (calls.size() > 1 && !own.insert(key).second)) {
      return fail(
          ErrorKind::duplicate_name,
          "Requested to allreduce, allgather, or broadcast a tensor with the same name as "
          "another tensor that is currently being processed. If you want to request another "
          "tensor, use a different tensor name. (" +
              tensor_text(key.name, key.set) + ")");
    }
    behind = behind || holder == Holder::refusal;
  }
  if (behind) {
    held_.emplace_back(calls.begin(), calls.end());
    return {};
  }
  take_in(calls);
  return {};
}

/// With the inbox's lock, which the names have passed.
void Engine::take_in(std::span<const Call> calls) {
  for (const Call& call : calls) {
    in_flight_.insert(key_of(call->request()));
    if (!call->request().refusal.empty()) refusals_.insert(key_of(call->request()));
    note_submission(call->request());
    inbox_.flush = inbox_.flush || call->submission().caller_waits;
    inbox_.calls.push_back(call);
  }
  mail_.store(true, std::memory_order_seq_cst);
}

void Engine::post_flush() {
  const std::lock_guard lock(mail_mutex_);
  inbox_.flush = true;
  mail_.store(true, std::memory_order_seq_cst);
}

void Engine::post_event(ControlEvent event) {
  const std::lock_guard lock(mail_mutex_);
  inbox_.events.push_back(std::move(event));
  mail_.store(true, std::memory_order_seq_cst);
}

Handle Engine::post_shutdown(const std::string& last_words) {
  const std::lock_guard lock(mail_mutex_);
  if (!shutdown_done_) {
    shutdown_done_ = std::make_shared<CompletionImpl>(Submission{});
    if (over_) {
      shutdown_done_->complete({});
    } else if (!refuse_) {  // Otherwise another rank ends the job already; stop() will tell.
      inbox_.shutdown = last_words;
      refuse_ = Error{ErrorKind::shutdown, "Hora has been shut down on this rank.", std::nullopt};
      mail_.store(true, std::memory_order_seq_cst);
    }
  }
  return shutdown_done_;
}

Handle Engine::post_timeline(std::shared_ptr<Timeline> next) {
  auto done = std::make_shared<CompletionImpl>(Submission{});
  const std::lock_guard lock(mail_mutex_);
  inbox_.timelines.emplace_back(std::move(next), done);
  mail_.store(true, std::memory_order_seq_cst);
  return done;
}

// ---- the step -----------------------------------------------------------------------------------

bool Engine::step(TimePoint now) {
  bool happened = false;
  if (mail_.load(std::memory_order_acquire)) happened = take_mail(now);
  if (stopped_) return happened;
  if (phase_ == Phase::building) happened = go_on_building(now) || happened;
  if (phase_ != Phase::running || stopped_) return happened;

  for (const auto& transport : session_.transports)
    happened = transport->progress() || happened;
  happened = move_control(now) || happened;
  if (executor_ && !stopped_) {
    happened = executor_->step(kStepBudgetBytes) || happened;
    finish_runs();
  }
  watch_links(now);
  for (const auto& transport : session_.transports)
    transport->flush();
  return happened;
}

bool Engine::take_mail(TimePoint now) {
  Mail& mail = taken_;
  {
    const std::lock_guard lock(mail_mutex_);
    std::swap(mail, inbox_);
    mail_.store(false, std::memory_order_relaxed);
  }
  for (auto& [next, done] : mail.timelines) {
    std::swap(timeline_, *next);
    // Who waits for this is its last owner, and completes the file before going on.
    next.reset();
    done->complete({});
  }
  for (Call& call : mail.calls) {
    if (stopped_ || ending_) {
      finish_call(*call, fail(stopped_ ? *stopped_ : *ending_));
      continue;
    }
    const Request& request = call->request();
    begin_span(request, negotiate_phase(request));
    if (phase_ == Phase::running) negotiator_->submit(request, carried_input(*call));
    table_.emplace(key_of(request), std::move(call));
  }
  if (mail.flush) {
    flush_wanted_ = true;  // Also of the next World, if this one ends.
    if (phase_ == Phase::running) negotiator_->flush();
  }
  if (mail.shutdown && !ending_) {
    if (stopped_) {
      const std::lock_guard lock(mail_mutex_);
      shutdown_done_->complete({});
    } else {
      shutdown_words_ = std::move(mail.shutdown);
      if (phase_ == Phase::running) negotiator_->shutdown(*shutdown_words_);
    }
  }
  // What peers said before they died comes before the news of their death.
  if (!mail.events.empty() && !stopped_ && phase_ == Phase::running) move_control(now);
  for (const ControlEvent& event : mail.events)
    on_event(event, now);
  mail.clear();
  return true;
}

void Engine::on_event(const ControlEvent& event, TimePoint now) {
  if (stopped_) return;
  const std::string who =
      event.peer ? session_.world.describe(*event.peer) : std::string("the job");
  switch (event.kind) {
    case ControlEvent::Kind::peer_silent:
      log_.warning(who + ": " + event.text);
      if (coordinator_ && event.peer) coordinator_->on_evidence(*event.peer, event.text);
      if (!config_.heartbeat_abort) return;
      if (elastic() && event.peer) {
        return succession_->suspect(session_.world.epoch, *event.peer, event.text);
      }
      break;
    case ControlEvent::Kind::peer_back:
      log_.warning(who + ": " + event.text);
      if (coordinator_ && event.peer) coordinator_->on_evidence(*event.peer, "");
      return;
    case ControlEvent::Kind::freeze:
      return freeze(event);
    case ControlEvent::Kind::next_world:
      return adopt(event, now);
    case ControlEvent::Kind::peer_lost:
    case ControlEvent::Kind::job_ended:
      break;
  }
  const std::string doing = what_is_running();
  stop(Error{ErrorKind::peer_lost, "Hora lost " + who + ": " + event.text + doing, event.peer});
}

// ---- control messages ---------------------------------------------------------------------------

// Before anything else, the members agree on who shares memory (sharing.h).
void Engine::start_agreement() {
  std::vector<bool> shares;
  for (const auto& link : session_.links)
    shares.push_back(!link || link->shares_memory());
  const std::vector<std::byte> vote = encode_vote(shares);
  if (!is_root()) return session_.links[0]->send_control(vote);
  votes_.resize(shares.size());
  count_vote(Rank(0), vote);
}

bool Engine::agree(Rank from, std::span<const std::byte> message) {
  if (is_root()) return count_vote(from, message);
  const auto topology = decode_verdict(message, session_.world.size());
  if (topology) begin(*topology);
  return topology.has_value();
}

/// The last vote decides. False: it is none, or the second of that rank.
bool Engine::count_vote(Rank from, std::span<const std::byte> message) {
  auto vote = decode_vote(message, session_.world.size());
  if (!vote || !votes_[index_of(from)].empty()) return false;
  votes_[index_of(from)] = std::move(*vote);
  for (const std::vector<bool>& other : votes_) {
    if (other.empty()) return true;
  }
  const Topology topology = Topology::from_sharing(votes_);
  const std::vector<std::byte> verdict = encode_verdict(topology);
  for (const auto& link : session_.links) {
    if (link) link->send_control(verdict);
  }
  begin(topology);
  return true;
}

/// From now on collectives can run.
void Engine::begin(const Topology& topology) {
  ExecutorOptions options;
  options.layout = session_.layout;
  options.area_offset = session_.area_offset;
  options.views_only = topology.is_one_host();
  options.self = session_.world.self;
  options.epoch = session_.world.epoch;
  options.tasks_run = tasks_run_;
  options.outlives_members = session_.world.min_size > 0;
  options.fault = {fault_point(config_.fault, "kill-before-task"),
                   fault_point(config_.fault, "kill-after-task")};
  std::vector<Link*> links;
  std::vector<std::int32_t> members;
  for (const auto& link : session_.links)
    links.push_back(link.get());
  for (const Member& member : session_.world.members)
    members.push_back(member.first_rank);
  members_ = std::make_shared<const std::vector<std::int32_t>>(std::move(members));

  auto selection = Selection::make(config_, session_.world.self.value,
                                   {topology, session_.layout.slot_bytes, session_.layout.tags});
  if (!selection) return stop(selection.error());
  selection_ = std::make_shared<Selection>(std::move(*selection));
  std::vector<LaneStart> starts(session_.layout.lanes);
  if (next_) starts = lane_starts();
  if (stopped_) return;
  executor_ = std::make_unique<Executor>(arena_, std::move(links), options, std::move(starts));
  agreed_ = true;
  if (next_) send_copies();
}

bool Engine::move_control(TimePoint now) {
  bool happened = false;
  for (std::size_t rank = 0; rank < session_.links.size() && !stopped_; ++rank) {
    Link* link = session_.links[rank].get();
    // Negotiation runs between the root and everybody else; copies come from anybody.
    if (link == nullptr || (!is_root() && rank != 0 && !next_)) continue;
    while (!stopped_ && link->take_control(control_scratch_)) {
      happened = true;
      bytes_in_.fetch_add(control_scratch_.size(), std::memory_order_relaxed);
      on_control(Rank(static_cast<std::int32_t>(rank)), control_scratch_, now);
    }
  }
  if (!agreed_ || stopped_) return happened;

  while (const auto message = negotiator_->take_message()) {
    send_to_root(*message, now);
    happened = true;
  }
  while (coordinator_ && !stopped_) {
    std::array<std::uint32_t, kLanes> outstanding{};
    for (std::uint16_t lane = 0; lane < kLanes; ++lane) {
      outstanding[lane] = executor_->outstanding(lane);
    }
    const auto message = coordinator_->take_message(now, outstanding);
    if (!message) break;
    send_to_all(*message);
    on_root_message(*message, now);
    happened = true;
  }
  return happened;
}

void Engine::on_control(Rank from, std::span<const std::byte> message, TimePoint now) {
  if (next_ && on_copy(message)) return;
  if (!is_root() && from != Rank(0)) {
    return stop(Error{ErrorKind::protocol,
                      session_.world.describe(from) + " sent what only rank 0 may send", from});
  }
  if (!agreed_) {
    if (!agree(from, message)) {
      stop(Error{ErrorKind::protocol,
                 session_.world.describe(from) + " sent a malformed message: it has not agreed yet",
                 from});
    }
    return;
  }
  if (!coordinator_) {
    on_root_message(message, now);
    return;
  }
  if (const auto accepted = coordinator_->on_message(from, message, now); !accepted) {
    stop(Error{
        accepted.error().kind,
        session_.world.describe(from) + " sent a malformed message: " + accepted.error().message,
        from});
  }
}

void Engine::send_to_root(std::span<const std::byte> message, TimePoint now) {
  if (coordinator_) {
    const auto accepted = coordinator_->on_message(Rank(0), message, now);
    HORA_CHECK(accepted.has_value(), "the root understands its own messages");
    return;
  }
  bytes_out_.fetch_add(message.size(), std::memory_order_relaxed);
  session_.links[0]->send_control(message);
}

void Engine::send_to_all(std::span<const std::byte> message) {
  for (const auto& link : session_.links) {
    if (!link) continue;
    bytes_out_.fetch_add(message.size(), std::memory_order_relaxed);
    link->send_control(message);
  }
}

void Engine::on_root_message(std::span<const std::byte> message, TimePoint now) {
  auto decoded = negotiator_->on_root_message(message);
  if (!decoded) {
    stop(Error{decoded.error().kind, "rank 0 sent a malformed message: " + decoded.error().message,
               Rank(0)});
    return;
  }
  if (!decoded->responses.empty()) timeline_.cycle();
  if (!decoded->notice.empty()) log_.warning(decoded->notice);
  ++heard_;
  if (session_.world.min_size > 0) keep_answers(*decoded);
  for (const Response& response : decoded->responses) {
    if (stopped_) return;
    start_response(response);
  }
  if (!decoded->stop) return;
  if (decoded->stop->kind != ErrorKind::shutdown) return stop(*decoded->stop);
  ending_until_ = now + std::chrono::milliseconds(config_.shutdown_timeout_ms);
  end(*decoded->stop);
}

// ---- for the driver -----------------------------------------------------------------------------

bool Engine::busy() const {
  if (stopped_) return false;
  return phase_ != Phase::running || !table_.empty() || !active_.empty() || has_mail() ||
         suspicion_.has_value() || ending_.has_value() || !agreed_;
}

std::optional<TimePoint> Engine::next_deadline() const {
  if (stopped_) return std::nullopt;
  std::optional<TimePoint> next;
  if (phase_ == Phase::building) return build_again_;
  if (phase_ == Phase::frozen) return std::nullopt;
  if (suspicion_) next = suspicion_until_;
  if (ending_ && (!next || ending_until_ < *next)) next = ending_until_;
  if (coordinator_) {
    const auto coordinator = coordinator_->next_deadline();
    if (coordinator && (!next || *coordinator < *next)) next = coordinator;
  }
  return next;
}

SleepNeed Engine::need() const {
  SleepNeed need{1, false};
  if (!executor_ || stopped_) return need;
  // The root can go on when data is complete, or when the last rank has submitted some tensor.
  const bool running = executor_->busy();
  if (running) need = executor_->need();
  if (coordinator_) {
    const std::uint32_t missing = coordinator_->missing_ranks();
    if (missing > 0) need.rings = running ? std::min(need.rings, missing) : missing;
  }
  return need;
}

RuntimeStats Engine::stats() const {
  RuntimeStats stats;
  stats.collectives = collectives_.load(std::memory_order_relaxed);
  stats.tensors = tensors_.load(std::memory_order_relaxed);
  stats.negotiation_bytes_out = bytes_out_.load(std::memory_order_relaxed);
  stats.negotiation_bytes_in = bytes_in_.load(std::memory_order_relaxed);
  stats.segments = segments_.load(std::memory_order_relaxed);
  stats.payload_bytes = payload_bytes_.load(std::memory_order_relaxed);
  stats.sleeps = sleeps_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace hora
