// The rendezvous while a World ends: it carries out what the WorldMaker decides.
//
// The seats of the new World are those of the old one, renumbered: connections, last words and a
// death that waits for its explanation go with them. Order on a control connection does the rest: a
// member always hears of the new World before it is asked to freeze it.
#include <utility>

#include "elastic/rendezvous.h"
#include "elastic/rendezvous_actions.h"

namespace hora {

using rendezvous::close;
using rendezvous::encoded;
using rendezvous::send;
using rendezvous::tell_owner;

void Rendezvous::change(const WorldMaker::Actions& actions, Rank lost, TimePoint now,
                        Actions& out) {
  for (const ChangeAction& action : actions) {
    switch (action.kind) {
      case ChangeAction::Kind::freeze:
        send(seats_.at(action.rank).connection, encoded(Freeze{epoch_, action.text}), out);
        break;
      case ChangeAction::Kind::leave_out:
        leave_out(action.rank, action.text, out);
        break;
      case ChangeAction::Kind::give_up:
        if (lost.value >= 0 && seats_.at(lost).state == Seat::State::lost) {
          tell_others(lost, ControlEvent::Kind::peer_lost, seats_.at(lost).how, out);
        } else {
          for (const auto& [connection, rank] : seated_) {
            send(connection,
                 encoded(Event{{ControlEvent::Kind::job_ended, std::nullopt, action.text}}), out);
          }
        }
        break;
      case ChangeAction::Kind::install:
        install(*action.next, now, out);
        return;  // The maker of the old World is gone.
    }
  }
}

void Rendezvous::leave_out(Rank rank, const std::string& text, Actions& out) {
  Seat& seat = seats_.at(rank);
  seat.state = Seat::State::lost;
  seat.lost_at.reset();
  monitor_.stop(rank);
  send(seat.connection,
       encoded(Event{{ControlEvent::Kind::job_ended, std::nullopt,
                      "the others go on without this worker: " + text}}),
       out);
  close(seat.connection, out);
  seated_.erase(seat.connection);
  tell_owner(RendezvousAction::Kind::left_out, Rank(seat.member.first_rank), text, out);
}

void Rendezvous::install(const NextWorld& next, TimePoint now, Actions& out) {
  std::map<Rank, Seat> seats;
  seated_.clear();
  for (const auto& [rank, seat] : seats_)
    monitor_.stop(rank);
  for (int place = 0; place < next.world.size(); ++place) {
    const Rank rank(place);
    Seat& seat = seats[rank] = std::move(seats_.at(Rank(next.old_ranks[index_of(rank)])));
    seat.member = next.world.members[index_of(rank)];
    if (seat.lost_at) continue;  // Its connection has ended already.
    seated_[seat.connection] = rank;
    monitor_.start(rank, now);
  }
  const int before = static_cast<int>(seats_.size());
  seats_ = std::move(seats);
  epoch_ = next.world.epoch;
  const auto bytes = encoded(Install{next});
  for (const auto& [connection, rank] : seated_)
    send(connection, bytes, out);
  tell_owner(RendezvousAction::Kind::changed, Rank(-1),
             std::to_string(next.world.size()) + " of " + std::to_string(before) +
                 " ranks go on (World " + std::to_string(epoch_.value) + "): " + next.reason,
             out);
  maker_ = make_sole_world_maker(next.world, {rules_.min_size, rules_.report_limit});
}

}  // namespace hora
