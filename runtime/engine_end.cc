// The engine's end: orderly, or because a member is lost.
//
// Orderly: a rank's shutdown came in the stream of responses. What was answered before is finished,
// and what the transports still hold is sent; then everything stops. Otherwise: a link broke, or
// the control link brought the news of a death. A broken link alone waits a moment for the better
// account of how the peer ended.
#include <algorithm>
#include <utility>

#include "runtime/engine.h"

namespace hora {

void Engine::watch_links(TimePoint now) {
  if (stopped_ || phase_ != Phase::running) return;
  if (executor_ && executor_->failure()) return stop(*executor_->failure());
  if (ending_ && executor_ && (drained() || now >= ending_until_)) return stop(*ending_);
  // In an orderly end members leave one by one, as soon as they have finished what was answered.
  const auto harmless = [this](const Error& error) {
    return ending_ && error.kind == ErrorKind::shutdown;
  };
  if (suspicion_ && harmless(*suspicion_)) suspicion_.reset();
  if (!suspicion_) {
    for (const auto& link : session_.links) {
      if (!link || !link->failure() || harmless(*link->failure())) continue;
      suspicion_ = link->failure();
      suspicion_until_ = now + kEvidenceGrace;
      break;
    }
  }
  if (!suspicion_ || now < suspicion_until_) return;
  if (elastic() && suspicion_->peer && !suspected_ && suspicion_->kind != ErrorKind::protocol) {
    // Nobody has said that it is dead: maybe only the connection is.
    suspected_ = true;
    suspicion_until_ = now + kSuspicionPatience;
    return succession_->suspect(session_.world.epoch, *suspicion_->peer, suspicion_->message);
  }
  Error error = *suspicion_;
  error.message = "Hora lost " +
                  (error.peer ? session_.world.describe(*error.peer) : std::string("a rank")) +
                  ": " + error.message + what_is_running();
  stop(std::move(error));
}

bool Engine::drained() const {
  return !executor_->busy() &&
         std::all_of(session_.transports.begin(), session_.transports.end(),
                     [](const auto& transport) { return transport->drained(); });
}

std::string Engine::what_is_running() const {
  std::string text;
  if (!executor_ || (!executor_->busy() && table_.empty())) return text;
  const std::string segment = executor_->describe();
  const auto own = std::find_if(active_.begin(), active_.end(), [](const auto& run) {
    const Calls& calls = run.second.calls;
    return std::all_of(calls.begin(), calls.end(),
                       [](const Call& call) { return call != nullptr; });
  });
  if (own != active_.end()) {
    const ActiveRun& run = own->second;
    text = " (this rank was in " + std::string(to_string(run.kind)) + " of '" +
           name_text(run.calls.front()->request().name) + "'" +
           (run.calls.size() > 1 ? " and " + std::to_string(run.calls.size() - 1) + " more" : "") +
           (segment.empty() ? "" : ", " + segment) + ")";
  } else if (!table_.empty()) {
    text = " (this rank was waiting for all ranks to submit '" +
           name_text(table_.begin()->first.name) + "')";
  }
  return text;
}

void Engine::end(const Error& error) {
  if (ending_ || stopped_) return;
  ending_ = error;
  std::vector<Call> held;
  {
    const std::lock_guard lock(mail_mutex_);
    refuse_ = error;
    for (const auto& [key, call] : table_) {
      in_flight_.erase(key);
      refusals_.erase(key);
    }
    held = take_held();
  }
  for (const Call& call : held)
    call->complete(fail(error));
  for (auto& [key, call] : table_)
    call->complete(fail(error));
  table_.clear();
}

void Engine::stop(Error error) {
  if (stopped_) return;
  const Error& why = stopped_.emplace(std::move(error));
  Mail mail;
  std::vector<Call> held;
  std::shared_ptr<CompletionImpl> shutdown_done;
  {
    const std::lock_guard lock(mail_mutex_);
    refuse_ = why;
    over_ = true;
    std::swap(mail, inbox_);
    mail_.store(false, std::memory_order_relaxed);
    in_flight_.clear();
    refusals_.clear();
    held = take_held();
    shutdown_done = shutdown_done_;
  }
  executor_.reset();  // First: from here on nobody writes into a caller's tensor.
  for (auto& [key, call] : table_)
    call->complete(fail(why));
  table_.clear();
  for (auto& [ticket, run] : active_) {
    for (Call& call : run.calls) {
      if (call) call->complete(fail(why));
    }
  }
  active_.clear();
  for (Call& call : mail.calls)
    call->complete(fail(why));
  for (const Call& call : held)
    call->complete(fail(why));
  if (shutdown_done && !shutdown_done->done()) shutdown_done->complete({});
  for (const auto& transport : session_.transports)
    transport->flush();
}

}  // namespace hora
