#include "runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include <unistd.h>

#include "elastic/session.h"
#include "elastic/session_renewal.h"
#include "runtime/base/arena.h"
#include "runtime/base/check.h"
#include "runtime/base/wait_point.h"
#include "runtime/engine.h"
#include "runtime/progress.h"
#include "runtime/timeline.h"

namespace hora {

namespace {

/// The most tags any template uses: a ring's two passes.
std::uint16_t tags_for(int size) {
  return static_cast<std::uint16_t>(std::max(4, 2 * size));
}

/// What a rank's arena has room for: two lanes of W slots in half of it.
Result<void> offer_slots(const Config& config, std::size_t arena_bytes, Member& self) {
  constexpr std::uint64_t kSmallest = 16 << 10, kLargest = 4 << 20, kPage = 4096;
  self.window = std::max<std::uint32_t>(1, config.window);
  const std::uint64_t slots = std::uint64_t{kLanes} * self.window;
  self.slot_bytes = std::min(kLargest, arena_bytes / 2 / slots / kPage * kPage);
  if (self.slot_bytes >= kSmallest) return {};
  return fail(ErrorKind::resource,
              "an arena of " + std::to_string(arena_bytes) + " bytes has no room for " +
                  std::to_string(slots) + " segments of 16 KB; set HORA_ARENA_BYTES to at least " +
                  std::to_string(2 * slots * kSmallest) + ", or HORA_WINDOW to less");
}

/// "[[0, 1], [2]]"
std::string sets_text(const std::vector<std::vector<std::int32_t>>& sets) {
  std::string text;
  for (const auto& ranks : sets) {
    text += text.empty() ? "[" : ", ";
    for (std::size_t i = 0; i < ranks.size(); ++i)
      text += (i == 0 ? "[" : ", ") + std::to_string(ranks[i]);
    text += ranks.empty() ? "[]" : "]";
  }
  return text.empty() ? "[]" : text + "]";
}

/// What all ranks must choose alike: the knobs that choose templates and segments, and process
/// sets.
std::string settings_of(const Config& config) {
  return "HORA_ALGORITHM='" + config.algorithm +
         "' HORA_SEGMENT_BYTES=" + std::to_string(config.segment_bytes) +
         " process_sets=" + sets_text(config.process_sets);
}

/// Error invalid_argument if some static set is none: a rank that there is not, a set twice.
Result<void> check_sets(const Config& config, int size) {
  ProcessSets sets(size);
  for (std::size_t i = 0; i < config.process_sets.size(); ++i) {
    if (const auto why = sets.refuse(config.process_sets[i])) {
      return fail(why->kind,
                  "process_sets entry number " + std::to_string(i) + ": " + why->message);
    }
    sets.add(sets.free_id(), config.process_sets[i]);
  }
  return {};
}

/// The layout that all members can have. Error invalid_argument if their settings differ.
Result<LaneLayout> agree_layout(const World& world) {
  // Slots of members that all share memory stay in cache; sockets want large writes.
  constexpr std::uint64_t kLargestInMemory = 1 << 20;
  LaneLayout layout;
  layout.lanes = kLanes;
  layout.tags = tags_for(world.size());
  layout.window = world.me().window;
  layout.slot_bytes = world.me().slot_bytes;
  for (int rank = 0; rank < world.size(); ++rank) {
    const Member& member = world.members[static_cast<std::size_t>(rank)];
    if (member.settings != world.me().settings) {
      return fail(ErrorKind::invalid_argument,
                  "rank " + std::to_string(rank) + " runs with " + member.settings + ", rank " +
                      std::to_string(world.self.value) + " with " + world.me().settings +
                      "; set them alike on all ranks");
    }
    layout.window = std::min(layout.window, member.window);
    layout.slot_bytes = std::min(layout.slot_bytes, member.slot_bytes);
  }
  const bool one_host = std::all_of(
      world.members.begin(), world.members.end(),
      [&](const Member& member) { return member.host_id == world.members.front().host_id; });
  if (one_host) layout.slot_bytes = std::min(layout.slot_bytes, kLargestInMemory);
  return layout;
}

class RuntimeImpl final : public Runtime, private Succession {
 public:
  RuntimeImpl(const Config& config, const Placement& placement)
      : config_(config),
        placement_(placement),
        log_(log_level_from(config.log_level), "rank " + std::to_string(placement.rank)) {}

  ~RuntimeImpl() override {
    if (progress_) shutdown("");
    progress_.reset();
    control_.reset();  // Its thread posts to the engine.
    engine_.reset();
    renewal_.reset();
    session_.reset();
  }

