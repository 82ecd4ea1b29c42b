// See rendezvous.h. Two maps carry the state: `forming_`, who waits for the next World, and
// `seats_`, who is in the newest one and in which state (present, left, lost). Every input changes
// them and appends what follows to a list of actions; nothing is done here.
#include "elastic/rendezvous.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "elastic/rendezvous_actions.h"

namespace hora {

using rendezvous::Bytes;
using rendezvous::close;
using rendezvous::encoded;
using rendezvous::refuse;
using rendezvous::send;
using rendezvous::tell_owner;

namespace {

using Action = RendezvousAction;

std::string seconds_text(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", to_seconds(duration));
  return text;
}

bool same_process(const Member& a, const Member& b) {
  return a.pid == b.pid && a.host_id == b.host_id;
}

/// "0, 2, 3 and 17 more".
std::string list_text(const std::vector<std::string>& items) {
  constexpr std::size_t kMost = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + items[i];
  }
  if (items.size() > kMost) text += " and " + std::to_string(items.size() - kMost) + " more";
  return text;
}

}  // namespace

Rendezvous::Rendezvous(RendezvousRules rules)
    : rules_(std::move(rules)), monitor_(rules_.heartbeat_limit) {}

Rendezvous::Actions Rendezvous::on_message(ConnectionId from, const Message& message,
                                           TimePoint now) {
  Actions out;
  if (const auto* join = std::get_if<Join>(&message)) {
    on(from, *join, now, out);
    return out;
  }
  const auto rank = seat_of(from);
  if (!rank) {
    // Impatience is no crime, but before its World is there a worker has nothing to say.
    close(from, out);
  } else if (std::holds_alternative<Heartbeat>(message)) {
    send(from, encoded(Heartbeat{}), out);
    if (monitor_.beat(*rank, now)) {
      tell_others(*rank, ControlEvent::Kind::peer_back, "sends heartbeats again", out);
      tell_owner(Action::Kind::back, *rank,
                 describe(seats_.at(*rank).member, *rank) + " sends heartbeats again", out);
    }
  } else if (const auto* report = std::get_if<Report>(&message)) {
    seats_.at(*rank).last_words = report->text;
    // The owner knows processes by the ranks that it gave them.
    tell_owner(Action::Kind::report, Rank(seats_.at(*rank).member.first_rank), report->text, out);
  } else if (std::holds_alternative<Leave>(message)) {
    on_leave(*rank, now, out);
  } else if (const auto* frozen = std::get_if<Frozen>(&message)) {
    change(maker_->on_report(*rank, frozen->report, now), *rank, now, out);
  } else if (const auto* suspect = std::get_if<Suspect>(&message)) {
    if (suspect->epoch == epoch_) {
      change(maker_->on_suspect(*rank, suspect->about, suspect->text, now), suspect->about, now,
             out);
    }
  } else {
    close(from, out);
  }
  return out;
}

std::optional<Error> Rendezvous::objection(const Join& join) const {
  const std::string who = describe(join.member, join.rank);
  const auto error = [](ErrorKind kind, std::string text) {
    return Error{kind, std::move(text), std::nullopt};
  };
  if (ended_) return error(ErrorKind::shutdown, "the job has ended: " + *ended_);
  if (join.size != rules_.size) {
    return error(ErrorKind::invalid_argument,
                 who + " was started for a job of " + std::to_string(join.size) +
                     " ranks, but the job that meets here has " + std::to_string(rules_.size));
  }
  if (join.rank.value < 0 || join.rank.value >= rules_.size) {
    return error(ErrorKind::invalid_argument,
                 who + ": there are only ranks 0 to " + std::to_string(rules_.size - 1));
  }
  const Member* holder = nullptr;
  if (const auto found = forming_.find(join.rank); found != forming_.end()) {
    if (found->second.member.worker != join.member.worker) holder = &found->second.member;
  } else if (const auto rank = seat_of_first(join.rank.value)) {
    const Seat& seat = seats_.at(*rank);
    const bool active = seat.state == Seat::State::present && !seat.lost_at;
    if (active && !same_process(seat.member, join.member)) holder = &seat.member;
  }
  if (holder != nullptr) {
    return error(ErrorKind::invalid_argument,
                 "two processes say they are rank " + std::to_string(join.rank.value) + ": pid " +
                     std::to_string(holder->pid) + " on " + holder->host_name +
                     " came first, pid " + std::to_string(join.member.pid) + " on " +
                     join.member.host_name + " is refused; every process needs a rank of its own");
  }
  return std::nullopt;
}

