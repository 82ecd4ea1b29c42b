// Hierarchical: all-reduce over hosts. Memory inside, a ring across; no link carries a byte twice.
//
//   host A   0   1   2           host B   3   4          here 3 + 2 ranks: hosts = 2, shares = 3
//            o   o   o <-------------->   o   o          chunk = share x hosts + home
//
//   chunk    0    1    2    3    4    5
//   home     A    B    A    B    A    B                  the host that finishes it
//   in A     0    0    1    1    2    2                  its owner in each host: share s belongs to
//   in B     3    3    4    4    3    3                  the host's rank number s mod (its ranks)
//
//   1 inside    every rank publishes its input; the owner of a chunk reads those of its host
//   2 across    the sum of a chunk starts at the host after its home and goes around the hosts,
//               from owner to owner; each adds what its own host has, in one merge of all its
//               ranks and the sum that came. The home is last: it finishes
//   3 across    the finished chunk goes around once more, and
//   4 inside    each owner publishes it to its host
//
// Order: hosts around from the one after the chunk's home, ranks ascending inside of each. One
// chain of merges makes each chunk and the rest are copies, so all ranks get the same bytes. A sum
// that goes on is rounded once a host, so 16-bit tensors do not take it.
//
// Chunks: `hosts` x `shares`. Shares are as many as the largest host has ranks, so that all of them
// work; but if there is a smaller host, no more than leaves its ranks `size` chunks each. A host of
// one rank owns all chunks and sends its inputs as they are; with such hosts alone this is a ring,
// and with a single host it is direct.cc.
//
// Cost, segment of n bytes: a *host* sends 2 n (hosts-1)/hosts and receives as much, the least
// possible, where a flat ring sends 2 n (size-1)/size: 2 hosts x 2 ranks need 2/3 of the ring's
// time on a network, 2 x 8 need 8/15. Hops: 2 (hosts-1) across and one inside at either end. Every
// owner has a flow of its own to the next host. Inside of a host nothing is copied to be reduced.
//
// Source: reduce-scatter inside, rings across, all-gather inside: "2D" all-reduce, as in Jia et
// al., "Highly scalable deep learning training system with mixed-precision", 2018; here with hosts
// of any sizes and without a barrier between the levels.
//
// Slot:   input  [chunks]   stays as packed
//         result [chunks]   finished: merged here, or brought by the ring across or by the owner
//         partial[most]     the sum passed on, one for each chunk owned (`most`: of any rank)
//         inside [...]      landing: own chunks of the others in this host
//         across [most]     landing: the sum that came
#include <algorithm>
#include <vector>

#include "ops/algorithms/algorithms.h"

namespace hora {
namespace {

// Who owns what: a pure function of the topology, the same on all ranks.
class Cut {
 public:
  explicit Cut(const Topology& topology) : topology_(topology), hosts_(topology.host_count()) {
    for (shares_ = topology.most_ranks(); shares_ > 1; --shares_) {
      if (most_owned() <= topology.size()) break;
    }
  }

  [[nodiscard]] int hosts() const { return hosts_; }
  [[nodiscard]] int chunks() const { return hosts_ * shares_; }
  [[nodiscard]] int chunk(int share, int home) const { return share * hosts_ + home; }
  [[nodiscard]] int shares() const { return shares_; }
  /// Hosts counted around.
  [[nodiscard]] int around(int host, int steps) const {
    return ((host + steps) % hosts_ + hosts_) % hosts_;
  }

