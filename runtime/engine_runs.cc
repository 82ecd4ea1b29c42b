// The engine's middle: from a response to a run, from a finished run to its completions.
//
// A response names tensors that are ready everywhere. Their calls leave the tensor table, their
// bytes become pieces of one run, and the run goes to its lane of the executor. The memory of an
// all-gather's result is made here, because only the response says how much every rank brings.
#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/engine.h"

namespace hora {

namespace {

constexpr std::uint64_t kPieceAlign = 64;

std::uint64_t align_piece(std::uint64_t bytes) {
  return (bytes + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
}

}  // namespace

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
  if (response.kind == Kind::allgather) {
    if (!prepare_gather(*run, response, *calls.front())) return;
  } else {
    const bool is_source =
        response.kind != Kind::broadcast || response.root == session_.world.self.value;
    run->pieces.reserve(calls.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Submission& submission = calls[i]->submission();
      const std::uint64_t bytes =
          response.kind == Kind::barrier ? 0 : byte_count(*response.tensors[i].request);
      if (bytes == 0) continue;
      run->pieces.push_back({is_source ? static_cast<const std::byte*>(submission.input) : nullptr,
                             static_cast<std::byte*>(submission.output),
                             align_piece(run->total_bytes), bytes});
      run->total_bytes = run->pieces.back().start + bytes;
    }
    if (response.kind == Kind::allreduce) {
      run->prescale = response.prescale;
      run->finish.postscale = response.postscale;
      if (response.op == ReduceOp::average) run->finish.divisor = session_.world.size();
    }
  }
  const Selection::Choice choice = selection_->choose(response.kind, response.dtype, response.op,
                                                      run->total_bytes, response.root);
  run->schedule = choice.schedule;
  run->segment_bytes = choice.segment_bytes;
  run->ticket = next_ticket_++;

  for (const Call& call : calls) {
    timeline_.begin(call->request().name, to_string(response.kind));
  }
  active_.emplace(run->ticket, ActiveRun{response.kind, std::move(calls)});
  executor_->enqueue(response.lane, std::move(run));
}

bool Engine::prepare_gather(CollectiveRun& run, const Response& response, CompletionImpl& call) {
  const ResponseTensor& tensor = response.tensors.front();
  std::vector<std::int64_t> shape = tensor.request->shape;
  const std::int64_t row_elements =
      std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>{});
  const std::uint64_t row_bytes =
      static_cast<std::uint64_t>(row_elements) * size_of(response.dtype);
  std::uint64_t output_bytes = 0;
  std::int64_t rows = 0;
  for (const std::int64_t dim : tensor.first_dims) {
    run.contributions.push_back(static_cast<std::uint64_t>(dim) * row_bytes);
    run.output_offsets.push_back(output_bytes);
    run.total_bytes = std::max(run.total_bytes, run.contributions.back());
    output_bytes += run.contributions.back();
    rows += dim;
  }
  Buffer output = make_buffer(output_bytes);
  if (!output && output_bytes > 0) {
    stop(Error{ErrorKind::resource,
               "rank " + std::to_string(session_.world.self.value) + " has no memory for the " +
                   std::to_string(output_bytes) + " bytes of the allgather of '" +
                   name_text(tensor.request->name) + "'",
               session_.world.self});
    call.complete(fail(*stopped_));
    return false;
  }
  shape.front() = rows;
  run.output = call.set_output(std::move(output), std::move(shape), tensor.first_dims);
  const std::size_t self = index_of(session_.world.self);
  run.pieces.push_back({static_cast<const std::byte*>(call.submission().input), nullptr, 0,
                        run.contributions[self]});
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
