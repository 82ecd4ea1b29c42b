// What all algorithms have in common, over the rows of the registry; then what makes each special.
//
// Two judges that know nothing of each other: the symbolic check, and a playback that
// runs the tasks in random order on strings, lets messages land at random moments, and
// looks at what is unpacked.
#include "ops/algorithms/algorithms.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "ops/check.h"
#include "tests/ops/groups.h"

namespace hora {
namespace {

using testing::all_divisions;
using testing::group_of;
using testing::hosts_of_two;
using testing::name_of;
using testing::order_of;
using testing::roots_of;

const std::vector<int> kSizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 31, 32, 64};

// ---- Playback -----------------------------------------------------------------------------------

enum class Memory { shared, separate, hosts_of_two };

// Runs the schedules of a group in an order chosen by a seed. A cell holds text: what a rank packed
// is "rank.chunk", a merge joins with '+', a finished sum begins with '='.
class Playback {
 public:
  Playback(const std::vector<Schedule>& group, Memory memory, unsigned seed)
      : group_(group), memory_(memory), random_(seed) {
    const bool views_only = memory == Memory::shared;
    for (const Schedule& s : group) {
      cells_.emplace_back(s.cells(views_only), "nothing");
      results_.emplace_back(static_cast<std::size_t>(s.grid), "nothing");
      done_.emplace_back(s.tasks.size(), false);
    }
  }

  // False if not all tasks could run.
  bool run() {
    for (;;) {
      std::vector<std::pair<int, TaskId>> ready;  // A landing has the id of its send.
      std::vector<bool> is_landing;
      collect(ready, is_landing);
      if (ready.empty()) break;
      const std::size_t pick =
          std::uniform_int_distribution<std::size_t>(0, ready.size() - 1)(random_);
      const auto [rank, id] = ready[pick];
      is_landing[pick] ? land(rank, id) : execute(rank, id);
    }
    return std::all_of(done_.begin(), done_.end(), [](const std::vector<bool>& rank) {
      return std::all_of(rank.begin(), rank.end(), [](bool done) { return done; });
    });
  }

  const std::vector<std::string>& results(int rank) const { return results_.at(rank); }

 private:
  bool shares(int a, int b) const {
    return memory_ == Memory::shared || (memory_ == Memory::hosts_of_two && a / 2 == b / 2);
  }
  const Task& task(int rank, TaskId id) const { return group_[rank].tasks[id]; }
  int span(const Task& t) const { return t.chunk == kWhole ? group_[0].grid : 1; }

  void collect(std::vector<std::pair<int, TaskId>>& ready, std::vector<bool>& is_landing) const {
    for (int rank = 0; rank < static_cast<int>(group_.size()); ++rank) {
      for (TaskId id = 0; id < group_[rank].tasks.size(); ++id) {
        if (!done_[rank][id] && is_ready(rank, id)) {
          ready.emplace_back(rank, id);
          is_landing.push_back(false);
        }
      }
    }
    for (const auto& [key, id] : in_flight_) {
      ready.emplace_back(std::get<0>(key), id);
      is_landing.push_back(true);
    }
  }

  bool is_ready(int rank, TaskId id) const {
    const Task& t = task(rank, id);
    for (std::uint32_t i = 0; i < t.dependency_count; ++i) {
      if (!done_[rank][group_[rank].dependencies[t.first_dependency + i]]) return false;
    }
    return t.kind != Primitive::recv || arrived_.count({t.peer, rank, t.tag}) == 1;
  }

  std::string& cell(int rank, Place at, int i) {
    std::size_t index = at.cell + static_cast<std::size_t>(i);
    for (int b = 0; b < at.buffer; ++b)
      index += group_[rank].buffers[b].cells;
    return cells_.at(rank).at(index);
  }

  std::string read(int rank, const Operand& operand, int i) {
    if (operand.received == kNoTask) return cell(rank, operand.place, i);
    const Task& recv = task(rank, operand.received);
    if (!shares(rank, recv.peer)) return cell(rank, recv.at, i);
    const Task& sent = task(recv.peer, arrived_.at({recv.peer, rank, recv.tag}));
    return cell(recv.peer, sent.at, i);
  }

