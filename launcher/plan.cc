// Slots are dealt in one pass over the hosts. Cross ranks need a second: the number of hosts that
// have a local rank is known only when all slots are dealt.
#include "launcher/plan.h"

#include <algorithm>

#include <fmt/format.h>

namespace hora {
Result<std::vector<Slot>> plan_slots(const std::vector<Host>& hosts, std::optional<int> num_proc) {
  long long available = 0;
  for (const Host& host : hosts)
    available += host.slots;
  if (!num_proc && hosts.empty()) {
    return fail(ErrorKind::invalid_argument, "-np N (the number of processes) is required");
  }
  const long long wanted = num_proc ? *num_proc : available;
  if (wanted < 1 || wanted > kMaxWorkers) {
    return fail(ErrorKind::invalid_argument,
                fmt::format("the number of processes (-np) must be from 1 to {}, not {}",
                            kMaxWorkers, wanted));
  }
  if (!hosts.empty() && wanted > available) {
    return fail(ErrorKind::invalid_argument,
                fmt::format("Requested more processes ({}) than there are available slots ({}); "
                            "lower -np or name more slots",
                            wanted, available));
  }
  const int size = static_cast<int>(wanted);
  const std::vector<Host> localhost = {{"localhost", size}};
  std::vector<Slot> slots;
  for (const Host& host : hosts.empty() ? localhost : hosts) {
    const int local_size = std::min(host.slots, size - static_cast<int>(slots.size()));
    for (int local_rank = 0; local_rank < local_size; ++local_rank) {
      Slot slot;
      slot.host = host.name;
      slot.rank = Rank(static_cast<std::int32_t>(slots.size()));
      slot.size = size;
      slot.local_rank = local_rank;
      slot.local_size = local_size;
      slots.push_back(std::move(slot));
    }
  }
  // How many hosts have this local rank: the count so far is a slot's cross rank, the
  // last one the size.
  std::vector<int> hosts_with(static_cast<std::size_t>(size), 0);
  for (Slot& slot : slots) {
    slot.cross_rank = hosts_with[static_cast<std::size_t>(slot.local_rank)]++;
  }
  for (Slot& slot : slots) {
    slot.cross_size = hosts_with[static_cast<std::size_t>(slot.local_rank)];
  }
  return slots;
}

std::vector<std::vector<Slot>> group_by_host(const std::vector<Slot>& slots) {
  std::vector<std::vector<Slot>> hosts;
  for (const Slot& slot : slots) {
    if (hosts.empty() || hosts.back().front().host != slot.host) hosts.emplace_back();
    hosts.back().push_back(slot);
  }
  return hosts;
}

}  // namespace hora
