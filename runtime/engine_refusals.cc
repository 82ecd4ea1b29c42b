// A wrong argument of this rank's: the other ranks learn of it.
//
// A refusal takes the place of the call that has failed and holds its name until it is answered,
// which is when the others have made their calls. Meanwhile this rank may go on: its next call of
// that name is held back until then, as the others' next call comes after the failed one, too.
//
//   rank 0     x refused   x (held) ............ x
//   rank 1                           x (fails)   x
//
// What belongs together is held back together. Guarded by the inbox's lock.
#include <algorithm>
#include <utility>

#include "runtime/engine.h"

namespace hora {

tl::unexpected<Error> Engine::refused(std::span<const Call> calls, Error why) {
  if (why.kind == ErrorKind::invalid_argument) {
    std::vector<Request> requests;
    for (const Call& call : calls)
      requests.push_back(call->request());
    post_refusals(requests, why.message);
  }
  return fail(std::move(why));
}

bool Engine::post_refusals(std::span<const Request> calls, std::string_view why) {
  std::vector<Call> refusals;
  refusals.reserve(calls.size());
  for (const Request& request : calls) {
    Submission submission;
    {
      const std::lock_guard lock(mail_mutex_);
      const SharedSet& set = sets_.find(request.set);
      if (!set || !is_collective(request.kind)) return false;
      submission.request = refusal_of(request, set->size(), why);
    }
    if (!check_request(submission.request)) return false;
    refusals.push_back(std::make_shared<CompletionImpl>(std::move(submission)));
  }
  return post_calls(refusals).has_value();
}

/// Who has the name: the last of those who wait for it.
Engine::Holder Engine::holder_of(const TensorKey& key) const {
  const auto has_name = [&](const Call& call) { return key_of(call->request()) == key; };
  const auto kind_of = [](const Call& call) {
    return call->request().refusal.empty() ? Holder::call : Holder::refusal;
  };
  for (auto batch = held_.rbegin(); batch != held_.rend(); ++batch) {
    const auto found = std::find_if(batch->begin(), batch->end(), has_name);
    if (found != batch->end()) return kind_of(*found);
  }
  if (!in_flight_.contains(key)) return Holder::nobody;
  return refusals_.contains(key) ? Holder::refusal : Holder::call;
}

std::size_t Engine::held_count() const {
  std::size_t count = 0;
  for (const std::vector<Call>& batch : held_)
    count += batch.size();
  return count;
}

/// A refusal is answered. Takes in what was held back and need not be any more, oldest first.
void Engine::release_held() {
  std::vector<std::vector<Call>> held = std::exchange(held_, {});
  for (std::vector<Call>& batch : held) {
    const bool waits = std::any_of(batch.begin(), batch.end(), [&](const Call& call) {
      return holder_of(key_of(call->request())) != Holder::nobody;
    });
    if (!waits && (held_.empty() || is_collective(batch.front()->request().kind))) {
      take_in(batch);
    } else {
      held_.push_back(std::move(batch));
    }
  }
}

std::vector<std::shared_ptr<CompletionImpl>> Engine::take_held() {
  std::vector<Call> calls;
  for (std::vector<Call>& batch : std::exchange(held_, {}))
    calls.insert(calls.end(), batch.begin(), batch.end());
  return calls;
}

}  // namespace hora
