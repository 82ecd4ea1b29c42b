// CompletionImpl: one call - what was submitted and, set once by the engine, its result.
//
// The caller's handle and the engine's tables share this one object, so a call is moved nowhere.
//
// The one place besides the inbox with a mutex. A caller that drives the engine itself sees
// `done()` turn true and never touches the mutex; only callers that sleep while another thread
// drives are notified.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/runtime.h"

namespace hora {

/// Bytes from aligned_alloc(64, ...), owned.
using Buffer = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

inline Buffer make_buffer(std::size_t bytes) {
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  void* memory = rounded == 0 ? nullptr : std::aligned_alloc(64, rounded);
  return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
}

class CompletionImpl final : public Completion {
 public:
  explicit CompletionImpl(Submission submission) : submission_(std::move(submission)) {}

  [[nodiscard]] const Submission& submission() const { return submission_; }
  [[nodiscard]] const Request& request() const { return submission_.request; }

  [[nodiscard]] bool done() const override { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] const Result<void>& outcome() const override { return outcome_; }
  Buffer take_output() override { return std::move(output_); }
  [[nodiscard]] const std::vector<std::int64_t>& output_shape() const override { return shape_; }
  [[nodiscard]] const std::vector<std::int64_t>& first_dims() const override { return first_dims_; }
  [[nodiscard]] std::int64_t value() const override { return value_; }

  /// Engine: the output that it has made, before `complete`.
  std::byte* set_output(Buffer output, std::vector<std::int64_t> shape,
                        std::vector<std::int64_t> first_dims) {
    output_ = std::move(output);
    shape_ = std::move(shape);
    first_dims_ = std::move(first_dims);
    return output_.get();
  }

  /// Engine: what a join or a change of process sets gives, before `complete`.
  void set_value(std::int64_t value) { value_ = value; }
  /// Engine: who contributed, before `complete`.
  void set_contributions(std::vector<ElementRange> ranges) { contributions_ = std::move(ranges); }
  [[nodiscard]] const std::vector<ElementRange>& contributions() const override {
    return contributions_;
  }
  /// Engine: the root has another rank in the World that is to run this broadcast.
  void set_root(std::int32_t root) { submission_.request.root = root; }
  /// Engine: of an alltoall's rows only those for these places, ascending, are to go anywhere.
  void keep_rows(const std::vector<std::int32_t>& places) {
    Request& request = submission_.request;
    if (places.size() == request.splits.size()) return;
    const std::uint64_t rows = request.shape.empty() ? 0 : request.shape.front();
    const std::uint64_t row_bytes = rows == 0 ? 0 : byte_count(request) / rows;
    Buffer kept = make_buffer(byte_count(request));
    std::vector<std::int64_t> splits;
    std::uint64_t from = 0, to = 0;
    for (std::size_t place = 0; place < request.splits.size(); ++place) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(request.splits[place]) * row_bytes;
      if (std::binary_search(places.begin(), places.end(), static_cast<std::int32_t>(place))) {
        const auto* input = static_cast<const std::byte*>(submission_.input);
        if (bytes > 0 && input != nullptr) std::memcpy(kept.get() + to, input + from, bytes);
        splits.push_back(request.splits[place]);
        to += bytes;
      }
      from += bytes;
    }
    request.splits = std::move(splits);
    request.shape.front() =
        std::accumulate(request.splits.begin(), request.splits.end(), std::int64_t{0});
    own_input_ = std::move(kept);
    submission_.input = own_input_.get();
  }
  /// Engine: the others of its group are answered already.
  void leave_group() {
    submission_.request.group.clear();
    submission_.request.group_size = 0;
  }

  /// Engine: sets the outcome and wakes whoever sleeps. Once.
  void complete(Result<void> outcome) {
    outcome_ = std::move(outcome);
    {
      const std::lock_guard lock(mutex_);
      done_.store(true, std::memory_order_release);
    }
    done_changed_.notify_all();
  }

  /// Sleeps until done or `deadline`.
  void sleep_until(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    done_changed_.wait_until(lock, deadline, [this] { return done(); });
  }

 private:
  Submission submission_;
  std::mutex mutex_;
  std::condition_variable done_changed_;
  std::atomic<bool> done_{false};
  Result<void> outcome_;
  Buffer output_{nullptr, [](std::byte*) {}};
  Buffer own_input_{nullptr, [](std::byte*) {}};  // Instead of the caller's.
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> first_dims_;
  std::int64_t value_ = 0;
  std::vector<ElementRange> contributions_;
};

}  // namespace hora
