// A rank's side of negotiation: turns submissions into as few bytes as the cache allows, and the
// root's stream back into responses.
//
// Invariants:
//  - `cache` and `seen` change in on_root_message only, so that a message says `seen` and means
//    the cache as it was then. Submissions are looked up when a message is made, not when they
//    are submitted.
//  - `sets` changes in on_root_message too: a response names the set as it is at that place of the
//    stream, and carries it.
//  - Inputs are carried by a message that flushes: somebody waits for each of its tensors. They are
//    read when it is made; who submits keeps them until the answer.
//  - A flush covers all that was submitted before it. Once it is sent the root remembers it, so a
//    caller that polls a hundred times costs one message: `unflushed` counts what no flush
//    covers yet.
#include <algorithm>
#include <utility>

#include "runtime/carried.h"
#include "runtime/negotiation.h"
#include "runtime/response_cache.h"
#include "runtime/wire.h"

namespace hora {
namespace {

/// Longest last words that reach the others.
constexpr std::size_t kMaxLastWords = 16 << 10;

}  // namespace

struct WorkerNegotiator::State {
  State(Rank rank, const NegotiationOptions& options)
      : self(rank),
        carry_bytes(std::min<std::uint64_t>(options.carry_bytes, kMaxCarriedBytes)),
        sets(options.size, options.sets) {}

  struct Ready {
    Request request;
    const std::byte* input;
  };

  struct Hit {
    Slot slot;
    std::vector<std::int64_t> first_dims;  // this rank's own
    const std::byte* input;
    std::size_t carriable;  // bytes
  };

  void add(Ready& tensor);
  void write_hits();
  void write_inputs();
  Result<Response> to_response(WireResponse& from);
  Result<void> add_known(const WireResponse& from, Response& response);
  Result<void> add_new(WireResponse& from, Response& response);
  Result<void> take_set(const Request& request, Response& response);
  Result<void> change_sets(const Request& request, Response& response);
  static std::size_t all_dims(Kind kind, const ProcessSet& set) {
    return own_dims(kind, set.size()) * static_cast<std::size_t>(set.size());
  }
  Result<void> set_first_dims(const Request& known, const ProcessSet& set,
                              std::span<const std::int64_t> first_dims,
                              ResponseTensor& tensor) const;
  void count_answered(const Response& response);

