// Sink: whole lines into one of horarun's own outputs, without ever blocking.
//
// The reader of our stdout may be slow, or stopped. We must lose nothing, and still answer
// Ctrl-C at once: so what cannot be written now waits in a bounded buffer, and while that is
// full the supervisor does not read from the workers, who then wait in their own write(), as
// they would without us.
//
// O_NONBLOCK belongs to the open file, which we share with our shell and whoever else has it; so it
// is not set on it. A pipe or terminal is opened once more through /proc, for ourselves, and a
// socket has a flag for the single call. Where opening is not allowed we write at most PIPE_BUF
// after poll() has said that there is room.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/line_splitter.h"
#include "runtime/base/fd.h"

namespace hora {

/// Owner: the supervisor.
class Sink {
 public:
  /// `fd` is 1 or 2 and stays the caller's; `capacity_bytes` is where `full` begins.
  Sink(int fd, std::size_t capacity_bytes);

  /// Appends a piece of the stream `stream` (any number that tells streams apart), after `prefix`.
  void add(int stream, std::string_view prefix, const Piece& piece);
  /// Appends a line of horarun's own; `text` has no newline at its end.
  void add_line(std::string_view text);

  /// Writes what can be written now. False: an error; see `error`.
  bool flush();

  /// Nobody should add more now.
  [[nodiscard]] bool full() const { return pending_.size() - written_ >= capacity_bytes_; }
  [[nodiscard]] bool empty() const { return pending_.size() == written_; }
  /// The errno after which everything is dropped; 0 if there was none.
  [[nodiscard]] int error() const { return error_; }
  /// To poll for POLLOUT while not empty.
  [[nodiscard]] int fd() const { return own_.valid() ? own_.get() : fd_; }

 private:
  static constexpr int kOwnLines = -1;

  void begin_line(int stream);
  long write_some(const char* data, std::size_t bytes) const;

  enum class Way { plain, nonblocking, socket, careful };

  int fd_;
  Fd own_;
  Way way_ = Way::plain;
  std::size_t capacity_bytes_;
  std::string pending_;
  std::size_t written_ = 0;  ///< Bytes of `pending_` that are gone already.
  int error_ = 0;
  /// The stream whose last line ended with \r: the cursor is at the start of that line.
  std::optional<int> returned_;
};

/// Both descriptors are the same file, pipe or terminal: their lines need one Sink.
bool same_file(int a, int b);

}  // namespace hora
