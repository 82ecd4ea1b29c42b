// ProcessSet: the ranks that run a collective together. ProcessSets: those that a job has.
//
// Set 0 is all ranks. Others are given to init (static) or added and removed later (dynamic), by
// all ranks together: the root decides, and its decision travels in the ordered stream of
// RootMessages, like everything that all ranks must agree on. So there are several replicas of one
// table - the root's as of what it has answered, and each rank's as of what it has heard - and no
// two of them differ at the same place of the stream.
//
// A set is immutable and shared: a collective that was answered keeps its set when the set is
// removed. The number of a removed set is given away again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/result.h"

namespace hora {

/// The set of all ranks.
inline constexpr SetId kGlobalSet{0};

struct ProcessSet {
  SetId id;
  std::vector<std::int32_t> ranks;  ///< Ascending.

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  /// The rank's place in the set, or -1.
  [[nodiscard]] int index_of(Rank rank) const;
  [[nodiscard]] bool includes(Rank rank) const { return index_of(rank) >= 0; }
};
using SharedSet = std::shared_ptr<const ProcessSet>;

/// One replica of the job's sets. Owner: whoever holds it.
class ProcessSets {
 public:
  /// The set of all ranks.
  explicit ProcessSets(int size);
  /// And the static ones, which were not refused.
  ProcessSets(int size, const std::vector<std::vector<std::int32_t>>& sets);

  /// Null: there is no such set.
  [[nodiscard]] const SharedSet& find(SetId id) const {
    return id.value < by_id_.size() ? by_id_[id.value] : none_;
  }
  [[nodiscard]] const SharedSet& global() const { return by_id_.front(); }
  /// All sets, by number.
  [[nodiscard]] std::vector<SharedSet> all() const;

  /// There is a set without this rank.
  [[nodiscard]] bool any_without(Rank rank) const;

  /// Why these ranks cannot become a set, or nothing. Error invalid_argument.
  [[nodiscard]] std::optional<Error> refuse(const std::vector<std::int32_t>& given) const;
  /// The number of the next set.
  [[nodiscard]] SetId free_id() const;
  /// Ranks that were not refused become a set, under a number that is free.
  const SharedSet& add(SetId id, std::vector<std::int32_t> ranks);
  void remove(SetId id);

 private:
  std::vector<SharedSet> by_id_;
  SharedSet none_;
};

/// "rank 2", "ranks 0,1,3", "ranks 0-62,64": ascending ranks, as people write them.
std::string ranks_text(const std::vector<std::int32_t>& ranks);
/// "process set 2 (ranks 0,3)".
std::string set_text(const ProcessSet& set);

}  // namespace hora
