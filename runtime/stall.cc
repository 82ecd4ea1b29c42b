#include "runtime/stall.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/tensor_key.h"

namespace hora {
namespace {

/// Tensors named in a report, and per missing rank.
constexpr std::size_t kNamesShown = 6, kTensorsShown = 20, kRanksShown = 64;
/// Longest evidence that is kept.
constexpr std::size_t kEvidenceBytes = 512;

std::string seconds_text(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", to_seconds(duration));
  std::string seconds = text;
  if (seconds.ends_with(".0")) seconds.resize(seconds.size() - 2);
  return seconds;
}

/// What a report is about, without the times: the same picture is not reported twice.
std::string picture(const std::vector<WaitingTensor>& overdue) {
  std::string text;
  for (const WaitingTensor& tensor : overdue) {
    text += std::to_string(tensor.request->set.value) + "." +
            std::to_string(tensor.request->name.size()) + ":" + tensor.request->name +
            ranks_text(tensor.have);
  }
  return text;
}

std::vector<WaitingTensor> older_than(const std::vector<WaitingTensor>& waiting, Duration limit,
                                      TimePoint now) {
  std::vector<WaitingTensor> overdue;
  for (const WaitingTensor& tensor : waiting) {
    if (now - tensor.since >= limit) overdue.push_back(tensor);
  }
  return overdue;
}

/// "a, b, c, ...": tensors that a rank has not submitted.
std::string missing_names(const std::vector<WaitingTensor>& overdue, std::int32_t rank) {
  std::string text;
  std::size_t shown = 0;
  for (const WaitingTensor& tensor : overdue) {
    if (!std::binary_search(tensor.missing.begin(), tensor.missing.end(), rank)) continue;
    if (shown > 0) text += ", ";
    if (shown++ == kNamesShown) return text + "...";
    text += name_text(tensor.request->name);
  }
  return text;
}

}  // namespace

StallInspector::StallInspector(const NegotiationOptions& options)
    : enabled_(options.stall_check),
      warning_(options.stall_warning),
      shutdown_(options.stall_shutdown),
      ranks_(static_cast<std::size_t>(options.size)) {}

void StallInspector::on_submission(Rank rank, const SharedRequest& request, TimePoint now) {
  Activity& activity = ranks_[index_of(rank)];
  activity.last = request;
  activity.at = now;
}

void StallInspector::on_evidence(Rank rank, const std::string& text) {
  ranks_[index_of(rank)].evidence = text.substr(0, kEvidenceBytes);
}

std::optional<TimePoint> StallInspector::next_deadline(std::optional<TimePoint> oldest) const {
  if (!enabled_ || !oldest) return std::nullopt;
  TimePoint next = *oldest + warning_;
  if (looked_at_) next = std::max(next, *looked_at_ + warning_);
  if (shutdown_ > Duration::zero()) next = std::min(next, *oldest + shutdown_);
  return next;
}

StallInspector::Finding StallInspector::inspect(TimePoint now,
                                                const std::vector<WaitingTensor>& waiting) {
  Finding finding;
  if (shutdown_ > Duration::zero()) {
    const auto overdue = older_than(waiting, shutdown_, now);
    if (!overdue.empty()) {
      finding.stop = Error{ErrorKind::timeout,
                           report(now, waiting, waiting, shutdown_) +
                               "\nWill shutdown: the limit is HORA_STALL_SHUTDOWN_TIME_SECONDS.",
                           std::nullopt};
      return finding;
    }
  }
  if (looked_at_ && now < *looked_at_ + warning_) return finding;
  const auto overdue = older_than(waiting, warning_, now);
  std::string seen = picture(overdue);
  looked_at_ = now;
  if (!overdue.empty() && seen != last_picture_)
    finding.notice = report(now, overdue, waiting, warning_);
  last_picture_ = std::move(seen);
  return finding;
}

std::string StallInspector::activity_text(std::int32_t rank, TimePoint now,
                                          const std::vector<WaitingTensor>& waiting) const {
  const Activity& activity = ranks_[static_cast<std::size_t>(rank)];
  std::string text = "has not submitted anything yet";
  if (activity.last) {
    text = "last submitted '" + name_text(activity.last->name) + "' " +
           seconds_text(now - activity.at) + " s ago";
    // Maybe it waits, too, and the ranks wait for each other.
    const auto own = std::find_if(waiting.begin(), waiting.end(), [&](const WaitingTensor& tensor) {
      return key_of(*tensor.request) == key_of(*activity.last);
    });
    if (own != waiting.end()) text += ", which waits for " + ranks_text(own->missing);
  }
  return text + "; " +
         (activity.evidence.empty() ? "it is alive: its heartbeats come" : activity.evidence);
}

std::string StallInspector::report(TimePoint now, const std::vector<WaitingTensor>& overdue,
                                   const std::vector<WaitingTensor>& waiting,
                                   Duration limit) const {
  std::string text =
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
      "ranks "
      "and are waiting for remainder of ranks for more than " +
      seconds_text(limit) +
      " seconds. This may indicate that different ranks are trying to submit different tensors or "
      "that only subset of ranks is submitting tensors, which will cause deadlock.\nMissing ranks:";
  std::size_t shown = 0;
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(ranks_.size()); ++rank) {
    const std::string names = missing_names(overdue, rank);
    if (names.empty()) continue;
    if (++shown > kRanksShown) continue;
    text += "\n" + std::to_string(rank) + ": [" + names + "] (rank " + std::to_string(rank) + " " +
            activity_text(rank, now, waiting) + ")";
  }
  if (shown > kRanksShown)
    text += "\n... and " + std::to_string(shown - kRanksShown) + " more ranks";
  text += "\nWaiting tensors:";
  for (std::size_t i = 0; i < overdue.size(); ++i) {
    if (i == kTensorsShown) {
      return text + "\n... and " + std::to_string(overdue.size() - i) + " more";
    }
    const WaitingTensor& tensor = overdue[i];
    const Request& request = *tensor.request;
    text += "\n'" + name_text(request.name) + "' (" + std::string(to_string(request.kind));
    if (members_of(request) != kGlobalSet) {
      text += " in process set " + std::to_string(request.set.value);
    }
    text += "): " + ranks_text(tensor.have) +
            (tensor.have.size() == 1 ? " has it, " : " have it, ") + ranks_text(tensor.missing) +
            (tensor.missing.size() == 1 ? " does not, for " : " do not, for ") +
            seconds_text(now - tensor.since) + " s";
  }
  return text;
}

}  // namespace hora