  void execute(int rank, TaskId id) {
    const Task& t = task(rank, id);
    for (int i = 0; i < span(t); ++i) {
      const int chunk = t.chunk == kWhole ? i : t.chunk;
      std::string value;
      for (std::uint32_t o = 0; o < t.operand_count; ++o) {
        value += (o > 0 ? "+" : "") + read(rank, group_[rank].operands[t.first_operand + o], i);
      }
      if (t.kind == Primitive::pack) value = std::to_string(rank) + "." + std::to_string(chunk);
      if (t.finish) value = "=" + value;
      if (t.kind == Primitive::unpack) {
        results_[rank].at(chunk) = value;
      } else if (t.kind != Primitive::send && t.kind != Primitive::recv) {
        cell(rank, t.at, i) = value;
      }
    }
    if (t.kind == Primitive::send) {
      auto& messages = shares(rank, t.peer) ? arrived_ : in_flight_;
      messages[{rank, t.peer, t.tag}] = id;
    }
    done_[rank][id] = true;
  }

  void land(int sender, TaskId id) {
    const Task& sent = task(sender, id);
    for (int i = 0; i < span(sent); ++i)
      cell(sent.peer, sent.remote, i) = cell(sender, sent.at, i);
    in_flight_.erase({sender, sent.peer, sent.tag});
    arrived_[{sender, sent.peer, sent.tag}] = id;
  }