void Rendezvous::on(ConnectionId from, const Join& join, TimePoint now, Actions& out) {
  if (seat_of(from)) return close(from, out);
  if (const auto error = objection(join)) return refuse(from, *error, out);
  exited_.erase(join.rank);
  gone_.erase(join.rank);
  if (!exited_.empty() &&
      (rules_.min_size == 0 || rules_.size - static_cast<int>(exited_.size()) < rules_.min_size)) {
    const auto& [rank, text] = *exited_.begin();
    return refuse(
        from,
        {ErrorKind::peer_lost,
         "rank " + std::to_string(rank.value) + " has ended and will not come: " + text, rank},
        out);
  }
  // A member that comes again has left the World it was in, even if its Leave is still under way.
  if (const auto rank = seat_of_first(join.rank.value);
      rank && seats_.at(*rank).state == Seat::State::present && !seats_.at(*rank).lost_at) {
    on_leave(*rank, now, out);
  }
  if (const auto old = forming_.find(join.rank); old != forming_.end()) {
    if (old->second.connection != from) close(old->second.connection, out);
  }
  forming_[join.rank] = {from, join.member, now + std::chrono::milliseconds(join.wait_ms)};
  if (complete()) form(now, out);
}

bool Rendezvous::complete() const {
  const auto here = static_cast<int>(forming_.size());
  if (here == rules_.size) return true;
  const auto ended = static_cast<int>(exited_.size());
  return rules_.min_size > 0 && here >= rules_.min_size && here + ended == rules_.size;
}

void Rendezvous::form(TimePoint now, Actions& out) {
  for (const auto& [rank, seat] : seats_)
    monitor_.stop(rank);
  seats_.clear();
  seated_.clear();
  gone_.clear();
  epoch_.value += 1;
  World world{rules_.world_job, epoch_, Rank(0), {}, rules_.min_size};
  for (const auto& [first_rank, joiner] : forming_) {
    const Rank rank(world.size());
    world.members.push_back(joiner.member);
    world.members.back().first_rank = first_rank.value;
    seats_[rank] = {Seat::State::present, joiner.connection, world.members.back(), "", "",
                    std::nullopt};
    seated_[joiner.connection] = rank;
    monitor_.start(rank, now);
  }
  maker_ = make_sole_world_maker(world, {rules_.min_size, rules_.report_limit});
  const Bytes welcome = encoded(Welcome{std::move(world)});
  for (const auto& [rank, joiner] : forming_)
    send(joiner.connection, welcome, out);
  forming_.clear();
  tell_owner(Action::Kind::formed, Rank(-1), "", out);
}

void Rendezvous::on_leave(Rank rank, TimePoint now, Actions& out) {
  Seat& seat = seats_.at(rank);
  if (seat.state != Seat::State::present) return;
  seat.state = Seat::State::left;
  monitor_.stop(rank);
  change(maker_->on_left(rank, now), rank, now, out);
  check_all_left(out);
}

Rendezvous::Actions Rendezvous::on_closed(ConnectionId connection, TimePoint now) {
  Actions out;
  for (const auto& [rank, joiner] : forming_) {
    if (joiner.connection != connection) continue;
    gone_[rank] = describe(joiner.member, rank);
    forming_.erase(rank);
    return out;
  }
  const auto rank = seat_of(connection);
  if (!rank) return out;
  seated_.erase(connection);
  Seat& seat = seats_.at(*rank);
  if (seat.state != Seat::State::present) return out;
  monitor_.stop(*rank);
  seat.lost_at = now + rules_.evidence_grace;
  if (rules_.evidence_grace == Duration::zero()) lose(*rank, "its process has ended", now, out);
  return out;
}

Rendezvous::Actions Rendezvous::on_exit(Rank rank, const std::string& text, TimePoint now) {
  Actions out;
  exited_[rank] = text;
  const auto seat = seat_of_first(rank.value);
  const bool seated = seat && seats_.at(*seat).state == Seat::State::present;
  const auto waiting = forming_.find(rank);
  if (waiting != forming_.end()) {
    close(waiting->second.connection, out);
    forming_.erase(waiting);
  }
  if (seated) lose(*seat, text, now, out);
  if (complete()) {
    form(now, out);
  } else if (!forming_.empty() &&
             (rules_.min_size == 0 ||
              rules_.size - static_cast<int>(exited_.size()) < rules_.min_size)) {
    refuse_all(
        {ErrorKind::peer_lost,
         "rank " + std::to_string(rank.value) + " ended before all had started: " + text, rank},
        out);
  }
  return out;
}

void Rendezvous::lose(Rank rank, const std::string& text, TimePoint now, Actions& out) {
  Seat& seat = seats_.at(rank);
  seat.state = Seat::State::lost;
  seat.lost_at.reset();
  monitor_.stop(rank);
  const std::string how =
      seat.last_words.empty() ? text : text + "; its last words: " + seat.last_words;
  seat.how = how;
  const std::string who = describe(seat.member, rank) + ": " + how;
  if (rules_.min_size == 0) tell_others(rank, ControlEvent::Kind::peer_lost, how, out);
  tell_owner(Action::Kind::lost, rank, who, out);
  if (rules_.min_size > 0) change(maker_->on_lost(rank, who, now), rank, now, out);
  check_all_left(out);
}

