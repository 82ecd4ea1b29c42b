// Engine: the machine that runs a rank's collectives. Stepped, never blocking.
//
//   inbox        -> tensor table  -> negotiation   -> runs       -> executor    -> completions
//   (any thread)    name -> entry    bits go up,      pieces and    tasks over
//                                    responses come   a template    the session's
//                                    down                           links
//
// One `step` takes the inbox first, then moves messages, then runs tasks for a bounded number of
// bytes, so that a large buffer never delays negotiation or a small tensor. Whoever holds the
// progress token calls it: the engine thread, a caller that waits, or a test. It reads no clock;
// `now` is an argument.
//
// How it ends. A lost link, the launcher's word that a member died, or a broken stream *stop* the
// engine: every open handle fails with one error that names the member and what was being done,
// and later submissions fail with the same. Evidence races: a socket's EOF says only that the
// peer is gone, while the launcher knows how it ended; so an EOF waits a moment (kEvidenceGrace)
// for the better word.
//
// An orderly end (a rank's shutdown) comes in the stream of responses, so all ranks have been given
// the same ones before it: these are finished, everything else fails.
//
// In an elastic World a death is no end (engine_repair.cc): the engine freezes, says how far it is,
// and goes on in the next World with the same calls, some of them half done.
//
// Owner: the progress token, `post_*` excepted.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "compress/codec.h"
#include "compress/residual.h"
#include "elastic/session.h"
#include "ops/executor.h"
#include "runtime/base/log.h"
#include "runtime/completion.h"
#include "runtime/kept_response.h"
#include "runtime/negotiation.h"
#include "runtime/process_set.h"
#include "runtime/run_layout.h"
#include "runtime/runtime.h"
#include "runtime/selection.h"
#include "runtime/tensor_key.h"
#include "runtime/timeline.h"

namespace hora {

/// How long the end of a connection waits for the launcher's account of the peer's death.
inline constexpr Duration kEvidenceGrace = 300ms;
/// How long whoever makes Worlds may take to answer a suspicion.
inline constexpr Duration kSuspicionPatience = 30s;

NegotiationOptions negotiation_options(const Config& config, int size);

/// What an engine needs to go on in another World; without it a death ends the job. Its functions
/// are called by the holder of the progress token and do not block.
class Succession {
 public:
  Succession() = default;
  Succession(const Succession&) = delete;
  Succession& operator=(const Succession&) = delete;
  virtual ~Succession() = default;

  /// To whoever makes Worlds: see Control.
  virtual void frozen(WorkerReport report) = 0;
  virtual void suspect(Epoch epoch, Rank about, const std::string& text) = 0;
  /// Begins to build the session of a World; one that is being built is given up.
  virtual void start_session(const World& world) = 0;
  /// Goes on with it. Null: it takes longer.
  virtual Result<std::unique_ptr<Session>> try_session() = 0;
};

class Engine {
 public:
  Engine(const Config& config, Session& session, Arena& arena, const Log& log, Timeline& timeline,
         Succession* succession = nullptr);
  ~Engine();

  // Any thread.

  /// Refuses what this rank may not submit (a process set that it is not in, anything after a
  /// join), duplicates of names in flight, a full table, or a stopped engine. Validates nothing
  /// else.
  Result<Handle> post(Submission submission);
  /// All of them or none; the requests name their group.
  Result<std::vector<Handle>> post_group(std::vector<Submission> members);
  /// Says in place of calls, one or a group, that they have failed on this rank before they began,
  /// so that the other ranks do not wait for them. False if that cannot be said: no member, a name
  /// in flight, a stopped engine.
  bool post_refusals(std::span<const Request> calls, std::string_view why);
  /// Somebody waits for what was submitted so far.
  void post_flush();
  void post_event(ControlEvent event);
  /// An orderly end of the job; the handle completes when all ranks have been told.
  Handle post_shutdown(const std::string& last_words);
  /// Lets what is written from now on go to `next`, and puts the timeline before there.
  Handle post_timeline(std::shared_ptr<Timeline> next);
  /// True if the inbox has something that a step has not taken.
  [[nodiscard]] bool has_mail() const { return mail_.load(std::memory_order_seq_cst); }
  /// The process sets that there are, as far as this rank has heard.
  [[nodiscard]] std::vector<SharedSet> process_sets() const;
  /// The newest World.
  [[nodiscard]] std::shared_ptr<const World> world() const;

  // The progress token's holder.

