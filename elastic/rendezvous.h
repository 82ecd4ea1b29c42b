// Rendezvous: makes Worlds. Pure: messages and time come in, actions go out.
//
//   Join                  a place in the forming World; a second process for a place is refused
//   the last place taken  Welcome to all, with the next epoch
//   Heartbeat             answered; silence and return become events for the others
//   Leave                 that member's end is no death any more
//   connection ends       peer_lost for the others, after a grace period in which the launcher may
//                         say how the process ended
//   an exit announced     peer_lost at once; while the World is forming, Refuse to all who wait
//
// With a least size (RendezvousRules::min_size) a loss is no end: members are asked to freeze, and
// those who say how far they have come are the next World (world_change.h). Ranks change then; what
// the launcher says of a process it says by the rank with which that was started (first_rank).
//
// One World lives while the next one forms: the same processes may shut down and start again
// any number of times, each round a World with the next epoch. A member that joins again has
// left its old World.
//
// Memory is bounded by the size of the job: a place per rank, forming and seated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/heartbeat_monitor.h"
#include "elastic/messages.h"
#include "elastic/world.h"
#include "elastic/world_change.h"

namespace hora {

/// Names a connection at the edge; never reused.
using ConnectionId = std::uint64_t;

/// What the edge shall do.
struct RendezvousAction {
  enum class Kind {
    send,      ///< `bytes` to `connection`.
    close,     ///< `connection`, after what was sent.
    lost,      ///< Tell the owner: `rank` is lost; `text` says who and how.
    silent,    ///< Tell the owner: `rank` is silent.
    back,      ///< Tell the owner: `rank` is back.
    report,    ///< Tell the owner: last words of `rank`.
    formed,    ///< Tell the owner: a World was made.
    changed,   ///< Tell the owner: the job goes on in another World; `text` says why.
    left_out,  ///< Tell the owner: it goes on without whom was started as `rank`, who may live.
    all_left,  ///< Tell the owner: the World's last member has left or is lost.
  };
  Kind kind{};
  ConnectionId connection = 0;
  Rank rank{};
  std::string text;
  std::shared_ptr<const std::vector<std::byte>> bytes;
};

struct RendezvousRules {
  int size = 1;
  std::array<std::byte, 16> world_job{};  ///< Goes into every World.
  Duration heartbeat_limit = 2s;
  /// How long the end of a connection waits for a better explanation (announce_exit).
  Duration evidence_grace = 0ms;
  /// More about a silent member, such as "state T (stopped)", or an empty text.
  std::function<std::string(const Member&)> inspect;
  /// With as many ranks the job goes on when others die; 0: a death ends it.
  int min_size = 0;
  /// How long a member may take to say how far it has come.
  Duration report_limit = 10s;
};

/// Owner: one thread.
class Rendezvous {
 public:
  using Actions = std::vector<RendezvousAction>;

  explicit Rendezvous(RendezvousRules rules);

  Actions on_message(ConnectionId from, const Message& message, TimePoint now);
  Actions on_closed(ConnectionId connection, TimePoint now);
  /// Outside evidence that a rank's process has ended: "killed by signal 9 (Killed)".
  Actions on_exit(Rank rank, const std::string& text, TimePoint now);
  /// The job ends for everybody, now and later.
  Actions on_end(const std::string& text);
  /// The rendezvous itself ends in order.
  Actions on_stop();
  /// Time has passed; call at next_deadline() or later.
  Actions on_tick(TimePoint now);
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

 private:
  /// Somebody who waits for the forming World.
  struct Joiner {
    ConnectionId connection = 0;
    Member member;
    TimePoint gives_up;
  };
  /// A member of the newest World.
  struct Seat {
    enum class State { present, left, lost };
    State state = State::present;
    ConnectionId connection = 0;
    Member member;
    std::string last_words;
    std::string how;  ///< It was lost.
    std::optional<TimePoint>
        lost_at;  ///< Its connection has ended; lost then, if nobody knows better.
  };

  void on(ConnectionId from, const Join& join, TimePoint now, Actions& out);
  void on_leave(Rank rank, TimePoint now, Actions& out);
  [[nodiscard]] std::optional<Error> objection(const Join& join) const;
  void form(TimePoint now, Actions& out);
  void lose(Rank rank, const std::string& text, TimePoint now, Actions& out);
  void change(const WorldMaker::Actions& actions, Rank lost, TimePoint now, Actions& out);
  void install(const NextWorld& next, TimePoint now, Actions& out);
  void leave_out(Rank rank, const std::string& text, Actions& out);
  /// So many ranks that the job can go on without those that have ended are waiting.
  [[nodiscard]] bool complete() const;
  [[nodiscard]] std::optional<Rank> seat_of_first(std::int32_t first_rank) const;
  void tell_others(Rank about, ControlEvent::Kind kind, const std::string& text,
                   Actions& out) const;
  void refuse_all(const Error& error, Actions& out);
  void time_out(TimePoint now, Actions& out);
  void check_all_left(Actions& out);
  [[nodiscard]] std::optional<Rank> seat_of(ConnectionId connection) const;
  [[nodiscard]] std::string absent_and_present() const;

  RendezvousRules rules_;
  HeartbeatMonitor monitor_;
  Epoch epoch_{0};
  std::unique_ptr<WorldMaker> maker_;  ///< Of what follows the newest World.
  std::map<Rank, Joiner> forming_;     ///< By first rank, as `exited_` and `gone_`.
  std::map<Rank, Seat> seats_;
  std::map<ConnectionId, Rank> seated_;
  std::map<Rank, std::string> exited_;  ///< Processes that ended and have not been started again.
  std::map<Rank, std::string> gone_;    ///< Joiners that vanished while they waited.
  std::optional<std::string> ended_;
};

}  // namespace hora
