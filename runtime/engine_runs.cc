// The engine's middle: from a response to a run, from a finished run to its completions.
//
// A response names tensors that are ready everywhere. Their entries leave the tensor table, their
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

void Engine::start_response(Response response) {
  std::vector<Entry> entries;
  entries.reserve(response.tensors.size());
  for (const ResponseTensor& tensor : response.tensors) {
    auto found = table_.find(tensor.name);
    if (found == table_.end()) {
      for (Entry& entry : entries)
        entry.completion->complete(
            fail(ErrorKind::protocol, "rank 0 answered a tensor that was not submitted"));
      return stop(Error{
          ErrorKind::protocol,
          "rank 0 answered '" + name_text(tensor.name) + "', which this rank has not submitted",
          Rank(0)});
    }
    timeline_.end(tensor.name);
    entries.push_back(std::move(found->second));
    table_.erase(found);
  }
  if (!response.error.empty()) {
    for (Entry& entry : entries) {
      finish_entry(entry, fail(response.error_kind, response.error));
    }
    return;
  }
  collectives_.fetch_add(1, std::memory_order_relaxed);
  start_run(std::move(response), std::move(entries));
}

void Engine::start_run(Response response, std::vector<Entry> entries) {
  auto run = std::make_unique<CollectiveRun>();
  run->dtype = response.dtype;
  run->op = response.op;
  if (response.kind == Kind::allgather) {
    if (!prepare_gather(*run, response, entries.front())) return;
  } else {
    const bool is_source =
        response.kind != Kind::broadcast || response.root == session_.world.self.value;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Submission& submission = entries[i].submission;
      const std::uint64_t bytes =
          response.kind == Kind::barrier
              ? 0
              : static_cast<std::uint64_t>(element_count(response.tensors[i].shape)) *
                    size_of(response.dtype);
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

  for (const ResponseTensor& tensor : response.tensors) {
    timeline_.begin(tensor.name, to_string(response.kind));
  }
  const std::uint16_t lane = response.lane;
  active_.emplace(run->ticket, ActiveRun{std::move(response), std::move(entries)});
  executor_->enqueue(lane, std::move(run));
}

bool Engine::prepare_gather(CollectiveRun& run, const Response& response, Entry& entry) {
  const ResponseTensor& tensor = response.tensors.front();
  const std::int64_t row_elements = std::accumulate(tensor.shape.begin() + 1, tensor.shape.end(),
                                                    std::int64_t{1}, std::multiplies<>{});
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
                   std::to_string(output_bytes) + " bytes of the allgather of '" + tensor.name +
                   "'",
               session_.world.self});
    entry.completion->complete(fail(*stopped_));
    return false;
  }
  std::vector<std::int64_t> shape = tensor.shape;
  shape.front() = rows;
  run.output = entry.completion->set_output(std::move(output), std::move(shape), tensor.first_dims);
  const std::size_t self = index_of(session_.world.self);
  run.pieces.push_back(
      {static_cast<const std::byte*>(entry.submission.input), nullptr, 0, run.contributions[self]});
  return true;
}

void Engine::finish_runs() {
  for (const auto& run : executor_->take_finished()) {
    auto found = active_.find(run->ticket);
    HORA_CHECK(found != active_.end(), "a finished run was started here");
    ActiveRun active = std::move(found->second);
    active_.erase(found);
    for (Entry& entry : active.entries) {
      const Request& request = entry.submission.request;
      timeline_.end(request.name, request.dtype, request.shape);
      finish_entry(entry, {});
    }
  }
  segments_.store(executor_->segments_finished(), std::memory_order_relaxed);
}

void Engine::finish_entry(Entry& entry, Result<void> outcome) {
  forget_name(entry.submission.request.name);
  tensors_.fetch_add(1, std::memory_order_relaxed);
  entry.completion->complete(std::move(outcome));
}

void Engine::forget_name(const std::string& name) {
  const std::lock_guard lock(mail_mutex_);
  in_flight_.erase(name);
}

}  // namespace hora