  /// Agreement of all members on what they share; must be stepped until true
  /// before anything is run.
  [[nodiscard]] bool agreed() const { return agreed_; }
  /// True if anything happened.
  bool step(TimePoint now);
  /// Tensors in flight or something queued: somebody must keep stepping.
  [[nodiscard]] bool busy() const;
  /// When a step may find something to do without a message; nothing: never.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;
  [[nodiscard]] SleepNeed need() const;
  /// Why the engine has stopped, or nothing.
  [[nodiscard]] const std::optional<Error>& stopped() const { return stopped_; }
  [[nodiscard]] RuntimeStats stats() const;
  void count_sleep() { sleeps_.fetch_add(1, std::memory_order_relaxed); }

 private:
  using Call = std::shared_ptr<CompletionImpl>;
  struct Mail {
    std::vector<Call> calls;
    std::vector<ControlEvent> events;
    std::vector<std::pair<std::shared_ptr<Timeline>, std::shared_ptr<CompletionImpl>>> timelines;
    bool flush = false;
    std::optional<std::string> shutdown;

    void clear() {
      timelines.clear();
      calls.clear();
      events.clear();
      flush = false;
      shutdown.reset();
    }
  };
  /// By tensor of a response; null: not this rank's own.
  using Calls = std::vector<Call>;
  /// Of a run whose end completes nothing.
  static constexpr std::uint64_t kNoTicket = 0;
  struct ActiveRun {
    Kind kind;
    SharedSet set;
    Calls calls;
  };
  /// Between Worlds: frozen until there is a next one, then its session is built.
  enum class Phase { running, frozen, building };

  Result<void> post_calls(std::span<const Call> calls);
  /// Of a name: a call that is not answered, a refusal that is not, or nobody.
  enum class Holder { nobody, call, refusal };
  [[nodiscard]] Holder holder_of(const TensorKey& key) const;
  void take_in(std::span<const Call> calls);
  void release_held();
  [[nodiscard]] std::size_t held_count() const;
  /// What is held back, to be failed.
  std::vector<Call> take_held();
  tl::unexpected<Error> refused(std::span<const Call> calls, Error why);
  bool take_mail(TimePoint now);
  void on_event(const ControlEvent& event, TimePoint now);
  bool move_control(TimePoint now);
  bool agree(Rank from, std::span<const std::byte> message);
  void start_agreement();
  bool count_vote(Rank from, std::span<const std::byte> message);
  void begin(const Topology& topology);
  void on_control(Rank from, std::span<const std::byte> message, TimePoint now);
  void on_root_message(std::span<const std::byte> message, TimePoint now);
  void send_to_root(std::span<const std::byte> message, TimePoint now);
  void send_to_all(std::span<const std::byte> message);
  [[nodiscard]] Result<void> admit(const Request& request) const;
  void note_submission(const Request& request);
  void start_response(const Response& response);
  bool take_calls(const Response& response, Calls& calls);
  void finish_change(const Response& response, const Calls& calls);
  void start_run(const Response& response, Calls calls);
  void start_adasum(const Response& response, Calls calls);
  [[nodiscard]] const std::byte* carried_input(const CompletionImpl& call) const;
  void deliver(const Response& response, const Calls& calls);
  void lack_memory(std::uint64_t bytes, const Response& response, CompletionImpl* call);
  bool lay_out_run(CollectiveRun& run, const Response& response, const Calls& calls);
  void add_pieces(CollectiveRun& run, const Response& response, const Calls& calls);
  void set_contributions(const CollectiveRun& run, const ActiveRun& active) const;
  bool give_output(CollectiveRun& run, const Response& response, OwnOutput own,
                   CompletionImpl& call);
  std::shared_ptr<const Codec> codec_for(const std::string& words);
  void start_encoded_run(const Response& response, Calls calls);
  void lay_out_encoded_run(CollectiveRun& run, const Response& response, const Calls& calls);
  Residual* open_residual(const Request& request, const ProcessSet& set);
  void add_encoded_pieces(CollectiveRun& run, const Response& response, const Calls& calls);
  void enqueue(const Response& response, const Selection::Choice& choice,
               std::unique_ptr<CollectiveRun> run, Calls calls);
  void finish_runs();
  void finish_run(const CollectiveRun& run);
  void finish_span_and_call(CompletionImpl& call);
  void finish_call(CompletionImpl& call, Result<void> outcome);
  [[nodiscard]] static std::string span_name(const Request& request);
  void begin_span(const Request& request, std::string_view phase);
  void end_span(const Request& request);
  // engine_repair.cc
  [[nodiscard]] bool elastic() const { return succession_ != nullptr && session_.world.elastic(); }
  void keep_answers(const WorkerNegotiator::Decoded& decoded);
  void keep_response(CollectiveRun& run, const Response& response) const;
  void freeze(const ControlEvent& event);
  [[nodiscard]] WorkerReport make_report() const;
  [[nodiscard]] LaneReport report_of(const LaneRemains& remains) const;
  void adopt(const ControlEvent& event, TimePoint now);
  void adopt_calls();
  void adopt_lane(std::size_t lane);
  void fail_lost_parts(const Resolved& resolved, LaneRemains& remains);
  void give_back(const PlacedRun& placed);
  bool make_missing(const Resolved& resolved, LaneRemains& remains);
  [[nodiscard]] Error error_of(const Request& request, const Response& response) const;
  void apply_answers(TimePoint now);
  void drop_session();
  bool go_on_building(TimePoint now);
  void split_groups();
  void install(std::unique_ptr<Session> session);
  std::vector<LaneStart> lane_starts();
  bool renew(CollectiveRun& run);
  void send_copies();
  bool on_copy(std::span<const std::byte> message);