  Result<void> open(const Interrupted& interrupted) {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(config_.start_timeout_ms));
    Member self;
    self.worker = make_worker_id();
    self.pid = ::getpid();
    HORA_TRY(open_arena(self.worker));
    HORA_TRY(offer_slots(config_, arena_->bytes(), self));
    self.settings = settings_of(config_);

    Listeners listeners;
    if (placement_.size > 1) {
      auto opened = open_listeners(config_, placement_);
      if (!opened) return fail(opened.error());
      listeners = std::move(*opened);
      self.addresses = listeners.addresses;
      self.unix_name = listeners.unix_name;
    }
    auto control = Control::join(
        config_, placement_, self,
        [this](ControlEvent event) { on_control_event(std::move(event)); }, interrupted);
    if (!control) return fail(control.error());
    control_ = std::move(*control);
    HORA_TRY(open_session(listeners, deadline, interrupted));
    return {};
  }

  [[nodiscard]] std::shared_ptr<const World> world() const override { return engine_->world(); }
  [[nodiscard]] const Placement& placement() const override { return placement_; }

  Result<Handle> submit(Submission submission) override {
    if (forked_) return forked_error();
    if (auto valid = validate(submission); !valid) {
      refuse({&submission.request, 1}, valid.error().message);
      return fail(std::move(valid.error()));
    }
    const bool caller_waits = submission.caller_waits;
    auto handle = engine_->post(std::move(submission));
    progress_->on_posted(handle && caller_waits);  // Also for what it says of a refused one.
    return handle;
  }

  Result<std::vector<Handle>> submit_group(const std::string& group,
                                           std::vector<Submission> members) override {
    if (forked_) return forked_error();
    if (members.empty()) {
      return fail(ErrorKind::invalid_argument,
                  "group '" + name_text(group) + "' has no tensors; it needs at least one");
    }
    const bool caller_waits = members.front().caller_waits;
    Result<void> valid;
    for (Submission& member : members) {
      member.request.group = group;
      member.request.group_size = static_cast<std::int32_t>(members.size());
      if (valid) valid = validate(member);
    }
    if (!valid) {
      std::vector<Request> requests;
      for (const Submission& member : members)
        requests.push_back(member.request);
      refuse(requests, valid.error().message);
      return fail(std::move(valid.error()));
    }
    auto handles = engine_->post_group(std::move(members));
    progress_->on_posted(handles && caller_waits);
    return handles;
  }

  void refuse(std::span<const Request> calls, std::string_view why) override {
    if (!forked_ && engine_->post_refusals(calls, why)) progress_->on_posted(false);
  }

  Result<void> wait(const Handle& handle, Deadline deadline,
                    const std::function<bool()>& interrupted) override {
    auto& completion = static_cast<CompletionImpl&>(*handle);
    if (completion.done()) return completion.outcome();
    if (forked_) return forked_error();
    if (!completion.submission().caller_waits) {  // Otherwise the submission has said so.
      engine_->post_flush();
      progress_->on_posted(true);
    }
    switch (progress_->drive_until(completion, deadline, interrupted)) {
      case Progress::Outcome::done:
        return completion.outcome();
      case Progress::Outcome::deadline:
        return fail(ErrorKind::timeout, "the collective is not complete yet");
      case Progress::Outcome::interrupted:
        return fail(ErrorKind::interrupted, "waiting was interrupted; the collective goes on");
    }
    HORA_CHECK(false, "drive_until has three outcomes");
  }

  bool poll(const Handle& handle) override {
    // The answer is of the moment of the question; asking sees to it that somebody goes on.
    if (handle->done() || forked_) return handle->done();
    engine_->post_flush();
    progress_->on_posted(false);
    return false;
  }

  Result<void> start_timeline(const TimelineTarget& target) override {
    HORA_TRY(stop_timeline());  // Both may go to one file.
    auto timeline = open_timeline(target);
    if (!timeline) return fail(timeline.error());
    return switch_timeline(std::move(*timeline));
  }

  Result<void> stop_timeline() override { return switch_timeline({}); }

  void shutdown(const std::string& last_words) override {
    if (forked_ || !progress_) return;
    // The launcher first: when the others fail for our sake, it must know whose failure it is.
    if (!last_words.empty()) control_->report(last_words);
    const Handle told = engine_->post_shutdown(last_words);
    if (!told->done()) {
      progress_->on_posted(true);
      progress_->drive_until(
          static_cast<CompletionImpl&>(*told),
          Deadline::after(std::chrono::milliseconds(config_.shutdown_timeout_ms)), nullptr);
    }
    if (!left_.exchange(true)) control_->leave();
  }

  void on_fork_child() override {
    forked_ = true;
    timeline_.on_fork_child();
  }

  [[nodiscard]] std::vector<SharedSet> process_sets() const override {
    return engine_->process_sets();
  }

