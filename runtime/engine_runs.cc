// The engine's middle: from a response to a run, from a finished run to its completions.
//
// A response names tensors that are ready everywhere. Their calls leave the tensor table, their
// bytes become pieces or extents of one run (run_layout.h), and the run goes to its lane of the
// executor. A result that came with the response is only copied (carried.h). The memory of results
// whose size only the response tells is made here.
#include <cstring>
#include <utility>

#include "ops/adasum.h"
#include "runtime/base/check.h"
#include "runtime/engine.h"
#include "runtime/run_layout.h"

namespace hora {

void Engine::start_response(const Response& response) {
  Calls calls;
  if (!take_calls(response, calls)) return;
  if (!is_collective(response.kind)) return finish_change(response, calls);
  if (!response.error.empty()) {
    for (const Call& call : calls) {
      if (call) finish_call(*call, fail(error_of(call->request(), response)));
    }
    return;
  }
  if (response.set->includes(session_.world.self)) {
    collectives_.fetch_add(1, std::memory_order_relaxed);
  }
  if (!response.result.empty()) return deliver(response, calls);
  const bool encodes = !response.codec.empty() && response.set->size() > 1;
  encodes ? start_encoded_run(response, std::move(calls)) : start_run(response, std::move(calls));
}

/// Takes this rank's own of the tensors out of the table: none of another set's, maybe not all if
/// it has joined or if they fail. False: the root has answered what it may not; stopped.
bool Engine::take_calls(const Response& response, Calls& calls) {
  const bool due = response.error.empty() && response.set->includes(session_.world.self);
  calls.resize(response.tensors.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Request& request = *response.tensors[i].request;
    auto found = table_.find(key_of(request));
    if (found != table_.end()) {
      end_span(found->second->request());
      calls[i] = std::move(found->second);
      table_.erase(found);
    } else if (due && !table_.contains(TensorKey{kGlobalSet, kJoinName})) {
      for (const Call& call : calls) {
        if (!call) continue;
        call->complete(
            fail(ErrorKind::protocol, "rank 0 answered a tensor that was not submitted"));
      }
      stop(Error{
          ErrorKind::protocol,
          "rank 0 answered '" + name_text(request.name) + "', which this rank has not submitted",
          Rank(0)});
      return false;
    }
  }
  return true;
}

/// What negotiation may send along. Where members may be lost every result has a position in a
/// lane, so that the survivors can say who has it.
const std::byte* Engine::carried_input(const CompletionImpl& call) const {
  if (session_.world.min_size > 0 || call.request().kind != Kind::allreduce) return nullptr;
  return static_cast<const std::byte*>(call.submission().input);
}

/// The result came with the answer.
void Engine::deliver(const Response& response, const Calls& calls) {
  const Call& call = calls.front();
  if (!call) return;
  begin_span(call->request(), to_string(response.kind));
  std::memcpy(call->submission().output, response.result.data(), response.result.size());
  finish_span_and_call(*call);
}

void Engine::start_run(const Response& response, Calls calls) {
  const bool is_adasum = response.kind == Kind::allreduce && response.op == ReduceOp::adasum;
  if (is_adasum && response.set->size() > 1 && byte_count(*response.tensors.front().request) > 0) {
    return start_adasum(response, std::move(calls));
  }
  auto run = std::make_unique<CollectiveRun>();
  if (!lay_out_run(*run, response, calls)) return;
  const std::uint64_t bytes = response.kind == Kind::reducescatter
                                  ? byte_count(*response.tensors.front().request)
                                  : run->total_bytes;
  const Selection::Choice choice = selection_->choose(response.kind, response.dtype, run->op, bytes,
                                                      Rank(response.root), *response.set);
  enqueue(response, choice, std::move(run), std::move(calls));
}

void Engine::enqueue(const Response& response, const Selection::Choice& choice,
                     std::unique_ptr<CollectiveRun> run, Calls calls) {
  run->schedule = choice.schedule;
  run->segment_bytes = choice.segment_bytes;
  run->ticket = next_ticket_++;
  run->contributors = members_;
  const bool is_adasum = response.kind == Kind::allreduce && response.op == ReduceOp::adasum;
  for (const Call& call : calls) {
    if (call) begin_span(call->request(), is_adasum ? kAdasumPhase : to_string(response.kind));
  }
  if (session_.world.min_size > 0) keep_response(*run, response);
  active_.emplace(run->ticket, ActiveRun{response.kind, response.set, std::move(calls)});
  executor_->enqueue(response.lane, std::move(run));
}

/// Everything of a run but its template and its ticket. False: there is no memory, and the engine
/// has stopped.
bool Engine::lay_out_run(CollectiveRun& run, const Response& response, const Calls& calls) {
  run.dtype = response.dtype;
  const bool is_adasum = response.kind == Kind::allreduce && response.op == ReduceOp::adasum;
  run.op = is_adasum ? ReduceOp::sum : response.op;  // Of one rank, or of nothing.
  if (response.set->id != kGlobalSet) run.group = response.set->ranks;
  const int size = response.set->size();
  if (reduces(response.kind)) {
    run.prescale = response.prescale;
    run.finish.postscale = response.postscale;
    if (response.op == ReduceOp::average) run.finish.divisor = size;
  }
  if (has_extents(response.kind)) {
    const int me = response.set->index_of(session_.world.self);
    OwnOutput own = lay_out_extents(response, me, size, run);
    return me < 0 || give_output(run, response, std::move(own), *calls.front());
  }
  add_pieces(run, response, calls);
  return true;
}

/// Three runs, one behind the other (ops/adasum.h). The calls are done with the last.
void Engine::start_adasum(const Response& response, Calls calls) {
  const Call& call = calls.front();
  AdasumTensor tensor;
  tensor.dtype = response.dtype;
  tensor.count = byte_count(*response.tensors.front().request) / size_of(response.dtype);
  tensor.prescale = response.prescale;
  tensor.postscale = response.postscale;
  if (call) {
    tensor.input = static_cast<const std::byte*>(call->submission().input);
    tensor.output = static_cast<std::byte*>(call->submission().output);
  }
  auto runs =
      make_adasum_runs(tensor, response.set->size(), response.set->index_of(session_.world.self));
  if (!runs.back()) return lack_memory(tensor.count * size_of(tensor.dtype), response, call.get());
  const auto choose = [&](Kind kind, CollectiveRun& run) {
    if (response.set->id != kGlobalSet) run.group = response.set->ranks;
    return selection_->choose(kind, run.dtype, run.op, run.total_bytes, Rank(0), *response.set);
  };
  auto& [exchange, sum, gather] = runs;
  for (auto* part : {&exchange, &sum}) {
    const Kind kind = part == &sum ? Kind::allreduce : Kind::alltoall;
    const Selection::Choice choice = choose(kind, **part);
    (*part)->schedule = choice.schedule;
    (*part)->segment_bytes = choice.segment_bytes;
    executor_->enqueue(response.lane, std::move(*part));
  }
  const Selection::Choice choice = choose(Kind::allgather, *gather);
  enqueue(response, choice, std::move(gather), std::move(calls));
}

/// The piece table. A tensor that is not this rank's own - it has joined, or is not in the set - is
/// a piece without memory: zeros if the rank contributes at all.
void Engine::add_pieces(CollectiveRun& run, const Response& response, const Calls& calls) {
  if (response.kind == Kind::barrier) return;
  const bool is_source =
      response.kind != Kind::broadcast || response.root == session_.world.self.value;
  run.pieces.reserve(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    add_piece(run, call && is_source ? call->submission().input : nullptr,
              call ? call->submission().output : nullptr, byte_count(*response.tensors[i].request));
  }
}

/// Makes the memory of a result whose size the response decides. False: there is none, and the
/// engine has stopped.
bool Engine::give_output(CollectiveRun& run, const Response& response, OwnOutput own,
                         CompletionImpl& call) {
  Buffer output = make_buffer(own.bytes);
  if (!output && own.bytes > 0) {
    lack_memory(own.bytes, response, &call);
    return false;
  }
  run.input = static_cast<const std::byte*>(call.submission().input);
  run.output = call.set_output(std::move(output), std::move(own.shape), std::move(own.first_dims));
  return true;
}

/// The engine stops. `call` may be null.
void Engine::lack_memory(std::uint64_t bytes, const Response& response, CompletionImpl* call) {
  stop(Error{ErrorKind::resource,
             "rank " + std::to_string(session_.world.self.value) + " has no memory for the " +
                 std::to_string(bytes) + " bytes of the " + std::string(to_string(response.kind)) +
                 " of '" + name_text(response.tensors.front().request->name) + "'",
             session_.world.self});
  if (call != nullptr) call->complete(fail(*stopped_));
}

void Engine::finish_runs() {
  // First: who is told that a run is done may ask what it took.
  segments_.store(executor_->segments_finished(), std::memory_order_relaxed);
  payload_bytes_.store(executor_->payload_bytes_sent(), std::memory_order_relaxed);
  for (const auto& run : executor_->take_finished()) {
    if (run->ticket != kNoTicket) finish_run(*run);  // Else: a part of another one.
  }
  segments_.store(segments_before_ + executor_->segments_finished(), std::memory_order_relaxed);
  payload_bytes_.store(payload_before_ + executor_->payload_bytes_sent(),
                       std::memory_order_relaxed);
}

void Engine::finish_run(const CollectiveRun& run) {
  const auto found = active_.find(run.ticket);
  if (found == active_.end()) {
    HORA_CHECK(session_.world.min_size > 0, "a finished run was started here");
    return;  // Its calls are complete already.
  }
  ActiveRun active = std::move(found->second);
  active_.erase(found);
  if (session_.world.min_size > 0) set_contributions(run, active);
  for (const Call& call : active.calls) {
    if (call) finish_span_and_call(*call);
  }
}

void Engine::finish_span_and_call(CompletionImpl& call) {
  const Request& request = call.request();
  if (timeline_.on()) timeline_.end(span_name(request), request.dtype, request.shape);
  finish_call(call, {});
}

/// Cuts the ranges of segments at the tensors' ends.
void Engine::set_contributions(const CollectiveRun& run, const ActiveRun& active) const {
  const std::uint64_t element_bytes = run.codec ? sizeof(float) : size_of(run.dtype);
  std::size_t piece = 0;
  for (const Call& call : active.calls) {
    std::vector<ElementRange> ranges;
    const std::uint64_t bytes = has_extents(active.kind) ? 0 : byte_count(call->request());
    if (run.contributed.size() == 1 || bytes == 0 || active.kind == Kind::barrier) {
      ranges.push_back({~std::uint64_t{0}, run.contributed.back().contributors});
    } else {
      const Piece& at = run.pieces[piece];
      for (const Contribution& range : run.contributed) {
        const std::uint64_t end = range.end_segment * run.segment_bytes;
        if (end <= at.start) continue;
        const bool is_last = end - at.start >= at.bytes;
        ranges.push_back(
            {is_last ? ~std::uint64_t{0} : (end - at.start) / element_bytes, range.contributors});
        if (is_last) break;
      }
    }
    piece += bytes > 0 && active.kind != Kind::barrier ? 1 : 0;
    call->set_contributions(std::move(ranges));
  }
}

void Engine::finish_call(CompletionImpl& call, Result<void> outcome) {
  {
    const std::lock_guard lock(mail_mutex_);
    const TensorKey key = key_of(call.request());
    in_flight_.erase(key);
    if (refusals_.erase(key) > 0) release_held();
  }
  tensors_.fetch_add(1, std::memory_order_relaxed);
  call.complete(std::move(outcome));
}

// ---- the timeline: names are unique in a process set, not in a trace ----------------------------

std::string Engine::span_name(const Request& request) {
  if (members_of(request) == kGlobalSet) return request.name;
  return request.name + " (process set " + std::to_string(request.set.value) + ")";
}

void Engine::begin_span(const Request& request, std::string_view phase) {
  if (timeline_.on()) timeline_.begin(span_name(request), phase);
}

void Engine::end_span(const Request& request) {
  if (timeline_.on()) timeline_.end(span_name(request));
}

}  // namespace hora