  /// The number within its host of the rank that owns a chunk there.
  [[nodiscard]] int owner_number(int host, int chunk) const {
    return chunk / hosts_ % topology_.ranks_of(host);
  }
  [[nodiscard]] int owner(int host, int chunk) const {
    return topology_
        .hosts[static_cast<std::size_t>(host)][static_cast<std::size_t>(owner_number(host, chunk))];
  }
  /// The how-manieth chunk of its owner in that host it is.
  [[nodiscard]] int index(int host, int chunk) const {
    return chunk / hosts_ / topology_.ranks_of(host) * hosts_ + chunk % hosts_;
  }
  /// The most chunks that a rank owns.
  [[nodiscard]] int most_owned() const {
    int most = 0;
    for (int host = 0; host < hosts_; ++host)
      most = std::max(most, owned(host));
    return most;
  }
  /// The most cells that a rank needs for the inputs of its host.
  [[nodiscard]] int most_landings() const {
    int most = 0;
    for (int host = 0; host < hosts_; ++host)
      most = std::max(most, owned(host) * (topology_.ranks_of(host) - 1));
    return most;
  }

  /// Hops until the last chunk is everywhere.
  [[nodiscard]] int depth() const {
    const auto inner_hop = [&](int host) { return topology_.ranks_of(host) > 1 ? 1 : 0; };
    int longest = 0;
    for (int home = 0; home < hosts_; ++home) {
      int hops = inner_hop(around(home, 1));
      for (int step = 2; step <= hosts_; ++step)
        hops = std::max(hops + 1, inner_hop(around(home, step)));
      for (int step = 0; step < hosts_; ++step)
        longest = std::max(longest, hops + step + inner_hop(around(home, step)));
    }
    return longest;
  }

 private:
  /// Chunks of the first rank of a host, which has the most.
  [[nodiscard]] int owned(int host) const {
    const int ranks = topology_.ranks_of(host);
    return (shares_ + ranks - 1) / ranks * hosts_;
  }

  const Topology& topology_;
  int hosts_;
  int shares_ = 1;
};

// Writes the schedule of one rank.
class Writer {
 public:
  Writer(const Topology& topology, int me)
      : topology_(topology),
        cut_(topology),
        me_(me),
        host_(topology.host_of(me)),
        ranks_(topology.hosts[static_cast<std::size_t>(host_)]),
        builder_("hierarchical", Shape::reduce, topology.size(), me, cut_.chunks()),
        most_(cut_.most_owned()),
        input_(builder_.buffer("input", cut_.chunks())),
        result_(builder_.buffer("result", cut_.chunks())),
        partial_(builder_.buffer("partial", most_)),
        inside_(builder_.buffer("inside", cut_.most_landings(), true)),
        across_(builder_.buffer("across", most_, true)) {}

  Schedule write() {
    builder_.reserve_tags(2 * most_);
    builder_.pack(place(input_, 0));
    // Chunks whose sum starts at this host go first: the ring across waits for them.
    for (int step = 1; step <= cut_.hosts(); ++step) {
      for_chunks(home_before(step), [&](int chunk) { publish_input(chunk); });
    }
    for (int step = 1; step <= cut_.hosts(); ++step) {
      for_chunks(home_before(step), [&](int chunk) {
        if (is_mine(chunk)) add_own_host(chunk, step);
      });
    }
    std::vector<Operand> finished(static_cast<std::size_t>(cut_.chunks()));
    for (int step = 0; step < cut_.hosts(); ++step) {
      for_chunks(home_before(step), [&](int chunk) {
        finished[static_cast<std::size_t>(chunk)] =
            is_mine(chunk) ? pass_on_result(chunk, step) : take_result(chunk);
      });
    }
    for (int chunk = 0; chunk < cut_.chunks(); ++chunk)
      builder_.unpack(finished[static_cast<std::size_t>(chunk)], chunk);
    return builder_.finish(cut_.depth());
  }

 private:
  /// The home to which this host is the `steps`-th host around.
  [[nodiscard]] int home_before(int steps) const { return cut_.around(host_, -steps); }
  template <class Visit>
  void for_chunks(int home, const Visit& visit) const {
    for (int share = 0; share < cut_.shares(); ++share)
      visit(cut_.chunk(share, home));
  }