  [[nodiscard]] RuntimeStats stats() const override { return engine_->stats(); }

 private:
  Result<void> open_arena(const WorkerId& worker) {
    const bool shared = placement_.size > 1;
    const std::size_t bytes =
        config_.arena_bytes != 0 ? config_.arena_bytes : default_arena_bytes(placement_.local_size);
    auto arena = Arena::make(bytes, worker, shared);
    if (!arena) return fail(arena.error());
    arena_ = std::move(*arena);
    auto wait_point = WaitPoint::make(arena_->doorbell());
    if (!wait_point) return fail(wait_point.error());
    wait_point_ = std::move(*wait_point);
    return {};
  }

  Result<void> open_session(Listeners& listeners, Deadline deadline,
                            const Interrupted& interrupted) {
    const World& world = control_->world();
    auto layout = agree_layout(world);
    if (!layout) return fail(layout.error());
    HORA_TRY(check_sets(config_, world.size()));
    if (world.min_size > 0 && !config_.process_sets.empty()) {
      return fail(
          ErrorKind::unsupported,
          "a job that goes on without lost ranks (horarun --min-np) has no process sets but "
          "the one of all ranks; leave --min-np out to use them");
    }
    const auto given_up = [&] {
      return interrupted && interrupted() ? stopped_by_caller() : lost_early();
    };
    auto session = build_session(world, listeners, *arena_, *wait_point_,
                                 {config_, placement_, *layout, deadline, given_up});
    if (!session) return fail(session.error());
    session_ = std::move(*session);
    log_ =
        Log(log_level_from(config_.log_level), "rank " + std::to_string(world.self.value) +
                                                   " epoch " + std::to_string(world.epoch.value));
    if (world.self == Rank(0)) {
      for (const std::string& warning : config_.warnings)
        log_.warning(warning);
    }
    for (const std::string& note : config_.notes)
      log_.debug(note);
    if (!config_.timeline.empty()) {
      auto timeline = open_timeline({config_.timeline, config_.timeline_mark_cycles});
      if (!timeline) {
        return fail(timeline.error().kind,
                    "HORA_TIMELINE='" + config_.timeline + "': " + timeline.error().message);
      }
      timeline_ = std::move(*timeline);
    }
    Succession* succession = nullptr;
    if (world.min_size > 0) {
      renewal_ = std::make_unique<SessionRenewal>(
          RenewalOptions{config_, placement_, *arena_, *wait_point_, session_->layout,
                         session_->area_offset},
          std::move(listeners));
      succession = this;
    }
    engine_ = std::make_unique<Engine>(config_, *session_, *arena_, log_, timeline_, succession);
    {
      const std::lock_guard lock(early_mutex_);
      for (ControlEvent& event : early_events_)
        engine_->post_event(std::move(event));
      early_events_.clear();
      engine_ready_ = true;
    }
    for (std::size_t rank = 0; rank < session_->witnesses.size(); ++rank) {
      Fd& witness = session_->witnesses[rank];
      // Where the job goes on, whoever makes Worlds hears of deaths and tells.
      if (witness.valid() && succession == nullptr) {
        control_->watch(Rank(static_cast<std::int32_t>(rank)), std::move(witness));
      }
    }
    const bool crowded =
        placement_.local_size > static_cast<int>(std::thread::hardware_concurrency());
    const bool sockets = session_->watch != nullptr;
    progress_ = std::make_unique<Progress>(
        *engine_, *wait_point_, ProgressOptions{config_.engine_thread, !crowded && !sockets});
    return await_agreement(deadline, interrupted);
  }

  /// Steps the engine until all members have agreed on what they share.
  Result<void> await_agreement(Deadline deadline, const Interrupted& interrupted) {
    std::optional<Error> stopped;
    TimePoint ask_at = steady_now() + kInterruptPeriod;
    const auto ready = [&] {
      stopped = engine_->stopped();
      if (engine_->agreed() || stopped) return true;
      if (!interrupted || steady_now() < ask_at) return false;
      ask_at = steady_now() + kInterruptPeriod;
      if (interrupted()) stopped = stopped_by_caller();
      return stopped.has_value();
    };
    const bool met = progress_->drive_start(ready, deadline);
    // A member that was there, and has left in order since: that is for the next collective to say.
    const bool met_and_left = engine_->agreed() && stopped && stopped->kind == ErrorKind::shutdown;
    if (stopped && !met_and_left) return fail(*stopped);
    if (!met) {
      return fail(ErrorKind::timeout, "not all ranks built their session within " +
                                          std::to_string(config_.start_timeout_ms) +
                                          " ms; raise HORA_START_TIMEOUT_MS if they are slow");
    }
    return {};
  }

