// Every function checks for a fork, leaves the GIL, does its work in the core, comes back and
// raises what there is to raise. Where that order matters it is written out: an exception of Python
// may be set only with the GIL, and nothing of C++ may be thrown without it.
#include "python/bindings/runtime.h"

#include <algorithm>
#include <exception>
#include <functional>

#include <unistd.h>

#include "python/bindings/errors.h"
#include "python/bindings/gil.h"
#include "runtime/base/misspelt.h"

namespace hora {

namespace py = pybind11;

namespace {

/// Signals are handled by Python's main thread, which is the process's first.
bool on_main_thread() {
  static thread_local const bool is_first = gettid() == getpid();
  return is_first;
}

/// Longer than any job: a Python caller waits until the handle is done or it is interrupted.
constexpr Duration kForever = std::chrono::hours(24 * 365);

/// Calls `wait(interrupted)` without the GIL; `interrupted` runs Python's signal handlers, if this
/// is the thread for it, and says whether one of them raised. What it raised is set on return.
template <class Wait>
auto interruptibly(Wait&& wait) {
  bool raised = false;
  PyThreadState* thread = PyEval_SaveThread();
  std::function<bool()> interrupted;
  if (on_main_thread()) {
    interrupted = [&] {
      restore_gil(thread);
      raised = raised || PyErr_CheckSignals() != 0;
      thread = PyEval_SaveThread();
      return raised;
    };
  }
  auto outcome = wait(interrupted);
  restore_gil(thread);
  return outcome;
}

/// Raises what a call has failed with, if it has.
template <class T>
void raise_failure(const Result<T>& outcome) {
  if (outcome) return;
  if (outcome.error().kind == ErrorKind::interrupted) throw py::error_already_set();
  raise_error(outcome.error());
}

/// Calls Runtime::start. What C++ libraries throw below it becomes an Error.
Result<std::unique_ptr<Runtime>> start_runtime(std::vector<std::vector<std::int32_t>> process_sets,
                                               const Interrupted& interrupted) noexcept {
  try {
    Result<Config> config = read_config(environment());
    if (!config) return fail(config.error());
    config->warnings = unknown_variables(environment_names());
    config->process_sets = std::move(process_sets);
    Result<Placement> placement = read_placement(environment());
    if (!placement) return fail(placement.error());
    return Runtime::start(*config, *placement, interrupted);
  } catch (const std::exception& error) {
    return fail(ErrorKind::system, std::string("init: ") + error.what());
  }
}

}  // namespace

RuntimeBinding::RuntimeBinding(std::unique_ptr<Runtime> runtime)
    : runtime_(std::move(runtime)), world_(runtime_->world()) {}

std::unique_ptr<RuntimeBinding> RuntimeBinding::start(
    std::vector<std::vector<std::int32_t>> process_sets) {
  auto runtime = interruptibly([&](const Interrupted& interrupted) noexcept {
    return start_runtime(std::move(process_sets), interrupted);
  });
  raise_failure(runtime);
  return std::unique_ptr<RuntimeBinding>(new RuntimeBinding(std::move(*runtime)));
}

RuntimeBinding::~RuntimeBinding() {
  if (forked()) {
    // Its threads do not exist here, and its sockets belong to the parent: leave all of it alone.
    static_cast<void>(runtime_.release());
    return;
  }
  without_gil([this]() noexcept { runtime_.reset(); });
}

void RuntimeBinding::require_own_process() const {
  if (!forked()) return;
  raise_error({ErrorKind::unsupported,
               "this process (pid " + std::to_string(getpid()) + ") was forked from the rank " +
                   std::to_string(world().self.value) + " process (pid " +
                   std::to_string(world().me().pid) + "); call hora from the parent only",
               std::nullopt});
}

Handle RuntimeBinding::submit(Submission submission) {
  require_own_process();
  auto handle = without_gil([&]() noexcept { return runtime_->submit(std::move(submission)); });
  if (!handle) raise_error(handle.error());
  return std::move(*handle);
}

std::vector<Handle> RuntimeBinding::submit_group(const std::string& group,
                                                 std::vector<Submission> members) {
  require_own_process();
  auto handles =
      without_gil([&]() noexcept { return runtime_->submit_group(group, std::move(members)); });
  if (!handles) raise_error(handles.error());
  return std::move(*handles);
}

void RuntimeBinding::refuse(const std::vector<Request>& calls, const std::string& why) {
  require_own_process();
  without_gil([&]() noexcept { runtime_->refuse(calls, why); });
}

void RuntimeBinding::wait(const Handle& handle) {
  require_own_process();
  const auto outcome = interruptibly([&](const std::function<bool()>& interrupted) noexcept {
    return runtime_->wait(handle, Deadline::after(kForever), interrupted);
  });
  look_at_world();
  raise_failure(outcome);
}

Handle RuntimeBinding::run(Submission submission, const py::object& keep) {
  require_own_process();
  submission.caller_waits = true;
  Handle handle;
  const Result<void> outcome =
      interruptibly([&](const std::function<bool()>& interrupted) noexcept -> Result<void> {
        auto submitted = runtime_->submit(std::move(submission));
        if (!submitted) return fail(std::move(submitted.error()));
        handle = std::move(*submitted);
        return runtime_->wait(handle, Deadline::after(kForever), interrupted);
      });
  look_at_world();
  if (!outcome && handle && !handle->done()) {
    forget_finished();
    abandoned_.emplace_back(handle, keep);
  }
  raise_failure(outcome);
  return handle;
}

bool RuntimeBinding::poll(const Handle& handle) {
  require_own_process();
  return without_gil([&]() noexcept { return runtime_->poll(handle); });
}

void RuntimeBinding::start_timeline(const std::string& pattern, bool mark_cycles) {
  require_own_process();
  const TimelineTarget target{pattern, mark_cycles};
  const auto started = without_gil([&]() noexcept { return runtime_->start_timeline(target); });
  if (!started) raise_error(started.error());
}

void RuntimeBinding::stop_timeline() {
  require_own_process();
  const auto stopped = without_gil([this]() noexcept { return runtime_->stop_timeline(); });
  if (!stopped) raise_error(stopped.error());
}

void RuntimeBinding::shutdown(const std::string& last_words) {
  if (forked()) return;
  without_gil([&]() noexcept { runtime_->shutdown(last_words); });
  forget_finished();
}

void RuntimeBinding::on_fork_child() {
  runtime_->on_fork_child();
}

void RuntimeBinding::forget_finished() {
  std::erase_if(abandoned_, [](const auto& entry) { return entry.first->done(); });
}

}  // namespace hora