  [[nodiscard]] bool is_mine(int chunk) const { return cut_.owner(host_, chunk) == me_; }
  [[nodiscard]] int next() const { return cut_.around(host_, 1); }
  [[nodiscard]] int previous() const { return cut_.around(host_, -1); }
  /// Between two ranks a chunk goes at most once each way with its sum and once finished.
  [[nodiscard]] int sum_tag(int owner_host, int chunk) const {
    return cut_.index(owner_host, chunk);
  }
  [[nodiscard]] int result_tag(int owner_host, int chunk) const {
    return most_ + cut_.index(owner_host, chunk);
  }
  /// Where the input of the host's rank number `sender` lands at the owner of a chunk.
  [[nodiscard]] Place inside_at(int chunk, int sender) const {
    const int owner = cut_.owner_number(host_, chunk);
    const int others = topology_.ranks_of(host_) - 1;
    return place(inside_,
                 cut_.index(host_, chunk) * others + (sender < owner ? sender : sender - 1));
  }

  void publish_input(int chunk) {
    if (is_mine(chunk)) return;
    const auto number = std::find(ranks_.begin(), ranks_.end(), me_) - ranks_.begin();
    builder_.send(cut_.owner(host_, chunk), sum_tag(host_, chunk), chunk, place(input_, chunk),
                  inside_at(chunk, static_cast<int>(number)));
  }

  /// This host is the `step`-th after the chunk's home: adds its ranks, sends the sum on.
  void add_own_host(int chunk, int step) {
    const bool starts = step == 1 && cut_.hosts() > 1;
    const bool finishes = step == cut_.hosts();
    std::vector<Operand> operands;
    if (step > 1) {
      operands.push_back(
          received(builder_.recv(cut_.owner(previous(), chunk), sum_tag(previous(), chunk), chunk,
                                 place(across_, cut_.index(host_, chunk)))));
    }
    for (std::size_t number = 0; number < ranks_.size(); ++number) {
      if (ranks_[number] == me_) {
        operands.push_back(local(place(input_, chunk)));
        continue;
      }
      operands.push_back(received(builder_.recv(ranks_[number], sum_tag(host_, chunk), chunk,
                                                inside_at(chunk, static_cast<int>(number)))));
    }
    Place sum = finishes ? place(result_, chunk) : place(partial_, cut_.index(host_, chunk));
    if (starts && ranks_.size() == 1) {
      sum = place(input_, chunk);  // There is nothing to add.
    } else {
      builder_.merge(operands, chunk, sum, finishes);
    }
    if (finishes) return;
    builder_.send(cut_.owner(next(), chunk), sum_tag(host_, chunk), chunk, sum,
                  place(across_, cut_.index(next(), chunk)));
  }

  /// This host is the `step`-th after the chunk's home, which has finished it.
  Operand pass_on_result(int chunk, int step) {
    const Place home = place(result_, chunk);
    const bool goes_across = step + 1 < cut_.hosts();
    if (step > 0) {
      const TaskId recv =
          builder_.recv(cut_.owner(previous(), chunk), result_tag(previous(), chunk), chunk, home);
      if (!goes_across && ranks_.size() == 1) return received(recv);
      builder_.copy(received(recv), chunk, home);
    }
    if (goes_across) {
      builder_.send(cut_.owner(next(), chunk), result_tag(host_, chunk), chunk, home, home);
    }
    for (const int rank : ranks_) {
      if (rank != me_) builder_.send(rank, result_tag(host_, chunk), chunk, home, home);
    }
    return local(home);
  }

  Operand take_result(int chunk) {
    return received(builder_.recv(cut_.owner(host_, chunk), result_tag(host_, chunk), chunk,
                                  place(result_, chunk)));
  }

  const Topology& topology_;
  const Cut cut_;
  const int me_;
  const int host_;
  const std::vector<int>& ranks_;
  ScheduleBuilder builder_;
  const int most_;
  const std::uint16_t input_, result_, partial_, inside_, across_;
};

}  // namespace

Schedule make_hierarchical(const Topology& topology, int me) {
  return Writer(topology, me).write();
}

}  // namespace hora
