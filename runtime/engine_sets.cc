// The engine's part in process sets and joins: what this rank may submit, and what an answer
// changes.
//
// A mistake that this rank can see by itself is refused where it is made, with the set as far as
// this rank has heard; the others do not wait
// for it (engine_refusals.cc). That is enough: the root never hears of a
// set that it does not have, because a rank refuses a set from the moment it asks for its removal,
// and of a join nothing follows until it is answered.
#include "runtime/engine.h"

namespace hora {

/// With the inbox's lock.
Result<void> Engine::admit(const Request& request) const {
  const std::string rank = std::to_string(world_->self.value);
  if (joined_) {
    return fail(ErrorKind::invalid_argument,
                "rank " + rank +
                    " has joined: until all ranks have, it takes part with zeros and "
                    "submits nothing (tensor '" +
                    name_text(request.name) + "')");
  }
  if (world_->min_size > 0 && !is_collective(request.kind)) {
    return fail(
        ErrorKind::unsupported,
        title_of(request.kind) +
            ": a job that goes on without lost ranks (horarun --min-np) has no joins and no "
            "process sets but the one of all ranks; leave --min-np out to use them");
  }
  if (world_->min_size > 0 && request.kind == Kind::allreduce && request.op == ReduceOp::adasum) {
    return fail(ErrorKind::unsupported,
                "a job that goes on without lost ranks (horarun --min-np) has no Adasum; leave out "
                "--min-np, or use Average for " +
                    tensor_text(request.name, request.set));
  }
  if (request.kind == Kind::join || request.kind == Kind::add_set) return {};
  const SharedSet& set = sets_.find(request.set);
  if (!set || leaving_.contains(request.set)) {
    return fail(ErrorKind::invalid_argument,
                title_of(request.kind) +
                    ": Process set provided does not exist, or has not been registered. (process "
                    "set " +
                    std::to_string(request.set.value) + ")");
  }
  if (is_collective(request.kind) && !set->includes(world_->self)) {
    return fail(ErrorKind::invalid_argument, title_of(request.kind) + ": Rank " + rank +
                                                 " is not a member of the provided process set. (" +
                                                 set_text(*set) + ")");
  }
  if (request.kind == Kind::alltoall && static_cast<int>(request.splits.size()) != set->size()) {
    return fail(ErrorKind::invalid_argument,
                "Number of entries in splits does not equal number of workers: " +
                    std::to_string(request.splits.size()) + " entries for " +
                    std::to_string(set->size()) + " ranks");
  }
  return {};
}

/// What is accepted changes what is accepted next. With the inbox's lock.
void Engine::note_submission(const Request& request) {
  if (request.kind == Kind::join) joined_ = true;
  if (request.kind == Kind::remove_set) leaving_.insert(request.set);
}

void Engine::finish_change(const Response& response, const Calls& calls) {
  std::int64_t value = response.set->id.value;
  {
    const std::lock_guard lock(mail_mutex_);
    if (response.kind == Kind::join) {
      joined_ = false;
      value = response.root;
    }
    for (const Call& call : calls) {
      if (call) leaving_.erase(call->request().set);
    }
    if (response.error.empty() && response.kind == Kind::add_set) {
      sets_.add(response.set->id, response.set->ranks);
    }
    if (response.error.empty() && response.kind == Kind::remove_set) {
      sets_.remove(response.set->id);
    }
  }
  for (const Call& call : calls) {
    if (!call) continue;
    if (response.error.empty()) {
      call->set_value(value);
      finish_call(*call, {});
    } else {
      finish_call(*call, fail(response.error_kind, response.error));
    }
  }
}

std::vector<SharedSet> Engine::process_sets() const {
  const std::lock_guard lock(mail_mutex_);
  return sets_.all();
}

}  // namespace hora
