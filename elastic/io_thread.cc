// See io_thread.h. The number of forks is remembered at start: if it has changed, this object is a
// copy in a child, and its thread's handle names nothing here. It is leaked then, because to join
// or detach it would touch a stack that the child's allocator may have reused.
#include "elastic/io_thread.h"

#include <csignal>
#include <utility>

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/fork.h"

namespace hora {

namespace {

constexpr int kNice = -5;

}  // namespace

IoThread::~IoThread() {
  join();
}

void IoThread::start(const char* name, std::function<void()> body) {
  generation_ = fork_generation();
  // A new thread inherits the mask: block, start, restore.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::make_unique<std::thread>([body = std::move(body)] {
      // Allowed to few; the thread works without it.
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
      body();
    });
    ::pthread_setname_np(thread_->native_handle(), name);
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void IoThread::join() {
  if (!thread_) return;
  if (inherited_by_fork()) {
    // The thread does not exist here, and its handle must neither be joined nor detached.
    (void)thread_.release();
    return;
  }
  thread_->join();
  thread_.reset();
}

bool IoThread::inherited_by_fork() const {
  return thread_ && generation_ != fork_generation();
}

}  // namespace hora
