// Tail: the last lines of a worker's stderr, for the message about its death.
//
// The traceback of the worker that failed first is what the user looks for, and it is hundreds of
// lines up, between the complaints of its peers. So the last lines are kept per worker, bounded in
// number and in width. A line that ends in \r is overwritten by the next one, as on a terminal: a
// progress bar counts as one line.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "launcher/line_splitter.h"

namespace hora {

/// Keeps the last `max_lines` lines, each cut to `max_width_bytes`.
class Tail {
 public:
  Tail(std::size_t max_lines, std::size_t max_width_bytes)
      : max_lines_(max_lines), max_width_bytes_(max_width_bytes) {}

  void add(const Piece& piece);
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::size_t max_lines_;
  std::size_t max_width_bytes_;
  std::deque<std::string> lines_;
  LineEnd last_end_ = LineEnd::newline;
};

}  // namespace hora
