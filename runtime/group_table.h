// GroupTable: tensors that are answered together or not at all.
//
// A grouped call submits its tensors under the name of the group. A member that all ranks have
// submitted waits here for the others; when the last one has come all are ready at once. One that
// fails makes all of them fail, with its error: those that wait, and those that come later.
//
//   a1 complete ... waits          b1 complete ... waits
//   a2 complete ... waits          b2 disagrees -> b1, b2 fail
//   a3 complete -> a1 a2 a3        b3 complete  -> fails
//
// A group is forgotten when all its members have come, so that its name may be used again. Members
// are counted, not named: a rank submits a group as a whole (Engine::post_group), and again only
// when all of it is answered, so whoever comes while a group is known belongs to it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/pending_table.h"

namespace hora {

/// Groups of one name in two process sets are two.
using GroupKey = std::pair<SetId, std::string>;

inline GroupKey group_key(const Request& member) {
  return {members_of(member), member.group};
}

/// Owner: the Coordinator.
class GroupTable {
 public:
  /// Who is to be answered now, in the order in which they were complete.
  struct Released {
    std::vector<PendingId> members;
    std::optional<Error> error;  ///< They fail with this.
  };

  /// All ranks have submitted `member` of a group of `size` tensors, and agree.
  Released add(const GroupKey& group, std::int32_t size, PendingId member);
  /// A member of the group fails. The others that have come; the failed one is not among them.
  Released fail(const GroupKey& group, std::int32_t size, const Error& error);
  /// Groups of which members have come.
  [[nodiscard]] std::size_t size() const { return groups_.size(); }

 private:
  struct Group {
    std::int32_t seen = 0;  // Members that have come, failed ones included.
    std::vector<PendingId> waiting;
    std::optional<Error> error;
  };

  /// One more member has come. Takes those who wait, if it is time.
  Released settle(const GroupKey& group, std::int32_t size);

  std::map<GroupKey, Group> groups_;
};

}  // namespace hora