void Rendezvous::tell_others(Rank about, ControlEvent::Kind kind, const std::string& text,
                             Actions& out) const {
  const Bytes bytes = encoded(Event{{kind, about, text}});
  for (const auto& [connection, rank] : seated_) {
    if (rank != about && seats_.at(rank).state == Seat::State::present)
      send(connection, bytes, out);
  }
}

void Rendezvous::refuse_all(const Error& error, Actions& out) {
  for (const auto& [rank, joiner] : forming_)
    refuse(joiner.connection, error, out);
  forming_.clear();
}

Rendezvous::Actions Rendezvous::on_end(const std::string& text) {
  Actions out;
  ended_ = text;
  const Bytes bytes = encoded(Event{{ControlEvent::Kind::job_ended, std::nullopt, text}});
  for (const auto& [connection, rank] : seated_)
    send(connection, bytes, out);
  refuse_all({ErrorKind::shutdown, "the job has ended: " + text, std::nullopt}, out);
  return out;
}

Rendezvous::Actions Rendezvous::on_stop() {
  Actions out;
  const Bytes bytes = encoded(Goodbye{});
  for (const auto& [connection, rank] : seated_) {
    send(connection, bytes, out);
    close(connection, out);
  }
  // Who waits for the next World may find another rendezvous in this place: the end of the
  // connection tells it to look again.
  for (const auto& [rank, joiner] : forming_)
    close(joiner.connection, out);
  return out;
}

Rendezvous::Actions Rendezvous::on_tick(TimePoint now) {
  Actions out;
  time_out(now, out);
  std::vector<Rank> lost;
  for (const auto& [rank, seat] : seats_) {
    if (seat.lost_at && now >= *seat.lost_at) lost.push_back(rank);
  }
  for (const Rank rank : lost)
    lose(rank, "its process has ended", now, out);
  if (maker_) {
    if (const auto due = maker_->next_deadline(); due && now >= *due) {
      change(maker_->on_tick(now), Rank(-1), now, out);
    }
  }
  if (const auto due = monitor_.next_check(); !due || now < *due) return out;
  for (const auto& [rank, silent_for] : monitor_.check(now)) {
    const Member& member = seats_.at(rank).member;
    std::string text = "has sent no heartbeat for " + seconds_text(silent_for);
    if (const std::string more = rules_.inspect ? rules_.inspect(member) : ""; !more.empty()) {
      text += "; " + more;
    }
    tell_others(rank, ControlEvent::Kind::peer_silent, text, out);
    tell_owner(Action::Kind::silent, rank, describe(member, rank) + " " + text, out);
  }
  return out;
}

void Rendezvous::time_out(TimePoint now, Actions& out) {
  const bool expired = std::any_of(forming_.begin(), forming_.end(), [now](const auto& entry) {
    return now >= entry.second.gives_up;
  });
  // One that gives up is missing for all others: they fail now, with the same words.
  if (expired) refuse_all({ErrorKind::timeout, absent_and_present(), std::nullopt}, out);
}

std::string Rendezvous::absent_and_present() const {
  std::vector<std::string> absent, present;
  for (int value = 0; value < rules_.size; ++value) {
    const Rank rank(value);
    const std::string number = std::to_string(value);
    if (const auto found = forming_.find(rank); found != forming_.end()) {
      present.push_back(number + " (pid " + std::to_string(found->second.member.pid) + " on " +
                        found->second.member.host_name + ")");
    } else if (const auto gone = gone_.find(rank); gone != gone_.end()) {
      absent.push_back(number + " (came and went: " + gone->second + ")");
    } else {
      absent.push_back(number);
    }
  }
  return "not all of the " + std::to_string(rules_.size) +
         " ranks have come. Missing: " + list_text(absent) + ". Here: " + list_text(present) +
         ". Look at the output of the missing ranks, or raise HORA_START_TIMEOUT_MS";
}

void Rendezvous::check_all_left(Actions& out) {
  const bool present = std::any_of(seats_.begin(), seats_.end(), [](const auto& entry) {
    return entry.second.state == Seat::State::present;
  });
  if (!present) tell_owner(Action::Kind::all_left, Rank(-1), "", out);
}

std::optional<Rank> Rendezvous::seat_of(ConnectionId connection) const {
  const auto found = seated_.find(connection);
  if (found == seated_.end()) return std::nullopt;
  return found->second;
}

std::optional<Rank> Rendezvous::seat_of_first(std::int32_t first_rank) const {
  for (const auto& [rank, seat] : seats_) {
    if (seat.member.first_rank == first_rank) return rank;
  }
  return std::nullopt;
}

std::optional<TimePoint> Rendezvous::next_deadline() const {
  std::optional<TimePoint> next = monitor_.next_check();
  const auto consider = [&next](TimePoint at) { next = next ? std::min(*next, at) : at; };
  for (const auto& [rank, joiner] : forming_)
    consider(joiner.gives_up);
  for (const auto& [rank, seat] : seats_) {
    if (seat.lost_at) consider(*seat.lost_at);
  }
  if (maker_) {
    if (const auto due = maker_->next_deadline()) consider(*due);
  }
  return next;
}

}  // namespace hora
