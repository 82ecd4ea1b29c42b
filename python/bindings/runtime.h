// RuntimeBinding: a hora::Runtime as a Python object.
//
// It adds what only a language binding can know:
//
//   the GIL    released while a call may block (gil.h)
//   signals    a waiting main thread lets Python's handlers run every 50 ms; what they raise ends
//              the wait. The collective goes on then, so its tensors are kept ("abandoned") until
//              it is done
//   ranks      those of a job that goes on without lost members change while somebody waits
//   fork       a forked child has the memory of a Runtime but not its threads: every call there
//              says so, and nothing is torn down in the child
//
// There is no global: the package holds one object of this class between init and shutdown.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include "python/bindings/arguments.h"
#include "python/bindings/output.h"
#include "runtime/base/fork.h"
#include "runtime/runtime.h"

namespace hora {

/// Thread-safe as far as Runtime is; its own members are guarded by the GIL.
class RuntimeBinding {
 public:
  /// Reads configuration and placement from the environment and joins the job, which has these
  /// process sets beside the one of all ranks.
  static std::unique_ptr<RuntimeBinding> start(std::vector<std::vector<std::int32_t>> process_sets);
  ~RuntimeBinding();
  RuntimeBinding(const RuntimeBinding&) = delete;
  RuntimeBinding& operator=(const RuntimeBinding&) = delete;

  /// Starts a collective. The caller keeps the tensors alive until the handle is done.
  Handle submit(Submission submission);
  /// Starts a group of collectives, all or none.
  std::vector<Handle> submit_group(const std::string& group, std::vector<Submission> members);
  /// Tells the other ranks that calls have failed here before they began.
  void refuse(const std::vector<Request>& calls, const std::string& why);
  /// Waits for a handle; raises what it failed with.
  void wait(const Handle& handle);
  /// submit and wait in one. `keep` owns the memory: it is kept should the wait be interrupted.
  Handle run(Submission submission, const pybind11::object& keep);
  /// Makes the names of this job's collectives.
  Names& names() { return names_; }
  bool poll(const Handle& handle);
  void start_timeline(const std::string& pattern, bool mark_cycles);
  void stop_timeline();
  void shutdown(const std::string& last_words);
  void on_fork_child();
  /// Raises in a forked child, and says so.
  void require_own_process() const;

  /// As of the last wait: ranks do not change under a caller between two waits of his.
  [[nodiscard]] const World& world() const { return *world_; }
  [[nodiscard]] std::vector<SharedSet> process_sets() const { return runtime_->process_sets(); }
  [[nodiscard]] RuntimeStats stats() const { return runtime_->stats(); }

 private:
  explicit RuntimeBinding(std::unique_ptr<Runtime> runtime);

  [[nodiscard]] bool forked() const { return fork_generation() != generation_; }
  void forget_finished();
  void look_at_world() { world_ = runtime_->world(); }

  std::unique_ptr<Runtime> runtime_;
  std::shared_ptr<const World> world_;
  std::uint64_t generation_ = fork_generation();
  Names names_;
  std::vector<std::pair<Handle, pybind11::object>> abandoned_;
};

/// Adds the classes Runtime and Handle to the module.
void bind_runtime(pybind11::module_& module);

}  // namespace hora
