// Process sets and joins in any interleaving: uneven programs on ranks that end in a join.
//
// A phase is a list of tensors, each of some process set, and of at most one new set. Every rank
// submits a random part of what it is a member of, in an order of its own, and then joins. So what
// must come out is known: an allreduce or barrier succeeds, with or without the ranks that left it
// out; an allgather, and a new set, succeed if no rank left them out, and else fail on those who
// did not.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "tests/runtime/negotiation_world.h"

namespace hora {
namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t limit) {
  return random() % limit;
}

/// A set that is at least one rank and not all.
std::vector<std::int32_t> some_ranks(Random& random, int size) {
  std::vector<std::int32_t> ranks;
  while (ranks.empty() || static_cast<int>(ranks.size()) == size) {
    ranks.clear();
    for (std::int32_t rank = 0; rank < size; ++rank) {
      if (below(random, 2) == 0) ranks.push_back(rank);
    }
  }
  std::shuffle(ranks.begin(), ranks.end(), random);
  return ranks;
}

struct Item {
  Request request;
  std::vector<bool> takes_part;  // by rank
  bool everybody = false;        // no member leaves it out
};

class Phases {
 public:
  explicit Phases(std::uint64_t seed) : random_(seed) {
    options_.size = static_cast<int>(2 + below(random_, 4));
    options_.cache_capacity = std::array{0u, 2u, 4096u}[below(random_, 3)];
    options_.target_bytes = std::array{64ull, 8ull << 20}[below(random_, 2)];
    options_.small_bytes = 512;
    ProcessSets static_sets(options_.size);
    for (std::size_t i = below(random_, 4); i > 0; --i) {
      const auto ranks = some_ranks(random_, options_.size);
      if (static_sets.refuse(ranks)) continue;
      static_sets.add(static_sets.free_id(), ranks);
      options_.sets.push_back(ranks);
    }
    sets_ = ProcessSets(options_.size, options_.sets);
    world_ = std::make_unique<NegotiationWorld>(options_);
    ranks_.resize(static_cast<std::size_t>(options_.size));
  }

