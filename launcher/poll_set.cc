// An array for poll() and the handlers beside it. A handler may close descriptors of others in the
// set: those find that out themselves when they read, since nothing is opened in between.
#include "launcher/poll_set.h"

#include <algorithm>
#include <cerrno>

#include "runtime/base/check.h"

namespace hora {

void PollSet::add(int fd, short events, std::function<void()> handle) {
  entries_.push_back({fd, events, 0});
  handlers_.push_back(std::move(handle));
}

void PollSet::wait(std::optional<TimePoint> deadline) {
  int timeout_ms = -1;
  if (deadline) {
    const Duration left = Deadline{*deadline}.left(steady_now());
    timeout_ms = static_cast<int>(std::min<long long>(to_ms(left), 60'000));
  }
  const int ready = ::poll(entries_.data(), entries_.size(), timeout_ms);
  HORA_CHECK(ready >= 0 || errno == EINTR || errno == ENOMEM, "poll() of our own descriptors");
  for (std::size_t i = 0; i < entries_.size() && ready > 0; ++i) {
    if (entries_[i].revents != 0) handlers_[i]();
  }
}

}  // namespace hora
