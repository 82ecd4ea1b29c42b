// Agent: horarun's hands on another host.
//
//   horarun ==ssh==> agent (this) ---> workers of this host
//
// It has no will of its own: it starts the workers it is told to, passes signals to them and their
// output and their ends back. Decisions - what a failure means, when to ask, when to kill - stay
// with horarun, which sees all hosts. There is one exception. When the connection ends, or nothing
// has come for too long, whoever could decide is gone: everything that the workers are or have
// left is killed. Like horarun itself the agent runs under a guard (guard.h), so that killing
// either of the two processes does the same.
//
// Output that horarun has not taken is bounded: beyond a window the agent stops reading its
// workers' pipes, and they wait, as they would for a slow terminal.
#pragma once

#include "launcher/environment.h"
#include "launcher/spawn.h"
#include "runtime/base/fd.h"

namespace hora {

/// Serves the horarun at standard input and output until it is finished or gone; then nothing of
/// the job is left on this host. `signals` is the guard's pipe, `own` this process's environment.
/// Returns the exit code: 0 after Finish.
int run_agent(const Inherited& inherited, const Environment& own, Fd signals);

}  // namespace hora
