// StdinPump: a terminal's input, on its way to rank 0.
//
// A file or pipe on horarun's stdin is simply given to rank 0. A terminal cannot be: rank 0 is in a
// process group of its own, and the kernel stops whoever reads the terminal from outside the
// foreground group. So the supervisor, which is in it, reads for rank 0: breakpoint() works there.
// One buffer: we read no more than rank 0 takes.
#pragma once

#include <array>
#include <cstddef>

#include <poll.h>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace hora {

/// Whether our standard input may be read now. In the background a terminal would stop us; SIGCONT,
/// which comes with the foreground, makes us look again.
bool may_read_stdin();

/// Owner: the supervisor.
class StdinPump {
 public:
  /// Makes the pipe; `worker_end` becomes rank 0's stdin.
  Result<void> open(Fd& worker_end);

  /// What to poll for now: fd -1 if nothing.
  [[nodiscard]] pollfd wanted() const;
  /// Moves what can be moved after poll() has answered.
  void step();

 private:
  Fd pipe_;
  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace hora
