// Report: what horarun says about the end of a worker.
//
// Pure text. The first two lines, said when it happens, are Horovod's to the letter; the report,
// said last of all, is what a user should find without scrolling: who, how, and its last words.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "launcher/exit_status.h"
#include "runtime/base/ids.h"

namespace hora {

/// "Process 2 exit with status code 137."
std::string exit_line(Rank rank, const ExitStatus& status);

/// "Terminating remaining workers after failure of Process 2."
std::string terminating_line(Rank rank);

/// Who failed first, how, and the last lines of its stderr: the last thing a user
/// sees of a failed job.
/// `host`: the other host on which it ran; empty: here.
std::vector<std::string> failure_report(Rank rank, std::int64_t pid, const std::string& host,
                                        const ExitStatus& status,
                                        const std::deque<std::string>& tail);

/// What is said at the end about connections to the rendezvous that were not the job's.
std::string strangers_line(std::uint64_t strangers);

}  // namespace hora