  void run_phase() {
    plan();
    for (int step = 0; step < 100000 && !over(); ++step)
      something_happens();
    REQUIRE(over());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      INFO("rank " << rank);
      REQUIRE(ranks_[rank].stream == ranks_[0].stream);
      REQUIRE(ranks_[rank].pending.empty());
      REQUIRE(ranks_[rank].last == ranks_[0].last);
    }
    REQUIRE(world_->root.waiting().empty());
    finish_plan();
  }

 private:
  using Key = std::pair<std::uint32_t, std::string>;
  struct RankState {
    std::vector<std::size_t> order;  // of the items
    std::size_t next = 0;
    std::optional<Key> blocked_on;       // a set change
    std::map<Key, std::size_t> pending;  // items
    bool joined = false;
    std::optional<std::int32_t> last;  // the answer to the join
    std::vector<std::string> stream;
  };

  static Key key_of_item(const Request& request) {
    return {members_of(request).value, request.name};
  }

  void plan() {
    items_.clear();
    const std::vector<SharedSet> sets = sets_.all();
    std::set<Key> keys;
    for (std::size_t i = 0; i < 12; ++i) {
      Item item;
      item.request =
          of_kind(std::array{Kind::allreduce, Kind::allreduce, Kind::allreduce, Kind::barrier,
                             Kind::allgather, Kind::reducescatter}[below(random_, 6)],
                  "t" + std::to_string(below(random_, 6)), {3, 2});
      item.request.set = sets[below(random_, sets.size())]->id;
      if (keys.insert(key_of_item(item.request)).second) items_.push_back(std::move(item));
    }
    if (below(random_, 2) == 0) {
      Item item;
      const auto ranks = some_ranks(random_, options_.size);
      if (!sets_.refuse(ranks)) {
        item.request = of_kind(Kind::add_set, "sets");
        item.request.members = ranks;
        items_.push_back(std::move(item));
      } else if (sets.size() > 1) {
        item.request = of_kind(Kind::remove_set, "sets");
        item.request.set = sets.back()->id;
        removed_ = item.request.set;
        items_.push_back(std::move(item));
      }
    }
    for (Item& item : items_)
      plan_item(item);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      plan_rank(rank);
  }

  void plan_item(Item& item) {
    const SharedSet& set = sets_.find(members_of(item.request));
    // Of a set that is removed all ranks have submitted everything before.
    const bool needed = item.request.kind == Kind::remove_set || item.request.set == removed_;
    const bool complete = needed || below(random_, 2) == 0;
    item.takes_part.assign(ranks_.size(), false);
    item.everybody = true;
    for (const std::int32_t rank : set->ranks) {
      const bool takes_part = complete || below(random_, 3) > 0;
      item.takes_part[static_cast<std::size_t>(rank)] = takes_part;
      item.everybody = item.everybody && takes_part;
    }
  }

  void plan_rank(std::size_t rank) {
    RankState& state = ranks_[rank];
    state = RankState{};
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].takes_part[rank]) state.order.push_back(i);
    }
    std::shuffle(state.order.begin(), state.order.end(), random_);
    // The removal comes last: a rank uses a set no more once it has asked for that.
    std::stable_partition(state.order.begin(), state.order.end(), [&](std::size_t i) {
      return items_[i].request.kind != Kind::remove_set;
    });
  }

  void finish_plan() {
    for (const Item& item : items_) {
      const Request& request = item.request;
      if (request.kind == Kind::add_set && item.everybody) {
        sets_.add(sets_.free_id(), request.members);
      }
      if (request.kind == Kind::remove_set) sets_.remove(request.set);
    }
    removed_.reset();
  }

  bool over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& s) { return s.last; });
  }

  void submit_next(std::size_t rank) {
    RankState& state = ranks_[rank];
    if (state.blocked_on || state.joined) return;
    WorkerNegotiator& worker = *world_->workers[rank];
    if (state.next == state.order.size()) {
      state.joined = true;
      worker.submit(of_kind(Kind::join, ""));
      worker.flush();
      return;
    }
    const std::size_t index = state.order[state.next];
    const Request& request = items_[index].request;
    ++state.next;
    state.pending[key_of_item(request)] = index;
    if (!is_collective(request.kind)) state.blocked_on = key_of_item(request);
    worker.submit(request);
    if (below(random_, 4) == 0 || state.blocked_on) worker.flush();
  }

  void note_answers(std::size_t rank) {
    RankState& state = ranks_[rank];
    for (const Response& response : world_->take_heard(rank)) {
      std::string line = std::to_string(static_cast<int>(response.kind)) + "/" +
                         std::to_string(response.set->id.value) + "/" +
                         ranks_text(response.set->ranks) + response.error;
      for (const ResponseTensor& tensor : response.tensors)
        line += " " + tensor.request->name;
      state.stream.push_back(line);
      if (response.kind == Kind::join) {
        REQUIRE(state.joined);
        REQUIRE(!state.last);
        state.last = response.root;
        continue;
      }
      for (const ResponseTensor& tensor : response.tensors)
        note_tensor(state, rank, response, tensor);
    }
  }

  void note_tensor(RankState& state, std::size_t rank, const Response& response,
                   const ResponseTensor& tensor) {
    const SetId set = is_collective(response.kind) ? response.set->id : kGlobalSet;
    const auto found = state.pending.find({set.value, tensor.request->name});
    if (found == state.pending.end()) {
      const bool member = !is_collective(response.kind) ||
                          response.set->includes(Rank{static_cast<std::int32_t>(rank)});
      REQUIRE((!member || state.joined || !response.error.empty()));
      return;
    }
    const Item& item = items_[found->second];
    REQUIRE(response.kind == item.request.kind);
    const bool needs_all = response.kind != Kind::allreduce && response.kind != Kind::barrier;
    INFO(response.error);
    REQUIRE(response.error.empty() == (item.everybody || !needs_all));
    if (response.error.empty() && response.kind == Kind::allgather) {
      REQUIRE(tensor.first_dims.size() == response.set->ranks.size());
    }
    if (state.blocked_on == found->first) state.blocked_on.reset();
    state.pending.erase(found);
  }

  void something_happens() {
    const std::size_t rank = below(random_, ranks_.size());
    switch (below(random_, 7)) {
      case 0:
      case 1:
        submit_next(rank);
        break;
      case 2:
        world_->send(rank);
        break;
      case 3:
        world_->hear(rank);
        break;
      case 4:
        world_->decide();
        break;
      case 5:
        world_->deliver(rank);
        break;
      default:
        world_->now += std::chrono::milliseconds(below(random_, 5));
        if (below(random_, 3) == 0) world_->finish();
    }
    note_answers(0);
    note_answers(rank);
  }

  Random random_;
  NegotiationOptions options_;
  ProcessSets sets_{1};
  std::unique_ptr<NegotiationWorld> world_;
  std::vector<Item> items_;
  std::vector<RankState> ranks_;
  std::optional<SetId> removed_;
};

}  // namespace

TEST_CASE("negotiation: uneven ranks of any process sets join, and all hear the same") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Phases phases(seed);
    for (int phase = 0; phase < 6; ++phase) {
      INFO("phase " << phase);
      phases.run_phase();
    }
  }
}

}  // namespace hora
