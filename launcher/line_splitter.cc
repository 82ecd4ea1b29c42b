// Complete lines inside one read are emitted as views of the read, without a copy; only a line that
// spans reads is collected in `partial_`. A \r is a terminator at once; the \n that may follow it
// is recognized by a flag, in the same read or a later one.
#include "launcher/line_splitter.h"

#include "runtime/base/check.h"

namespace hora {

LineSplitter::LineSplitter(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {
  HORA_CHECK(limit_bytes > 0, "a piece holds at least one byte");
}

void LineSplitter::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    if (after_return_) {
      after_return_ = false;
      if (bytes.front() == '\n') {
        emit({{}, LineEnd::newline_after_return});
        bytes.remove_prefix(1);
        continue;
      }
    }
    const std::size_t at = bytes.find_first_of("\n\r");
    if (at == std::string_view::npos) {
      take(bytes, emit);
      return;
    }
    after_return_ = bytes[at] == '\r';
    end_line(bytes.substr(0, at), after_return_ ? LineEnd::carriage_return : LineEnd::newline,
             emit);
    bytes.remove_prefix(at + 1);
  }
}

void LineSplitter::finish(const Emit& emit) {
  if (partial_.empty()) return;
  emit({partial_, LineEnd::end_of_stream});
  partial_.clear();
}

// Adds text without a terminator. A full piece is emitted only when more text comes: a line of
// exactly the limit is one piece.
void LineSplitter::take(std::string_view text, const Emit& emit) {
  while (partial_.size() + text.size() > limit_bytes_) {
    const std::size_t fits = limit_bytes_ - partial_.size();
    partial_.append(text.substr(0, fits));
    text.remove_prefix(fits);
    emit({partial_, LineEnd::cut});
    partial_.clear();
  }
  partial_.append(text);
}

void LineSplitter::end_line(std::string_view text, LineEnd end, const Emit& emit) {
  if (partial_.empty() && text.size() <= limit_bytes_) {
    emit({text, end});
    return;
  }
  take(text, emit);
  emit({partial_, end});
  partial_.clear();
}

}  // namespace hora
