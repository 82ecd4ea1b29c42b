// Plain loops over hosts; there is at most one RemoteHost per host name.
#include "launcher/fleet.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

namespace hora {
namespace {

using Phase = RemoteHost::Phase;

// For other bad hosts to be found, after the first.
constexpr Duration kMomentForOthers = 2s;

}  // namespace

Fleet::Fleet(FleetOptions options, const RemoteEvents& events)
    : start_timeout_(options.start_timeout) {
  for (RemoteHostOptions& host : options.hosts) {
    hosts_.push_back(std::make_unique<RemoteHost>(std::move(host), events));
  }
}

Result<void> Fleet::dial(const Environment& own, const Inherited& inherited,
                         const std::function<void(pid_t)>& add_helper) {
  start_deadline_ = steady_now() + start_timeout_;
  for (const auto& host : hosts_) {
    HORA_TRY(host->dial(own, inherited));
    add_helper(host->ssh());
  }
  return {};
}

Fleet::Start Fleet::check_start(TimePoint now) {
  const auto count = [&](Phase phase) {
    return std::count_if(hosts_.begin(), hosts_.end(),
                         [&](const auto& host) { return host->phase() == phase; });
  };
  const auto failed = count(Phase::failed);
  const auto waiting = static_cast<long>(hosts_.size()) - count(Phase::ready) - failed;
  if (waiting == 0) return failed == 0 ? Start::ready : Start::failed;
  if (failed > 0) start_deadline_ = std::min(*start_deadline_, now + kMomentForOthers);
  if (now < *start_deadline_) return Start::waiting;
  for (const auto& host : hosts_) {
    if (host->phase() != Phase::dialing && host->phase() != Phase::greeted) continue;
    // Not its fault if it was cut short because of another one.
    host->give_up(failed > 0 ? ""
                             : fmt::format("is not ready within {:.0f} s (--start-timeout)",
                                           to_seconds(start_timeout_)));
  }
  return Start::failed;
}

int Fleet::start_exit_code() const {
  for (const auto& host : hosts_) {
    if (host->phase() == Phase::failed && host->exit_code() != 1) return host->exit_code();
  }
  return 1;
}

void Fleet::start_workers() {
  start_deadline_.reset();
  for (const auto& host : hosts_)
    host->start();
}

void Fleet::watch(PollSet& set) {
  for (const auto& host : hosts_)
    host->watch(set);
}

void Fleet::step(TimePoint now) {
  for (const auto& host : hosts_)
    host->step(now);
}

std::optional<TimePoint> Fleet::deadline() const {
  std::optional<TimePoint> first = start_deadline_;
  for (const auto& host : hosts_) {
    const TimePoint at = host->deadline();
    if (at != TimePoint::max()) first = std::min(first.value_or(at), at);
  }
  return first;
}

void Fleet::on_helper_end(const EndedHelper& ended) {
  for (const auto& host : hosts_) {
    if (host->ssh() == ended.pid) host->on_ssh_end(ended.status);
  }
}

void Fleet::signal(SignalWorkers::Target target, int signo) {
  for (const auto& host : hosts_)
    host->signal(target, signo);
}

// Agents repeat it by themselves.
void Fleet::kill_everything() {
  if (!killing_) signal(SignalWorkers::Target::everything, SIGKILL);
  killing_ = true;
}

Census Fleet::census() const {
  Census sum;
  for (const auto& host : hosts_) {
    sum.workers += host->census().workers;
    sum.others = sum.others || host->census().others;
  }
  return sum;
}

void Fleet::deliver(bool all) {
  for (const auto& host : hosts_)
    host->deliver(all);
}

bool Fleet::holds_output() const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [](const auto& host) { return host->holds_output(); });
}

void Fleet::finish() {
  start_deadline_.reset();
  for (const auto& host : hosts_)
    host->finish();
}

void Fleet::hang_up() {
  for (const auto& host : hosts_) {
    if (host->ssh_alive()) host->give_up("");
  }
}

bool Fleet::closed() const {
  return std::none_of(hosts_.begin(), hosts_.end(),
                      [](const auto& host) { return host->ssh_alive(); });
}

bool Fleet::wants_stdin() const {
  return !hosts_.empty() && std::any_of(hosts_.begin(), hosts_.end(),
                                        [](const auto& host) { return host->wants_stdin(); });
}

void Fleet::send_stdin(std::string bytes) {
  for (const auto& host : hosts_) {
    if (!host->wants_stdin()) continue;
    host->send_stdin(std::move(bytes));
    return;
  }
}

}  // namespace hora