  void watch_links(TimePoint now);
  void end(const Error& error);
  void stop(Error error);
  [[nodiscard]] bool drained() const;
  [[nodiscard]] std::string what_is_running() const;
  [[nodiscard]] bool is_root() const { return session_.world.self == Rank(0); }

  const Config& config_;
  Session& session_;
  Log log_;
  Timeline& timeline_;

  mutable std::mutex mail_mutex_;
  Mail inbox_;  // Guarded by mail_mutex_.
  // Guarded by mail_mutex_, these six:
  std::unordered_set<TensorKey, TensorKeyHash> in_flight_;  // The calls' own, until they complete.
  std::unordered_set<TensorKey, TensorKeyHash> refusals_;   // Of these.
  std::vector<std::vector<Call>> held_;                     // Behind refusals: engine_refusals.cc.
  ProcessSets sets_;             // As of the responses that were started here.
  std::set<SetId> leaving_;      // Their removal is in flight: nothing is accepted for them.
  bool joined_ = false;          // A join is in flight: nothing is accepted at all.
  std::optional<Error> refuse_;  // Guarded by mail_mutex_: why nothing is accepted.
  std::shared_ptr<CompletionImpl> shutdown_done_;  // Guarded by mail_mutex_.
  bool over_ = false;                              // Guarded by mail_mutex_: stopped.
  std::atomic<bool> mail_{false};

  Mail taken_;  // What the step took out of the inbox; kept for its memory.
  std::unordered_map<TensorKey, Call, TensorKeyHash> table_;  // Not answered yet.
  std::optional<WorkerNegotiator> negotiator_;
  std::unique_ptr<Coordinator> coordinator_;  // On the root.
  Arena& arena_;
  std::unordered_map<std::string, std::shared_ptr<const Codec>> codecs_;  // By their words.
  std::unique_ptr<SegmentObserver> segment_spans_;  // Made with the first codec.
  ResidualStore residuals_;  // Outlives the executor, which has shadows of it.
  std::unique_ptr<Executor> executor_;
  std::shared_ptr<Selection> selection_;
  std::unordered_map<std::uint64_t, ActiveRun> active_;  // By CollectiveRun::ticket.
  std::uint64_t next_ticket_ = kNoTicket + 1;
  std::vector<std::byte> control_scratch_;

  bool agreed_ = false;
  std::vector<std::vector<bool>> votes_;  // On the root: who shares memory with whom; by rank.

  std::optional<Error> suspicion_;  // A link's account of a lost peer ...
  TimePoint suspicion_until_{};     // ... and how long it waits for a better one.
  std::optional<Error> ending_;     // The job ends in order: what was answered is finished first,
  TimePoint ending_until_{};        // but not for longer than this.
  std::optional<Error> stopped_;

  Succession* succession_;
  std::shared_ptr<const World> world_;  // Guarded by mail_mutex_.
  Phase phase_ = Phase::running;
  std::shared_ptr<const NextWorld> next_;  // The World that there is, if not the first.
  std::vector<LaneRemains> remains_;       // By lane, between Worlds.
  Contributors members_;                   // First ranks of the World.
  std::uint64_t heard_ = 0;                // Messages of the root in this World.
  std::deque<KeptAnswer> answers_;
  std::optional<std::string> shutdown_words_;
  bool flush_wanted_ = false;
  std::uint64_t tasks_run_ = 0, segments_before_ = 0,
                payload_before_ = 0;  // By executors before this one.
  TimePoint build_again_{};
  bool suspected_ = false;  // Whoever makes Worlds has been told of `suspicion_`.
  std::vector<std::vector<std::byte>> early_copies_;
  std::map<std::pair<std::uint16_t, std::uint64_t>, SegmentResult> partial_copies_;

  std::atomic<std::uint64_t> collectives_{0}, tensors_{0}, bytes_out_{0}, bytes_in_{0}, sleeps_{0};
  std::atomic<std::uint64_t> segments_{0}, payload_bytes_{0};
};

}  // namespace hora
