// Sets are few and small, so the table is a vector by number and looking for equal ranks walks it.
// A rank of a world is found in set 0 without a search, because that set is asked about most.
// Ranks come in any order and leave sorted: the order of a list means nothing.
#include "runtime/process_set.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace hora {

int ProcessSet::index_of(Rank rank) const {
  if (id == kGlobalSet) return rank.value >= 0 && rank.value < size() ? rank.value : -1;
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank.value);
  if (found == ranks.end() || *found != rank.value) return -1;
  return static_cast<int>(found - ranks.begin());
}

ProcessSets::ProcessSets(int size) {
  ProcessSet all{kGlobalSet, {}};
  for (std::int32_t rank = 0; rank < size; ++rank)
    all.ranks.push_back(rank);
  by_id_.push_back(std::make_shared<const ProcessSet>(std::move(all)));
}

ProcessSets::ProcessSets(int size, const std::vector<std::vector<std::int32_t>>& sets)
    : ProcessSets(size) {
  for (const auto& ranks : sets)
    add(free_id(), ranks);
}

std::vector<SharedSet> ProcessSets::all() const {
  std::vector<SharedSet> sets;
  std::copy_if(by_id_.begin(), by_id_.end(), std::back_inserter(sets),
               [](const SharedSet& set) { return set != nullptr; });
  return sets;
}

bool ProcessSets::any_without(Rank rank) const {
  return std::any_of(by_id_.begin(), by_id_.end(),
                     [rank](const SharedSet& set) { return set && !set->includes(rank); });
}

std::optional<Error> ProcessSets::refuse(const std::vector<std::int32_t>& given) const {
  const auto bad = [](std::string why) {
    return Error{ErrorKind::invalid_argument, std::move(why), std::nullopt};
  };
  std::vector<std::int32_t> ranks = given;
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) return bad("a process set has at least one rank");
  const int size = global()->size();
  for (const std::int32_t rank : ranks) {
    if (rank >= 0 && rank < size) continue;
    return bad("rank " + std::to_string(rank) + " of a process set is not one of the " +
               std::to_string(size) + " ranks 0 to " + std::to_string(size - 1));
  }
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end()) {
    return bad("a process set names rank " + std::to_string(*twice) + " twice");
  }
  for (const SharedSet& set : by_id_) {
    if (set && set->ranks == ranks) {
      return bad("Attempted to add a duplicate process set: " + set_text(*set) +
                 " has the same ranks");
    }
  }
  return std::nullopt;
}

SetId ProcessSets::free_id() const {
  const auto hole = std::find(by_id_.begin(), by_id_.end(), nullptr);
  return SetId(static_cast<std::uint32_t>(hole - by_id_.begin()));
}

const SharedSet& ProcessSets::add(SetId id, std::vector<std::int32_t> ranks) {
  HORA_CHECK(!find(id), "a number names one set at a time");
  std::sort(ranks.begin(), ranks.end());
  if (id.value >= by_id_.size()) by_id_.resize(id.value + 1);
  return by_id_[id.value] = std::make_shared<const ProcessSet>(ProcessSet{id, std::move(ranks)});
}

void ProcessSets::remove(SetId id) {
  HORA_CHECK(id != kGlobalSet && find(id), "only a set that was added is removed");
  by_id_[id.value].reset();
}

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1)
      ++end;
    if (end - i < 3) end = i + 1;  // "0,1", but "0-2"
    if (i > 0) text += ",";
    text += std::to_string(ranks[i]);
    if (end - i >= 3) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string set_text(const ProcessSet& set) {
  return "process set " + std::to_string(set.id.value) + " (" + ranks_text(set.ranks) + ")";
}

}  // namespace hora
