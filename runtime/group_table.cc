#include "runtime/group_table.h"

#include <utility>

namespace hora {

GroupTable::Released GroupTable::add(const GroupKey& group, std::int32_t size, PendingId member) {
  groups_[group].waiting.push_back(member);
  return settle(group, size);
}

GroupTable::Released GroupTable::fail(const GroupKey& group, std::int32_t size,
                                      const Error& error) {
  Group& found = groups_[group];
  if (!found.error) found.error = error;
  return settle(group, size);
}

GroupTable::Released GroupTable::settle(const GroupKey& group, std::int32_t size) {
  const auto found = groups_.find(group);
  const bool all_came = ++found->second.seen >= size;
  Released released;
  if (all_came || found->second.error) {
    released.members = std::exchange(found->second.waiting, {});
    released.error = found->second.error;
  }
  if (all_came) groups_.erase(found);
  return released;
}

}  // namespace hora
