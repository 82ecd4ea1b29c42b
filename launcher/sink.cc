// `pending_` is a string with a read position. What is written is dropped when everything is, or
// when it is more than the capacity: so each byte is moved at most once, and memory stays below
// twice the capacity and one read's worth of lines.
#include "launcher/sink.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hora {

Sink::Sink(int fd, std::size_t capacity_bytes) : fd_(fd), capacity_bytes_(capacity_bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return;
  if (S_ISSOCK(status.st_mode)) {
    way_ = Way::socket;
  } else if (S_ISFIFO(status.st_mode) || ::isatty(fd) == 1) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd);
    own_ = Fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    way_ = own_.valid() ? Way::nonblocking : Way::careful;
  }
}

// After another stream's \r the cursor stands on that stream's text: leave it
// there, take a new line.
void Sink::begin_line(int stream) {
  if (returned_ && *returned_ != stream) pending_ += '\n';
  returned_.reset();
}

void Sink::add(int stream, std::string_view prefix, const Piece& piece) {
  if (error_ != 0) return;
  if (piece.end == LineEnd::newline_after_return) {
    if (returned_ == stream) pending_ += '\n';
    returned_.reset();
    return;
  }
  begin_line(stream);
  pending_ += prefix;
  pending_ += piece.text;
  if (piece.end == LineEnd::carriage_return) {
    pending_ += '\r';
    returned_ = stream;
  } else {
    pending_ += '\n';
  }
}

void Sink::add_line(std::string_view text) {
  if (error_ != 0) return;
  begin_line(kOwnLines);
  pending_ += text;
  pending_ += '\n';
}

long Sink::write_some(const char* data, std::size_t bytes) const {
  switch (way_) {
    case Way::socket:
      return ::send(fd_, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    case Way::nonblocking:
      return ::write(own_.get(), data, bytes);
    case Way::careful: {
      pollfd ready = {fd_, POLLOUT, 0};
      if (::poll(&ready, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
      }
      return ::write(fd_, data, std::min<std::size_t>(bytes, PIPE_BUF));
    }
    case Way::plain:
      break;
  }
  return ::write(fd_, data, bytes);
}

bool Sink::flush() {
  while (!empty()) {
    const long wrote = write_some(pending_.data() + written_, pending_.size() - written_);
    if (wrote < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      error_ = errno;
      break;
    }
    written_ += static_cast<std::size_t>(wrote);
  }
  if (empty() || error_ != 0) {
    pending_.clear();
    written_ = 0;
  } else if (written_ > capacity_bytes_) {
    pending_.erase(0, written_);
    written_ = 0;
  }
  return error_ == 0;
}

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace hora
