#include "runtime/selection.h"

#include <algorithm>

#include "ops/collective.h"
#include "runtime/base/check.h"

namespace hora {

namespace {

constexpr std::uint64_t kKiB = 1024;

/// Up to here one exchange of everything beats two of a part, over shared memory.
constexpr std::uint64_t kExchangeBytes = 8 * kKiB;
/// Over sockets: latency counts up to here, bandwidth beyond.
constexpr std::uint64_t kSocketExchangeBytes = 2 * kKiB;
constexpr std::uint64_t kSocketDirectBytes = 256 * kKiB;
/// With a codec, over sockets: so many flows at once are worth a smaller error.
constexpr int kMostDirectRanks = 16;
/// With several ranks on a host its line carries direct's bytes once for each of them, so two
/// levels pay sooner: 64 KB on 2 hosts x 2 ranks keep a line busy twice as long by direct. Per
/// host, as the hops across are.
constexpr std::uint64_t kTwoLevelDirectBytesPerHost = 16 * kKiB;

const AlgorithmRow& row(std::string_view name, Collective collective) {
  const AlgorithmRow* found = find_algorithm(name, collective);
  HORA_CHECK(found != nullptr, "the registry has the rows that selection names");
  return *found;
}

/// A codec that cannot hold partial sums needs an algorithm that has none, and one that is gathered
/// an algorithm that sends each payload to all.
bool takes(const AlgorithmRow& row, const CodecTraits& traits) {
  if (row.make_encoded == nullptr) return false;
  if (traits.kind == CodecKind::gather) return row.gathers;
  return row.rounds_once || !traits.narrow;
}

/// Partial sums in the element type would lose bits (16-bit floats) or wrap (integer averages):
/// only an algorithm that merges all operands at once will do.
bool needs_one_rounding(DType dtype, ReduceOp op) {
  if (dtype == DType::float16 || dtype == DType::bfloat16) return true;
  return op == ReduceOp::average && !is_floating(dtype);
}

}  // namespace

Result<Selection> Selection::make(const Config& config, int self, const SelectionFacts& facts) {
  const AlgorithmRow* forced = nullptr;
  if (!config.algorithm.empty()) {
    forced = find_algorithm(config.algorithm, Collective::allreduce);
    if (forced == nullptr) {
      std::string names;
      for (const AlgorithmRow& known : algorithms()) {
        if (known.collective == Collective::allreduce) names += " " + std::string(known.name);
      }
      return fail(ErrorKind::invalid_argument,
                  "HORA_ALGORITHM='" + config.algorithm +
                      "' is no all-reduce algorithm; there are:" + names);
    }
  }
  return Selection(self, facts, config.segment_bytes, forced);
}

const AlgorithmRow& Selection::row_for(Kind kind, bool one_rounding, std::uint64_t bytes,
                                       const Topology& topology) const {
  const bool views_only = topology.is_one_host();
  switch (kind) {
    case Kind::allgather:
      return row(views_only || bytes <= kSocketDirectBytes ? "direct" : "ring",
                 Collective::allgather);
    case Kind::broadcast:
      return row(views_only ? "flat" : "tree", Collective::broadcast);
    case Kind::barrier:
      return row("exchange", Collective::barrier);
    case Kind::reducescatter:
      return row(views_only || one_rounding || bytes <= kSocketDirectBytes ? "direct" : "ring",
                 Collective::reducescatter);
    case Kind::alltoall:
      return row("direct", Collective::alltoall);
    case Kind::allreduce:
      break;
    case Kind::join:
    case Kind::add_set:
    case Kind::remove_set:
      HORA_CHECK(false, "only collectives are run");
  }
  if (topology.size() == 1) return row("exchange", Collective::allreduce);
  if (forced_ != nullptr && (forced_->rounds_once || !one_rounding)) return *forced_;
  if (views_only) {
    return row(bytes <= kExchangeBytes ? "exchange" : "direct", Collective::allreduce);
  }
  if (bytes <= kSocketExchangeBytes) return row("exchange", Collective::allreduce);
  const bool two_levels = topology.most_ranks() > 1;
  const auto hosts = static_cast<std::uint64_t>(topology.host_count());
  const std::uint64_t direct_bytes =
      two_levels ? std::min(kSocketDirectBytes, kTwoLevelDirectBytesPerHost * hosts)
                 : kSocketDirectBytes;
  if (bytes <= direct_bytes || one_rounding) return row("direct", Collective::allreduce);
  return row(two_levels ? "hierarchical" : "ring", Collective::allreduce);
}

Selection::Group& Selection::group_of(const ProcessSet& set) {
  const auto [found, is_new] = groups_.try_emplace(set.ranks);
  Group& group = found->second;
  if (is_new) {
    group.topology = facts_.topology.among(set.ranks);
    group.me = set.index_of(Rank(self_));
  }
  return group;
}

const Schedule& Selection::template_of(Group& group, const AlgorithmRow& row,
                                       int root_place) const {
  auto& schedule = group.templates[{&row, root_place}];
  if (!schedule) {
    // All templates of a group lay out their slots alike, so the first speaks for an outsider.
    const int place = std::max(0, group.me);
    schedule = std::make_unique<Schedule>(row.make(group.topology, place, root_place));
    HORA_CHECK(schedule->tags <= facts_.tags, "the layout has a tag for every message");
  }
  return *schedule;
}

Result<const Schedule*> Selection::choose_again(Kind kind, DType dtype, ReduceOp op,
                                                std::uint64_t bytes, Rank root,
                                                const ProcessSet& set,
                                                std::uint64_t segment_bytes) {
  Group& group = group_of(set);
  const bool one_rounding = needs_one_rounding(dtype, op);
  const AlgorithmRow& first = row_for(kind, one_rounding, bytes, group.topology);
  const int root_place = kind == Kind::broadcast ? set.index_of(root) : 0;
  std::vector<const AlgorithmRow*> rows = {&first};
  for (const AlgorithmRow& other : algorithms()) {
    if (other.collective == first.collective && (other.rounds_once || !one_rounding)) {
      rows.push_back(&other);
    }
  }
  const bool views_only = group.topology.is_one_host();
  for (const AlgorithmRow* other : rows) {
    const Schedule& schedule = template_of(group, *other, root_place);
    if (slot_bytes_of(schedule, views_only, segment_bytes) <= facts_.slot_bytes) return &schedule;
  }
  return no_room(segment_bytes);
}

tl::unexpected<Error> Selection::no_room(std::uint64_t segment_bytes) const {
  return fail(ErrorKind::resource,
              "no algorithm fits segments of " + std::to_string(segment_bytes) +
                  " bytes, which lost members have begun, into slots of " +
                  std::to_string(facts_.slot_bytes) + " bytes; raise HORA_ARENA_BYTES");
}

Selection::Choice Selection::choose(Kind kind, DType dtype, ReduceOp op, std::uint64_t bytes,
                                    Rank root, const ProcessSet& set) {
  Group& group = group_of(set);
  const Topology& topology = group.topology;
  const bool views_only = topology.is_one_host();
  const AlgorithmRow& chosen = row_for(kind, needs_one_rounding(dtype, op), bytes, topology);
  const int root_place = kind == Kind::broadcast ? set.index_of(root) : 0;
  const Schedule& schedule = template_of(group, chosen, root_place);
  return {group.me < 0 ? &bystander_ : &schedule,
          fit_segment(schedule, views_only, facts_.slot_bytes, wanted_bytes(topology))};
}

std::uint64_t Selection::wanted_bytes(const Topology& topology) const {
  if (segment_bytes_ != 0) return segment_bytes_;
  // Shared memory: a segment stays in cache through pack, merge and unpack.
  // Sockets: large writes.
  const auto ranks = static_cast<std::uint64_t>(topology.size());
  return topology.is_one_host() ? std::max(128 * kKiB, 32 * kKiB * ranks) : 256 * kKiB * ranks;
}

const AlgorithmRow& Selection::encoded_row_for(const CodecTraits& traits, std::uint64_t bytes,
                                               const Topology& topology) const {
  if (traits.kind == CodecKind::gather) return row("exchange", Collective::allreduce);
  if (forced_ != nullptr && takes(*forced_, traits)) return *forced_;
  const bool views_only = topology.is_one_host();
  if (bytes <= (views_only ? kExchangeBytes : kSocketExchangeBytes)) {
    return row("exchange", Collective::allreduce);
  }
  // The ring encodes partial sums anew at every hop, and its error grows with the ranks.
  const bool too_many = !views_only && topology.size() > kMostDirectRanks;
  return row(too_many && !traits.narrow ? "ring" : "direct", Collective::allreduce);
}

Selection::Choice Selection::choose_encoded(const Codec& codec, std::uint64_t bytes,
                                            const ProcessSet& set) {
  Group& group = group_of(set);
  const Topology& topology = group.topology;
  const AlgorithmRow& chosen = encoded_row_for(codec.traits(), bytes, topology);
  const Schedule& schedule = encoded_template_of(group, chosen);
  return {group.me < 0 ? &bystander_ : &schedule,
          fit_encoded_segment(schedule, codec, topology.is_one_host(), facts_.slot_bytes,
                              wanted_bytes(topology))};
}

const Schedule& Selection::encoded_template_of(Group& group, const AlgorithmRow& row) const {
  auto& schedule = group.encoded[&row];
  if (!schedule) {
    schedule =
        std::make_unique<Schedule>(row.make_encoded(group.topology.size(), std::max(0, group.me)));
    HORA_CHECK(schedule->tags <= facts_.tags, "the layout has a tag for every message");
  }
  return *schedule;
}

Result<const Schedule*> Selection::choose_encoded_again(const Codec& codec, std::uint64_t bytes,
                                                        const ProcessSet& set,
                                                        std::uint64_t segment_bytes) {
  Group& group = group_of(set);
  const bool views_only = group.topology.is_one_host();
  std::vector<const AlgorithmRow*> rows = {&encoded_row_for(codec.traits(), bytes, group.topology)};
  for (const AlgorithmRow& other : algorithms()) {
    if (takes(other, codec.traits())) rows.push_back(&other);
  }
  for (const AlgorithmRow* other : rows) {
    const Schedule& schedule = encoded_template_of(group, *other);
    if (encoded_slot_bytes(schedule, codec, views_only, segment_bytes) <= facts_.slot_bytes) {
      return &schedule;
    }
  }
  return no_room(segment_bytes);
}

}  // namespace hora
