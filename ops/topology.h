// Topology: which ranks share memory. Two levels: memory inside of a host, a network across.
//
//   {{0, 1}, {2, 3, 5}, {4}}     three hosts; every rank stands in one of them
//
// A *host* here is a set of ranks of which every two really share memory, whatever machine they run
// on: its list follows from the links that were made, not from names. The lists are in one order
// for all ranks (each ascending, first the one that holds the lowest rank), so that pure functions
// of a Topology give matching schedules everywhere.
#pragma once

#include <cstdint>
#include <vector>

namespace hora {

struct Topology {
  std::vector<std::vector<int>> hosts;

  /// All ranks share memory.
  static Topology one_host(int size);
  /// Nobody shares memory.
  static Topology separate(int size);
  /// From `shares[a][b]`, a symmetric relation: rank by rank, into the first host all of whose
  /// ranks share with it, or else into one of its own.
  static Topology from_sharing(const std::vector<std::vector<bool>>& shares);

  /// Of these ranks alone (ascending), by their places in the list.
  [[nodiscard]] Topology among(const std::vector<std::int32_t>& ranks) const;

  [[nodiscard]] int size() const;
  [[nodiscard]] int host_count() const { return static_cast<int>(hosts.size()); }
  [[nodiscard]] int ranks_of(int host) const {
    return static_cast<int>(hosts[static_cast<std::size_t>(host)].size());
  }
  [[nodiscard]] int host_of(int rank) const;
  /// Of the host with the most ranks.
  [[nodiscard]] int most_ranks() const;
  [[nodiscard]] bool is_one_host() const { return hosts.size() == 1; }

  friend bool operator==(const Topology&, const Topology&) = default;
};

}  // namespace hora
