// The buffer is read full once and written until it is empty; only then is the terminal read again.
// Typing ahead beyond it stays in the terminal's own buffer.
#include "launcher/stdin_pump.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace hora {

bool may_read_stdin() {
  return ::isatty(STDIN_FILENO) == 0 || ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

Result<void> StdinPump::open(Fd& worker_end) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return fail_errno("pipe");
  worker_end = Fd(fds[0]);
  pipe_ = Fd(fds[1]);
  if (::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl");
  return {};
}

pollfd StdinPump::wanted() const {
  if (!pipe_.valid()) return {-1, 0, 0};
  if (begin_ < end_) return {pipe_.get(), POLLOUT, 0};
  if (!may_read_stdin()) return {-1, 0, 0};
  return {STDIN_FILENO, POLLIN, 0};
}

void StdinPump::step() {
  if (begin_ == end_) {
    const ssize_t got = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
      pipe_.reset();  // end of input
      return;
    }
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
  }
  const ssize_t wrote = ::write(pipe_.get(), buffer_.data() + begin_, end_ - begin_);
  if (wrote >= 0) {
    begin_ += static_cast<std::size_t>(wrote);
  } else if (errno != EINTR && errno != EAGAIN) {
    pipe_.reset();  // rank 0 reads no more
  }
}

}  // namespace hora
