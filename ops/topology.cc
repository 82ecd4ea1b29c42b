// See topology.h. All functions are pure and run once a World, so they are written to be read.
#include "ops/topology.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/check.h"

namespace hora {

Topology Topology::one_host(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return {{std::move(ranks)}};
}

Topology Topology::separate(int size) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank)
    topology.hosts.push_back({rank});
  return topology;
}

Topology Topology::from_sharing(const std::vector<std::vector<bool>>& shares) {
  Topology topology;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const auto shares_with_all = [&](const std::vector<int>& host) {
      return std::all_of(host.begin(), host.end(), [&](int other) {
        const auto at = static_cast<std::size_t>(other);
        return shares[rank][at] && shares[at][rank];
      });
    };
    auto host = std::find_if(topology.hosts.begin(), topology.hosts.end(), shares_with_all);
    if (host == topology.hosts.end()) host = topology.hosts.insert(host, std::vector<int>{});
    host->push_back(static_cast<int>(rank));
  }
  return topology;
}

Topology Topology::among(const std::vector<std::int32_t>& ranks) const {
  std::vector<std::vector<int>> by_host(hosts.size());
  std::vector<int> order;  // of the hosts, by their first rank in the list
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    const int host = host_of(ranks[place]);
    auto& members = by_host[static_cast<std::size_t>(host)];
    if (members.empty()) order.push_back(host);
    members.push_back(static_cast<int>(place));
  }
  Topology topology;
  for (const int host : order)
    topology.hosts.push_back(std::move(by_host[static_cast<std::size_t>(host)]));
  return topology;
}

int Topology::size() const {
  int size = 0;
  for (const std::vector<int>& host : hosts)
    size += static_cast<int>(host.size());
  return size;
}

int Topology::host_of(int rank) const {
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    if (std::find(hosts[host].begin(), hosts[host].end(), rank) != hosts[host].end()) {
      return static_cast<int>(host);
    }
  }
  HORA_CHECK(false, "every rank stands in some host of its topology");
}

int Topology::most_ranks() const {
  std::size_t most = 0;
  for (const std::vector<int>& host : hosts)
    most = std::max(most, host.size());
  return static_cast<int>(most);
}

}  // namespace hora
