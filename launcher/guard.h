// Guard: horarun is two processes, so that killing either of them ends the job.
//
//   horarun (the guard) ----pipe of signal numbers----> horarun (the supervisor) ---> workers
//
// A process that is killed cannot clean up after itself, and the kernel's death signal reaches only
// children, not what they started. So the process that the user sees does next to nothing: it turns
// the signals it gets into bytes on a pipe, and exits with the supervisor's code. If the guard is
// killed, the supervisor reads the end of the pipe and kills everything. If the supervisor is
// killed, its children become the guard's, and the guard kills everything. Both are in the
// terminal's foreground group, but only the guard listens to signals: a Ctrl-C counts once.
#pragma once

#include <functional>

#include "launcher/spawn.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace hora {

/// Runs `supervise` in a child process and returns its exit code. `supervise` gets the pipe's end:
/// one byte per signal, end of file when the guard is gone. Signals that `inherited` says are
/// ignored stay so.
Result<int> run_guarded(const Inherited& inherited,
                        const std::function<int(Fd signals)>& supervise);

}  // namespace hora