  Rank self;
  std::uint64_t carry_bytes;
  ProcessSets sets;
  ResponseCache cache;
  std::uint64_t seen = 0;
  std::vector<Ready> queue;  // submitted, not yet in a message; from `queue_front` on
  std::size_t queue_front = 0;
  std::uint64_t pending = 0;    // submitted, not yet answered
  std::uint64_t unflushed = 0;  // of these: submitted since the last flush
  bool flush_wanted = false;
  bool joined = false;  // submitted a join that is not answered
  std::optional<std::string> last_words;
  bool stopped = false;
  std::vector<Hit> hits;  // of the message being made
  std::size_t body_bytes = 0;
  WorkerMessage outgoing;
  RootMessage incoming;
};

namespace {

tl::unexpected<Error> broken(const char* what) {
  return fail(ErrorKind::protocol, std::string("negotiation: the root's message ") + what);
}

void copy_parameters(const Request& from, Response& response) {
  response.kind = from.kind;
  response.dtype = from.dtype;
  response.op = from.op;
  response.root = from.root;
  response.prescale = from.prescale;
  response.postscale = from.postscale;
  response.codec = from.codec;
}

}  // namespace

WorkerNegotiator::WorkerNegotiator(Rank self, const NegotiationOptions& options)
    : state_(std::make_unique<State>(self, options)) {}

WorkerNegotiator::~WorkerNegotiator() = default;

void WorkerNegotiator::submit(const Request& request, const std::byte* input) {
  state_->queue.push_back({request, input});
  if (request.kind == Kind::join) state_->joined = true;
  ++state_->pending;
  ++state_->unflushed;
}

void WorkerNegotiator::flush() {
  if (state_->unflushed > 0) state_->flush_wanted = true;
}

void WorkerNegotiator::shutdown(const std::string& last_words) {
  state_->last_words = last_words.substr(0, kMaxLastWords);
}

std::optional<std::vector<std::byte>> WorkerNegotiator::take_message() {
  State& s = *state_;
  const bool news = s.queue_front < s.queue.size() || s.flush_wanted || s.last_words;
  if (s.stopped || !news) return std::nullopt;
  s.outgoing.seen = s.seen;
  s.outgoing.requests.clear();
  s.hits.clear();
  s.body_bytes = 0;
  while (s.queue_front < s.queue.size() && s.body_bytes < kMessageBudget) {
    s.add(s.queue[s.queue_front++]);
  }
  s.write_hits();
  // A flush and a farewell are about everything before them, so they travel with the last part.
  const bool all = s.queue_front == s.queue.size();
  s.outgoing.flush = all && s.flush_wanted;
  s.outgoing.last_words.reset();
  if (all) {
    s.queue.clear();
    s.queue_front = 0;
    s.outgoing.last_words.swap(s.last_words);
    if (std::exchange(s.flush_wanted, false)) s.unflushed = 0;
  }
  s.write_inputs();
  return encode(s.outgoing);
}

/// Puts a submission into the message being made: as a bit if the root knows it, else in full.
void WorkerNegotiator::State::add(Ready& tensor) {
  Request& request = tensor.request;
  std::vector<std::int64_t> first_dims = first_dims_of(request);
  request = canonical(std::move(request));
  const Slot slot = cache.find(request);
  if (slot != kNoSlot) {
    body_bytes += kVarintBytes * first_dims.size();
    hits.push_back({slot, std::move(first_dims), tensor.input, carriable_bytes(request)});
    return;
  }
  request = restored(std::move(request), first_dims);
  body_bytes += kRequestOverhead + request.name.size() + request.group.size() +
                request.codec.size() + request.refusal.size() +
                8 * (request.shape.size() + request.splits.size()) + 4 * request.members.size();
  outgoing.requests.push_back(std::move(request));
}

void WorkerNegotiator::State::write_hits() {
  std::sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) { return a.slot < b.slot; });
  outgoing.hits.clear();
  outgoing.first_dims.clear();
  for (const Hit& hit : hits) {
    outgoing.hits.push_back(hit.slot);
    outgoing.first_dims.insert(outgoing.first_dims.end(), hit.first_dims.begin(),
                               hit.first_dims.end());
  }
}

/// The inputs of all carriable hits, if somebody waits for them and they are few; or none.
void WorkerNegotiator::State::write_inputs() {
  outgoing.inputs.clear();
  if (!outgoing.flush) return;
  std::uint64_t bytes = 0;
  for (const Hit& hit : hits) {
    bytes += hit.carriable;
    if (bytes > carry_bytes || (hit.carriable > 0 && hit.input == nullptr)) return;
  }
  for (const Hit& hit : hits)
    outgoing.inputs.insert(outgoing.inputs.end(), hit.input, hit.input + hit.carriable);
}

Result<WorkerNegotiator::Decoded> WorkerNegotiator::on_root_message(
    std::span<const std::byte> message) {
  State& s = *state_;
  HORA_TRY(decode(message, s.incoming));
  Decoded decoded;
  decoded.responses.reserve(s.incoming.responses.size());
  for (WireResponse& from : s.incoming.responses) {
    auto response = s.to_response(from);
    if (!response) return fail(std::move(response.error()));
    s.count_answered(*response);
    decoded.responses.push_back(std::move(*response));
  }
  ++s.seen;
  if (s.self.value == 0) decoded.notice = std::move(s.incoming.notice);
  decoded.stop = std::move(s.incoming.stop);
  if (decoded.stop) s.stopped = true;
  return decoded;
}

Result<Response> WorkerNegotiator::State::to_response(WireResponse& from) {
  Response response;
  response.lane = from.lane;
  response.error = std::move(from.error);
  response.error_kind = from.error_kind;
  if (from.slots.empty() && from.tensors.empty()) return broken("has a response without tensors");
  if (from.lane >= kLanes) return broken("names a lane that there is not");
  response.tensors.reserve(from.slots.size() + from.tensors.size());
  HORA_TRY(add_known(from, response));
  HORA_TRY(add_new(from, response));
  response.result = std::move(from.result);
  if (response.result.empty()) return response;
  const bool fits = response.tensors.size() == 1 && response.error.empty() &&
                    response.result.size() == carriable_bytes(*response.tensors[0].request);
  if (!fits) return broken("has a result of another size");
  return response;
}