  const std::vector<Schedule>& group_;
  Memory memory_;
  std::mt19937 random_;
  std::vector<std::vector<std::string>> cells_, results_;
  std::vector<std::vector<bool>> done_;
  std::map<std::tuple<int, int, int>, TaskId> in_flight_, arrived_;  // By (sender, receiver, tag).
};

std::string expected_result(const std::vector<Schedule>& group, const Topology& order, int self,
                            int chunk) {
  const auto leaf = [&](int rank) { return std::to_string(rank) + "." + std::to_string(chunk); };
  const Schedule& s = group[0];
  const int owner = s.owner_of(chunk);
  if (owner >= 0 && owner != self) return "nothing";
  if (s.shape == Shape::gather) return leaf(chunk);
  if (s.shape == Shape::transpose) return leaf(chunk / s.size);
  if (s.shape == Shape::copy) return leaf(s.root);
  const bool goes_around = s.algorithm == "ring" || s.algorithm == "hierarchical";
  std::string sum = "=";
  for (int i = 0; i < order.host_count(); ++i) {
    const int host = goes_around ? (chunk + 1 + i) % order.host_count() : i;
    for (const int rank : order.hosts[host])
      sum += (sum == "=" ? "" : "+") + leaf(rank);
  }
  return sum;
}

// ---- All rows -----------------------------------------------------------------------------------

TEST_CASE("algorithms: every row passes the symbolic check, for all sizes and roots") {
  for (const AlgorithmRow& row : algorithms()) {
    for (const int size : kSizes) {
      for (int root = 0; root < roots_of(row, size); ++root) {
        INFO(name_of(row) << ", size " << size << ", root " << root);
        const auto finding = check_schedules(group_of(row, size, root), order_of(row, size));
        CHECK(finding.value_or("right") == "right");
      }
    }
  }
}

TEST_CASE("algorithms: every rank ends with the result, in any order and over any memory") {
  for (const AlgorithmRow& row : algorithms()) {
    for (int size = 1; size <= 8; ++size) {
      for (int root = 0; root < roots_of(row, size); ++root) {
        for (const Memory memory : {Memory::shared, Memory::separate, Memory::hosts_of_two}) {
          for (unsigned seed = 1; seed <= 4; ++seed) {
            const std::vector<Schedule> group = group_of(row, size, root);
            Playback playback(group, memory, seed);
            INFO(name_of(row) << ", size " << size << ", root " << root << ", memory "
                              << static_cast<int>(memory) << ", seed " << seed);
            REQUIRE(playback.run());
            for (int rank = 0; rank < size; ++rank) {
              for (int chunk = 0; chunk < group[0].grid; ++chunk) {
                REQUIRE(playback.results(rank)[chunk] ==
                        expected_result(group, order_of(row, size), rank, chunk));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("algorithms: a packed input is neither landed on nor written again") {
  for (const AlgorithmRow& row : algorithms()) {
    const std::vector<Schedule> group = group_of(row, 6, 0);
    for (const Schedule& s : group) {
      std::set<std::pair<int, int>> packed;
      for (const Task& t : s.tasks) {
        if (t.kind == Primitive::pack) {
          for (int i = 0; i < (t.chunk == kWhole ? s.grid : 1); ++i) {
            packed.insert({t.at.buffer, t.at.cell + i});
          }
        }
      }
      for (const Task& t : s.tasks) {
        if (t.kind == Primitive::merge || t.kind == Primitive::copy || t.kind == Primitive::recv) {
          INFO(name_of(row) << ", rank " << s.me);
          CHECK(packed.count({t.at.buffer, t.at.cell}) == 0);
        }
      }
    }
  }
}

TEST_CASE("algorithms: exactly the rows that round once finish with the only merge of a chunk") {
  for (const AlgorithmRow& row : algorithms()) {
    if (row.collective != Collective::allreduce && row.collective != Collective::reducescatter)
      continue;
    bool merges_all_at_once = true;
    for (const Schedule& s : group_of(row, 8, 0)) {
      for (const Task& t : s.tasks) {
        if (t.kind == Primitive::merge && t.operand_count != 8) merges_all_at_once = false;
      }
    }
    INFO(name_of(row));
    CHECK(row.rounds_once == merges_all_at_once);
  }
}

TEST_CASE("algorithms: rows are found by name and collective, and described") {
  std::set<std::string> names;
  for (const AlgorithmRow& row : algorithms()) {
    CHECK(names.insert(name_of(row)).second);
    CHECK(find_algorithm(row.name, row.collective) == &row);
    CHECK_FALSE(row.description.empty());
    CHECK(row.make(Topology::one_host(2), 0, 0).algorithm == row.name);
  }
  CHECK(find_algorithm("tree", Collective::allreduce) == nullptr);
  CHECK(find_algorithm("", Collective::barrier) == nullptr);
}

// ---- Single algorithms --------------------------------------------------------------------------

TEST_CASE("exchange, direct, doubling: contributions are added in rank order") {
  for (const auto& [name, collective] :
       {std::pair{"exchange", Collective::allreduce}, std::pair{"direct", Collective::allreduce},
        std::pair{"doubling", Collective::allreduce},
        std::pair{"direct", Collective::reducescatter}}) {
    for (const int size : kSizes) {
      std::vector<int> ranks(size);
      std::iota(ranks.begin(), ranks.end(), 0);
      const std::vector<Schedule> group = group_of(name, collective, size);
      for (int chunk = 0; chunk < std::min(group[0].grid, 16); ++chunk) {
        INFO(name << ", size " << size << ", chunk " << chunk);
        CHECK(contribution_order(group, chunk) == ranks);
      }
    }
  }
}

TEST_CASE("ring: the sum of a chunk begins right of its owner and ends at the owner") {
  for (const Collective collective : {Collective::allreduce, Collective::reducescatter}) {
    for (const int size : {1, 2, 3, 5, 8}) {
      const std::vector<Schedule> group = group_of("ring", collective, size);
      for (int chunk = 0; chunk < size; ++chunk) {
        const std::vector<int> order = contribution_order(group, chunk);
        REQUIRE(order.size() == static_cast<std::size_t>(size));
        for (int i = 0; i < size; ++i)
          CHECK(order[i] == (chunk + 1 + i) % size);
      }
    }
  }
}

TEST_CASE("ring: a rank sends to its right neighbour and receives from its left one only") {
  for (const Collective collective :
       {Collective::allreduce, Collective::allgather, Collective::reducescatter}) {
    for (const Schedule& s : group_of("ring", collective, 7)) {
      for (const Task& t : s.tasks) {
        if (t.kind == Primitive::send) CHECK(t.peer == (s.me + 1) % 7);
        if (t.kind == Primitive::recv) CHECK(t.peer == (s.me + 6) % 7);
      }
    }
  }
}

TEST_CASE("ring, direct: a rank sends 2(size-1)/size of the segment, the least possible") {
  for (const char* name : {"ring", "direct"}) {
    for (const int size : {1, 2, 3, 4, 8, 13}) {
      for (const Schedule& s : group_of(name, Collective::allreduce, size)) {
        CHECK(traffic_of(s).segments == Approx(2.0 * (size - 1) / size));
      }
    }
  }
}

TEST_CASE(
    "reduce-scatter, all-to-all: a rank sends a chunk to each other rank, the least possible") {
  for (const int size : {1, 2, 3, 4, 8, 13}) {
    for (const char* name : {"ring", "direct"}) {
      for (const Schedule& s : group_of(name, Collective::reducescatter, size)) {
        CHECK(traffic_of(s).segments == Approx(1.0 * (size - 1) / size));
      }
    }
    for (const Schedule& s : group_of("direct", Collective::alltoall, size)) {
      std::set<int> peers;
      for (const Task& t : s.tasks) {
        if (t.kind != Primitive::send) continue;
        CHECK(peers.insert(t.peer).second);
        CHECK(t.chunk == s.me * size + t.peer);
      }
      CHECK(peers.size() == static_cast<std::size_t>(size - 1));
    }
  }
}

TEST_CASE("doubling: a power of two sends the segment log2(size) times") {
  for (const int rounds : {0, 1, 2, 3, 4}) {
    for (const Schedule& s : group_of("doubling", Collective::allreduce, 1 << rounds)) {
      CHECK(traffic_of(s).segments == rounds);
      CHECK(s.depth == rounds);
    }
  }
}

TEST_CASE("algorithms: hops by size") {
  using Row = std::tuple<const char*, Collective, std::vector<int>>;
  const std::vector<Row> table = {
      //                                       size  1  2  3  4  5  6   7   8
      {"exchange", Collective::allreduce, {/*     */ 0, 1, 1, 1, 1, 1, 1, 1}},
      {"direct", Collective::allreduce, {/*       */ 0, 2, 2, 2, 2, 2, 2, 2}},
      {"ring", Collective::allreduce, {/*         */ 0, 2, 4, 6, 8, 10, 12, 14}},
      {"hierarchical", Collective::allreduce, {/* */ 0, 2, 4, 4, 6, 6, 8, 8}},
      {"doubling", Collective::allreduce, {/*     */ 0, 1, 2, 2, 3, 3, 4, 3}},
      {"direct", Collective::allgather, {/*       */ 0, 1, 1, 1, 1, 1, 1, 1}},
      {"ring", Collective::allgather, {/*         */ 0, 1, 2, 3, 4, 5, 6, 7}},
      {"direct", Collective::reducescatter, {/*   */ 0, 1, 1, 1, 1, 1, 1, 1}},
      {"ring", Collective::reducescatter, {/*     */ 0, 1, 2, 3, 4, 5, 6, 7}},
      {"direct", Collective::alltoall, {/*        */ 0, 1, 1, 1, 1, 1, 1, 1}},
      {"flat", Collective::broadcast, {/*         */ 0, 1, 1, 1, 1, 1, 1, 1}},
      {"tree", Collective::broadcast, {/*         */ 0, 1, 1, 2, 2, 2, 2, 3}},
  };
  for (const auto& [name, collective, hops] : table) {
    for (int size = 1; size <= 8; ++size) {
      INFO(name << ", size " << size);
      CHECK(group_of(name, collective, size)[0].depth == hops[size - 1]);
    }
  }
}

// The bytes that a host sends to others, in lengths of the segment.
double sent_by_host(const std::vector<Schedule>& group, const Topology& topology, int host) {
  double chunks = 0;
  for (const int rank : topology.hosts[host]) {
    for (const Task& t : group[rank].tasks) {
      if (t.kind == Primitive::send && topology.host_of(t.peer) != host) ++chunks;
    }
  }
  return chunks / group[0].grid;
}

TEST_CASE("hierarchical: every division of up to 8 ranks passes the symbolic check") {
  const AlgorithmRow& row = *find_algorithm("hierarchical", Collective::allreduce);
  for (int size = 1; size <= 8; ++size) {
    for (const Topology& topology : all_divisions(size)) {
      // From 7 ranks on only one order of each shape: consecutive ranks, or every other rank.
      std::vector<int> ranks;
      for (const auto& host : topology.hosts)
        ranks.insert(ranks.end(), host.begin(), host.end());
      if (size > 6 && !std::is_sorted(ranks.begin(), ranks.end()) && ranks[1] != 2) continue;
      std::string shape;
      for (const int rank : ranks)
        shape += std::to_string(topology.host_of(rank));
      INFO("size " << size << ", hosts of ranks " << shape);
      const std::vector<Schedule> group = group_of(row, topology, 0);
      REQUIRE(check_schedules(group, topology).value_or("right") == "right");
      CHECK(group[0].tags <= 2 * size);
      CHECK(group[0].grid <= 2 * size);
    }
  }
}

TEST_CASE("hierarchical: every rank ends with the result, in any order, whatever the hosts") {
  const AlgorithmRow& row = *find_algorithm("hierarchical", Collective::allreduce);
  for (const Topology& topology : all_divisions(5)) {
    for (const Memory memory : {Memory::shared, Memory::separate, Memory::hosts_of_two}) {
      const std::vector<Schedule> group = group_of(row, topology, 0);
      Playback playback(group, memory, static_cast<unsigned>(topology.host_count()));
      REQUIRE(playback.run());
      for (int rank = 0; rank < 5; ++rank) {
        for (int chunk = 0; chunk < group[0].grid; ++chunk) {
          REQUIRE(playback.results(rank)[chunk] == expected_result(group, topology, rank, chunk));
        }
      }
    }
  }
}

TEST_CASE("hierarchical: a host sends 2(hosts-1)/hosts of the segment, the least possible") {
  const AlgorithmRow& row = *find_algorithm("hierarchical", Collective::allreduce);
  for (int size = 1; size <= 6; ++size) {
    for (const Topology& topology : all_divisions(size)) {
      const std::vector<Schedule> group = group_of(row, topology, 0);
      for (int host = 0; host < topology.host_count(); ++host) {
        CHECK(sent_by_host(group, topology, host) ==
              Approx(2.0 * (topology.host_count() - 1) / topology.host_count()));
      }
    }
  }
}

TEST_CASE("hierarchical: the ranks of equal hosts share the work evenly") {
  const AlgorithmRow& row = *find_algorithm("hierarchical", Collective::allreduce);
  const Topology topology{{{0, 1, 2, 3}, {4, 5, 6, 7}}};
  for (const Schedule& s : group_of(row, topology, 0)) {
    int merges = 0;
    double across = 0;
    for (const Task& t : s.tasks) {
      if (t.kind == Primitive::merge) ++merges;
      if (t.kind == Primitive::send && topology.host_of(t.peer) != topology.host_of(s.me)) {
        across += 1.0 / s.grid;
      }
    }
    CHECK(merges == 2);
    CHECK(across == Approx(0.25));
  }
}

TEST_CASE("topology: hosts are those of which every two share memory") {
  const auto sharing = [](int size, const std::vector<std::pair<int, int>>& pairs) {
    std::vector<std::vector<bool>> shares(size, std::vector<bool>(size));
    for (const auto& [a, b] : pairs)
      shares[a][b] = shares[b][a] = true;
    return Topology::from_sharing(shares);
  };
  CHECK(sharing(3, {}) == Topology::separate(3));
  CHECK(sharing(3, {{0, 1}, {1, 2}, {0, 2}}) == Topology::one_host(3));
  CHECK(sharing(4, {{0, 2}, {1, 3}}) == Topology{{{0, 2}, {1, 3}}});
  // 0 and 2 failed to pass memory: three in a row are no host.
  CHECK(sharing(3, {{0, 1}, {1, 2}}) == Topology{{{0, 1}, {2}}});
  // A pair of which only one end says so does not share.
  std::vector<std::vector<bool>> one_sided(2, std::vector<bool>(2));
  one_sided[0][1] = true;
  CHECK(Topology::from_sharing(one_sided) == Topology::separate(2));
  CHECK(Topology{{{0, 2}, {1, 3, 4}}}.most_ranks() == 3);
  CHECK(Topology{{{0, 2}, {1, 3, 4}}}.host_of(3) == 1);
}

TEST_CASE("tree: no rank sends more than ceil(log2 size) times, and all together size-1 times") {
  const std::map<int, std::size_t> most = {{1, 0}, {2, 1}, {3, 2}, {5, 3}, {8, 3}, {9, 4}, {16, 4}};
  for (const auto& [size, limit] : most) {
    const AlgorithmRow& row = *find_algorithm("tree", Collective::broadcast);
    for (int root = 0; root < size; ++root) {
      std::size_t messages = 0;
      for (const Schedule& s : group_of(row, size, root)) {
        CHECK(traffic_of(s).messages <= limit);
        messages += traffic_of(s).messages;
      }
      CHECK(messages == static_cast<std::size_t>(size - 1));
    }
  }
}

TEST_CASE("direct, exchange, flat: over shared memory nothing is copied between slots") {
  for (const auto& [name, collective] :
       {std::pair{"direct", Collective::allreduce}, std::pair{"exchange", Collective::allreduce},
        std::pair{"direct", Collective::allgather}, std::pair{"flat", Collective::broadcast},
        std::pair{"direct", Collective::reducescatter},
        std::pair{"direct", Collective::alltoall}}) {
    for (const Schedule& s : group_of(name, collective, 5)) {
      for (const Task& t : s.tasks)
        CHECK(t.kind != Primitive::copy);
    }
  }
}

}  // namespace
}  // namespace hora
