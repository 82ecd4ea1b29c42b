// Children: the processes that are ours to end.
//
// A worker may start others, in sessions of their own and with their parent gone: a data loader, a
// daemon. As sub-reaper we become the parent of every descendant whose own parent dies. So killing
// and reaping our direct children again and again, one generation after the other, reaches all of
// them in the end. And a direct child that only we reap cannot lose its pid to a stranger between
// the look and the signal.
#pragma once

#include <vector>

#include <sys/types.h>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace hora {

/// From now on orphaned descendants become children of this process.
void become_subreaper();

/// The same, and whenever a child has ended the descriptor can be read (signalfd_siginfo; not
/// blocking). Blocks SIGCHLD in this thread.
Result<Fd> adopt_and_watch_children();

/// Pids of the direct children, zombies included.
std::vector<pid_t> list_children();

/// Kills and reaps children until none is left. Those that are still alive at the
/// deadline are returned.
std::vector<pid_t> kill_all_children(Deadline deadline);

}  // namespace hora
