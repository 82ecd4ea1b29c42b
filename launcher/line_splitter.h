// LineSplitter: a stream of bytes, cut into pieces that may be shown among other workers' lines.
//
//   "loss 0.5\nepoch 1: 10%\repoch 1: 20%\r\ndone"   becomes
//
//   [loss 0.5       newline]
//   [epoch 1: 10%   return]
//   [epoch 1: 20%   return]
//   [               newline_after_return]
//   [done           end]
//
// A line ends at \n and also at \r, which is how progress bars end theirs: such a line is shown
// at once, not when the bar is complete. Windows' \r\n is a return and then an empty piece of its
// own kind, so that what is emitted does not depend on how the stream was cut into reads (a
// property test holds us to that). Bytes are bytes: NUL and invalid UTF-8 pass through. A line
// longer than the limit is cut and goes on as the next piece: a worker that never ends a line
// cannot fill our memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace hora {

/// Why a piece ends where it ends.
enum class LineEnd {
  newline,
  carriage_return,
  newline_after_return,  ///< The \n of a \r\n; its text is empty.
  cut,                   ///< The limit: the line goes on in the next piece.
  end_of_stream,         ///< The stream ended without a newline.
};

/// A line or a part of one, without its terminator.
struct Piece {
  std::string_view text;
  LineEnd end{};
};

/// Splits one stream. The views handed to `emit` are valid during the call only.
class LineSplitter {
 public:
  using Emit = std::function<void(const Piece&)>;

  /// No piece is longer than `limit_bytes` (at least 1).
  explicit LineSplitter(std::size_t limit_bytes);

  /// Takes the next bytes of the stream.
  void feed(std::string_view bytes, const Emit& emit);
  /// The stream has ended: emits what is left, if anything.
  void finish(const Emit& emit);

 private:
  void take(std::string_view text, const Emit& emit);
  void end_line(std::string_view text, LineEnd end, const Emit& emit);

  std::size_t limit_bytes_;
  std::string partial_;
  bool after_return_ = false;
};

}  // namespace hora
