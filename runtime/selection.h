// Selection: which algorithm runs a collective, and in how large segments. Pure.
//
// A function of facts that all ranks share (kind, dtype, bytes, the process set, who shares memory
// with whom), because all must choose the same: the ranks of the set, which run the template, and
// the others, which pass as many segments as it takes. Thresholds come from tests/bench/allreduce
// on 2, 4 and 8 ranks of a 2-core machine; runtime/README.md has the figures.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "ops/algorithms/algorithms.h"
#include "ops/schedule.h"
#include "ops/topology.h"
#include "runtime/base/config.h"
#include "runtime/base/result.h"
#include "runtime/process_set.h"
#include "runtime/request.h"

namespace hora {

struct SelectionFacts {
  Topology topology;
  std::uint64_t slot_bytes = 0;
  std::uint16_t tags = 0;  ///< Of the layout: no template may use more.
};

/// Chooses and keeps templates. Owner: the progress token.
class Selection {
 public:
  /// Error invalid_argument if config.algorithm names no all-reduce algorithm.
  static Result<Selection> make(const Config& config, int self, const SelectionFacts& facts);

  struct Choice {
    const Schedule* schedule = nullptr;  ///< Lives as long as the Selection.
    std::uint64_t segment_bytes = 0;
  };
  /// `bytes`: of the whole collective (allgather: the longest contribution). `root`: broadcast; a
  /// rank of `set`. A rank that is not in the set gets a template without tasks.
  Choice choose(Kind kind, DType dtype, ReduceOp op, std::uint64_t bytes, Rank root,
                const ProcessSet& set);
  /// The same for an all-reduce with a codec; `bytes` of float32. segment_bytes is 0 if the slots
  /// are too small for a block of it.
  Choice choose_encoded(const Codec& codec, std::uint64_t bytes, const ProcessSet& set);
  /// For a collective that another World has begun: the same segments, by a template of this one
  /// that fits into its slots. Error resource: none does.
  Result<const Schedule*> choose_again(Kind kind, DType dtype, ReduceOp op, std::uint64_t bytes,
                                       Rank root, const ProcessSet& set,
                                       std::uint64_t segment_bytes);
  Result<const Schedule*> choose_encoded_again(const Codec& codec, std::uint64_t bytes,
                                               const ProcessSet& set, std::uint64_t segment_bytes);
  /// A template without tasks, which passes its positions.
  [[nodiscard]] const Schedule& bystander() const { return bystander_; }

 private:
  /// The ranks of a process set, by their places in it.
  struct Group {
    Topology topology;
    int me = 0;  // -1: not in the set
    std::map<std::pair<const AlgorithmRow*, int>, std::unique_ptr<Schedule>> templates;
    std::map<const AlgorithmRow*, std::unique_ptr<Schedule>> encoded;  // By all-reduce.
  };

  const Schedule& template_of(Group& group, const AlgorithmRow& row, int root_place) const;
  const Schedule& encoded_template_of(Group& group, const AlgorithmRow& row) const;
  [[nodiscard]] tl::unexpected<Error> no_room(std::uint64_t segment_bytes) const;
  Selection(int self, const SelectionFacts& facts, std::uint64_t segment_bytes,
            const AlgorithmRow* forced)
      : self_(self),
        facts_(facts),
        segment_bytes_(segment_bytes),
        forced_(forced),
        bystander_(make_bystander()) {}

  const AlgorithmRow& row_for(Kind kind, bool one_rounding, std::uint64_t bytes,
                              const Topology& topology) const;
  const AlgorithmRow& encoded_row_for(const CodecTraits& traits, std::uint64_t bytes,
                                      const Topology& topology) const;
  [[nodiscard]] std::uint64_t wanted_bytes(const Topology& topology) const;
  Group& group_of(const ProcessSet& set);

  int self_;
  SelectionFacts facts_;
  std::uint64_t segment_bytes_;  // 0: chosen per collective.
  const AlgorithmRow* forced_;   // All-reduce only; may be null.
  Schedule bystander_;
  std::map<std::vector<std::int32_t>, Group> groups_;  // by ranks
};

}  // namespace hora
