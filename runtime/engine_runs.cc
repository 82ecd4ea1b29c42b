// The engine's middle: from a response to a run, from a finished run to its completions.
//
// A response names tensors that are ready everywhere. Their calls leave the tensor table, their
// bytes become pieces or extents of one run (run_layout.h), and the run goes to its lane of the
// executor. The memory of results whose size only the response tells is made here.
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine.h"
#include "runtime/run_layout.h"

namespace hora {

void Engine::start_response(const Response& response) {
  std::vector<Call> calls;
  calls.reserve(response.tensors.size());
  for (const ResponseTensor& tensor : response.tensors) {
    const std::string& name = tensor.request->name;
    auto found = table_.find(name);
    if (found == table_.end()) {
      for (Call& call : calls)
        call->complete(
            fail(ErrorKind::protocol, "rank 0 answered a tensor that was not submitted"));
      return stop(Error{
          ErrorKind::protocol,
          "rank 0 answered '" + name_text(name) + "', which this rank has not submitted", Rank(0)});
    }
    timeline_.end(name);
    calls.push_back(std::move(found->second));
    table_.erase(found);
  }
  if (!response.error.empty()) {
    for (Call& call : calls)
      finish_call(*call, fail(response.error_kind, response.error));
    return;
  }
  collectives_.fetch_add(1, std::memory_order_relaxed);
  start_run(response, std::move(calls));
}

void Engine::start_run(const Response& response, std::vector<Call> calls) {
  auto run = std::make_unique<CollectiveRun>();
  run->dtype = response.dtype;
  run->op = response.op;
  const int size = session_.world.size();
  if (reduces(response.kind)) {
    run->prescale = response.prescale;
    run->finish.postscale = response.postscale;
    if (response.op == ReduceOp::average) run->finish.divisor = size;
  }
  if (has_extents(response.kind)) {
    OwnOutput own = lay_out_extents(response, session_.world.self.value, size, *run);
    if (!give_output(*run, response, std::move(own), *calls.front())) return;
  } else {
    const bool is_source =
        response.kind != Kind::broadcast || response.root == session_.world.self.value;
    run->pieces.reserve(calls.size());
    for (const Call& call : calls) {
      const Submission& submission = call->submission();
      add_piece(*run, is_source ? submission.input : nullptr, submission.output,
                response.kind == Kind::barrier ? 0 : byte_count(call->request()));
    }
  }
  const std::uint64_t bytes = response.kind == Kind::reducescatter
                                  ? byte_count(*response.tensors.front().request)
                                  : run->total_bytes;
  const Selection::Choice choice =
      selection_->choose(response.kind, response.dtype, response.op, bytes, response.root);
  run->schedule = choice.schedule;
  run->segment_bytes = choice.segment_bytes;
  run->ticket = next_ticket_++;

  for (const Call& call : calls) {
    timeline_.begin(call->request().name, to_string(response.kind));
  }
  active_.emplace(run->ticket, ActiveRun{response.kind, std::move(calls)});
  executor_->enqueue(response.lane, std::move(run));
}

/// Makes the memory of a result whose size the response decides. False: there is none, and the
/// engine has stopped.
bool Engine::give_output(CollectiveRun& run, const Response& response, OwnOutput own,
                         CompletionImpl& call) {
  Buffer output = make_buffer(own.bytes);
  if (!output && own.bytes > 0) {
    stop(Error{ErrorKind::resource,
               "rank " + std::to_string(session_.world.self.value) + " has no memory for the " +
                   std::to_string(own.bytes) + " bytes of the " +
                   std::string(to_string(response.kind)) + " of '" +
                   name_text(call.request().name) + "'",
               session_.world.self});
    call.complete(fail(*stopped_));
    return false;
  }
  run.input = static_cast<const std::byte*>(call.submission().input);
  run.output = call.set_output(std::move(output), std::move(own.shape), std::move(own.first_dims));
  return true;
}

void Engine::finish_runs() {
  for (const auto& run : executor_->take_finished()) {
    auto found = active_.find(run->ticket);
    HORA_CHECK(found != active_.end(), "a finished run was started here");
    ActiveRun active = std::move(found->second);
    active_.erase(found);
    for (Call& call : active.calls) {
      const Request& request = call->request();
      timeline_.end(request.name, request.dtype, request.shape);
      finish_call(*call, {});
    }
  }
  segments_.store(executor_->segments_finished(), std::memory_order_relaxed);
}

void Engine::finish_call(CompletionImpl& call, Result<void> outcome) {
  {
    const std::lock_guard lock(mail_mutex_);
    in_flight_.erase(call.request().name);
  }
  tensors_.fetch_add(1, std::memory_order_relaxed);
  call.complete(std::move(outcome));
}

}  // namespace hora
