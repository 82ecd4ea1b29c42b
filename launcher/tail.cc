// The \r rule looks back by one piece: a piece after a return replaces the line before it. The
// newline of a return-newline pair settles that line.
#include "launcher/tail.h"

namespace hora {

void Tail::add(const Piece& piece) {
  const LineEnd before = last_end_;
  last_end_ = piece.end;
  // The rest of a cut line is beyond any sensible width; the \n of \r\n only ends what is there.
  if (before == LineEnd::cut || piece.end == LineEnd::newline_after_return) return;
  if (before == LineEnd::carriage_return && !lines_.empty()) lines_.pop_back();
  lines_.emplace_back(piece.text.substr(0, max_width_bytes_));
  if (lines_.size() > max_lines_) lines_.pop_front();
}

}  // namespace hora