  Result<Timeline> open_timeline(const TimelineTarget& target) const {
    const Rank self = engine_ ? engine_->world()->self : session_->world.self;
    const std::string path = timeline_path(target.pattern, self);
    if (path.empty()) return Timeline();
    TimelineOptions options;
    options.mark_cycles = target.mark_cycles;
    return Timeline::open(path, options);
  }

  /// Has the engine write to `next`; when this returns, the file before is complete.
  Result<void> switch_timeline(Timeline next) {
    if (forked_) return forked_error();
    const Deadline deadline =
        Deadline::after(std::chrono::milliseconds(config_.shutdown_timeout_ms));
    const auto spare = std::make_shared<Timeline>(std::move(next));
    const Handle taken = engine_->post_timeline(spare);
    progress_->on_posted(true);
    const auto outcome =
        progress_->drive_until(static_cast<CompletionImpl&>(*taken), deadline, nullptr);
    if (outcome == Progress::Outcome::done) return {};
    return fail(ErrorKind::timeout, "the engine has not taken the timeline within " +
                                        std::to_string(config_.shutdown_timeout_ms) + " ms");
  }

  static std::optional<Error> stopped_by_caller() {
    return Error{ErrorKind::interrupted, "joining the job was interrupted", std::nullopt};
  }

  /// Why the session can't be built any more: a member died while it was.
  std::optional<Error> lost_early() {
    const std::lock_guard lock(early_mutex_);
    for (const ControlEvent& event : early_events_) {
      if (event.kind == ControlEvent::Kind::peer_lost ||
          event.kind == ControlEvent::Kind::job_ended || event.kind == ControlEvent::Kind::freeze) {
        return Error{
            ErrorKind::peer_lost,
            "Hora lost " +
                (event.peer ? control_->world().describe(*event.peer) : std::string("the job")) +
                " while the session was built: " + event.text,
            event.peer};
      }
    }
    return std::nullopt;
  }

  // ---- Succession

  void frozen(WorkerReport report) override { control_->frozen(std::move(report)); }
  void suspect(Epoch epoch, Rank about, const std::string& text) override {
    control_->suspect(epoch, about, text);
  }
  void start_session(const World& world) override { renewal_->start(world); }
  Result<std::unique_ptr<Session>> try_session() override { return renewal_->poll(); }

  void on_control_event(ControlEvent event) {
    const std::lock_guard lock(early_mutex_);
    if (!engine_ready_) {
      early_events_.push_back(std::move(event));
      return;
    }
    engine_->post_event(std::move(event));
    wait_point_->wake();
  }

  Result<void> validate(const Submission& submission) const {
    const Request& request = submission.request;
    HORA_TRY(check_request(request));
    if (request.kind == Kind::broadcast) {
      const int size = engine_->world()->size();
      if (request.root < 0 || request.root >= size) {
        return fail(ErrorKind::invalid_argument, "root rank " + std::to_string(request.root) +
                                                     " is not one of the " + std::to_string(size) +
                                                     " ranks");
      }
    }
    if (request.kind == Kind::reducescatter && request.op != ReduceOp::sum &&
        request.op != ReduceOp::average) {
      return fail(ErrorKind::unsupported, "Reducescatter currently only supports AVERAGE and SUM.");
    }
    if (request.kind == Kind::allreduce && request.op == ReduceOp::adasum &&
        !is_floating(request.dtype)) {
      return fail(ErrorKind::invalid_argument,
                  tensor_text(request.name, request.set) +
                      ": Adasum is for floating-point numbers, this is " +
                      std::string(to_string(request.dtype)) + "; use Sum or Average");
    }
    return {};
  }

  tl::unexpected<Error> forked_error() const {
    return fail(
        ErrorKind::not_initialized,
        "this process was forked from the process of rank " + std::to_string(placement_.rank) +
            "; only that process may call Hora. Call hora.init() in processes of their own");
  }

  const Config config_;
  const Placement placement_;
  Log log_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<WaitPoint> wait_point_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<SessionRenewal> renewal_;  // In a job that goes on without lost members.
  Timeline timeline_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Progress> progress_;

  std::mutex early_mutex_;
  std::vector<ControlEvent> early_events_;  // Guarded by early_mutex_, until the engine exists.
  bool engine_ready_ = false;               // Guarded by early_mutex_.
  std::atomic<bool> forked_{false};
  std::atomic<bool> left_{false};
};

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::start(const Config& config, const Placement& placement,
                                                const Interrupted& interrupted) {
  auto runtime = std::make_unique<RuntimeImpl>(config, placement);
  HORA_TRY(runtime->open(interrupted));
  return runtime;
}

}  // namespace hora