/// The tensors that are named by their slots, as the slots are before the new ones move in.
Result<void> WorkerNegotiator::State::add_known(const WireResponse& from, Response& response) {
  std::span<const std::int64_t> first_dims = from.first_dims;
  for (const Slot slot : from.slots) {
    const SharedRequest& known = cache.at(slot);
    if (!known) return broken("names a slot that is empty");
    HORA_TRY(take_set(*known, response));
    ResponseTensor& tensor = response.tensors.emplace_back();
    tensor.request = known;
    const std::size_t count = all_dims(known->kind, *response.set);
    if (count == 0) continue;
    if (first_dims.size() < count) return broken("lacks first dimensions");
    HORA_TRY(set_first_dims(*known, *response.set, first_dims.first(count), tensor));
    first_dims = first_dims.subspan(count);
  }
  return first_dims.empty() ? Result<void>{} : broken("has too many first dimensions");
}

Result<void> WorkerNegotiator::State::add_new(WireResponse& from, Response& response) {
  for (NewTensor& added : from.tensors) {
    const Request& request = *added.request;
    HORA_TRY(take_set(request, response));
    ResponseTensor& tensor = response.tensors.emplace_back();
    tensor.request = added.request;
    if (response.error.empty() && all_dims(request.kind, *response.set) > 0) {
      HORA_TRY(set_first_dims(request, *response.set, added.first_dims, tensor));
    }
    if (added.slot != kNoSlot) cache.put(added.slot, std::move(added.request));
  }
  return {};
}

/// The first tensor says what its response is; the others are of the same set.
Result<void> WorkerNegotiator::State::take_set(const Request& request, Response& response) {
  if (!response.tensors.empty()) {
    if (response.set->id == members_of(request)) return {};
    return broken("has a response of two process sets");
  }
  copy_parameters(request, response);
  response.set = sets.find(members_of(request));
  if (!response.set) return broken("names a process set that there is not");
  if (is_collective(request.kind) || !response.error.empty()) return {};
  return change_sets(request, response);
}

Result<void> WorkerNegotiator::State::change_sets(const Request& request, Response& response) {
  if (request.kind == Kind::add_set) {
    if (sets.refuse(request.members)) return broken("adds an impossible process set");
    response.set = sets.add(sets.free_id(), request.members);
  } else if (request.kind == Kind::remove_set) {
    response.set = sets.find(request.set);
    if (!response.set || request.set == kGlobalSet) {
      return broken("removes a process set that there is not");
    }
    sets.remove(request.set);
  }
  return {};
}

Result<void> WorkerNegotiator::State::set_first_dims(const Request& known, const ProcessSet& set,
                                                     std::span<const std::int64_t> first_dims,
                                                     ResponseTensor& tensor) const {
  if (first_dims.size() != all_dims(known.kind, set) || known.shape.empty()) {
    return broken("lacks first dimensions");
  }
  // Anything that is multiplied later must have passed the bounds.
  const std::size_t own = own_dims(known.kind, set.size());
  for (std::size_t at = 0; at < first_dims.size(); at += own) {
    if (!first_dims_fit(known, first_dims.subspan(at, own))) {
      return broken("has an impossible first dimension");
    }
  }
  tensor.first_dims.assign(first_dims.begin(), first_dims.end());
  return {};
}

/// What is answered of this rank's own. A joined rank is answered tensors that it never had; when
/// the join itself is answered, nothing of this rank is left.
void WorkerNegotiator::State::count_answered(const Response& response) {
  const bool mine = response.set->includes(self) || !is_collective(response.kind);
  if (response.kind == Kind::join) {
    joined = false;
    pending = 0;
  } else if (mine && !joined) {
    pending -= std::min<std::uint64_t>(pending, response.tensors.size());
  }
  if (pending == 0) {  // nobody waits for anything
    unflushed = 0;
    flush_wanted = false;
  }
}

}  // namespace hora
