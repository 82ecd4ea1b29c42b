// IoThread: a thread of ours beside a stranger's program.
//
// It takes no signal (the program's handlers run on the program's threads), has a name for
// `top -H`, asks for a little priority so that heartbeats go out while training uses every core,
// and knows when it was left behind in the parent of a fork: then there is nothing to join, and
// nothing of it is touched.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace hora {

/// Owner: the thread that starts and joins it.
class IoThread {
 public:
  IoThread() = default;
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;
  ~IoThread();

  /// Starts `body`; `name` has at most 15 characters. May throw std::system_error.
  void start(const char* name, std::function<void()> body);
  /// Waits for the body to end. The caller has told it to.
  void join();
  /// Started by a process of which this one is a forked child.
  [[nodiscard]] bool inherited_by_fork() const;

 private:
  std::unique_ptr<std::thread> thread_;
  std::uint64_t generation_ = 0;
};

}  // namespace hora
