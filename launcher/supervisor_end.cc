// The end: carrying out what Termination orders, emptying pipes and outputs, and the verdict.
//
// Nobody is waited for without a limit but a reader of our outputs, and not even that one after a
// signal.
#include <csignal>

#include <fmt/format.h>
#include <poll.h>

#include "launcher/report.h"
#include "launcher/supervision.h"

namespace hora {
namespace {

// After a signal nobody wants to wait for a reader of our stdout that does not read.
constexpr Duration kFlushAfterSignal = 2s;
// For agents to end when they are told to, and for ssh to end when it is killed.
constexpr Duration kHangUpPatience = 5s;

}  // namespace

void Supervisor::carry_out(Termination::Order order) {
  if (order == Termination::Order::none) return;
  if (order == Termination::Order::kill) {
    workers_.signal_everything(SIGKILL);
    fleet_.kill_everything();
    return;
  }
  if (census().workers == 0) {
    workers_.signal_everything(SIGTERM);
    fleet_.signal(SignalWorkers::Target::everything, SIGTERM);
    if (!left_out_.empty()) signal_groups(SIGCONT);  // They may be stopped.
    return;
  }
  if (termination_.failure()) {
    output_->say(terminating_line(termination_.failure()->rank));
  } else if (!job_.quiet) {
    output_->say(fmt::format("horarun: got signal {}; ending the workers",
                             describe_signal(termination_.signal().value_or(SIGTERM))));
  }
  signal_groups(SIGTERM);
  signal_groups(SIGCONT);  // a stopped process acts on SIGTERM only then
}

void Supervisor::finish() {
  std::optional<TimePoint> deadline;
  if (termination_.signal()) deadline = steady_now() + kFlushAfterSignal;
  // Everybody who could write is gone: what the pipes hold is all there will be.
  for (Worker& worker : workers_.all()) {
    for (const Stream stream : {Stream::out, Stream::err}) {
      while (read_worker(worker, stream)) {
        flush_while([&] { return output_->sink(stream).full(); }, deadline);
      }
      output_->on_end(worker.slot.rank, stream);
    }
  }
  flush_while([&] { return fleet_.holds_output(); }, deadline);
  close_fleet();
  say_verdict();
  for (const Stream stream : {Stream::out, Stream::err}) {
    flush_while([&] { return !output_->sink(stream).empty(); }, deadline);
  }
}

// The agents end by themselves when they are told to; ssh is killed where they do not.
void Supervisor::close_fleet() {
  fleet_.finish();
  for (const Duration patience : {kHangUpPatience, kHangUpPatience}) {
    const TimePoint deadline = steady_now() + patience;
    while (!fleet_.closed() && steady_now() < deadline && !hurry_)
      wait(deadline);
    fleet_.hang_up();
  }
}

// Waits for the readers of our outputs: as long as it takes, unless a signal says
// that nobody cares.
void Supervisor::flush_while(const std::function<bool()>& wanted,
                             std::optional<TimePoint> deadline) {
  // What other hosts sent and we hold is delivered after every flush: when some of it is left, a
  // sink is full, and there is something to wait for.
  flush_all();
  fleet_.deliver(false);
  while (wanted() && !hurry_ && !(deadline && steady_now() >= *deadline)) {
    PollSet set;
    if (signals_.valid()) set.add(signals_.get(), POLLIN, [this] { hurry_ = true; });
    watch_sinks(set);
    set.wait(deadline);
    flush_all();
    fleet_.deliver(false);
  }
}

void Supervisor::say_verdict() {
  if (termination_.gave_up()) {
    for (const Worker& worker : workers_.all()) {
      if (!worker.alive) continue;
      output_->say(fmt::format("horarun: rank {} (pid {}) cannot be killed; it is still there",
                               worker.slot.rank.value, worker.pid));
    }
    for (const pid_t pid : workers_.strangers()) {
      output_->say(fmt::format("horarun: process {} cannot be killed; it is still there", pid));
    }
    for (const auto& host : fleet_.hosts()) {
      if (host->census().workers == 0 && !host->census().others) continue;
      output_->say(
          fmt::format("horarun: host '{}': not everything there can be killed; something is left",
                      host->name()));
    }
  }
  if (server_ && server_->strangers() > 0 && !job_.quiet) {
    output_->say(strangers_line(server_->strangers()));
  }
  if (!termination_.failure()) return;
  const Failure& failure = *termination_.failure();
  const Seat& seat = seats_[index_of(failure.rank)];
  const auto& tail = output_->tail(failure.rank).lines();
  for (const std::string& line :
       failure_report(failure.rank, seat.pid, seat.host, failure.status, tail)) {
    output_->say(line);
  }
}

}  // namespace hora
