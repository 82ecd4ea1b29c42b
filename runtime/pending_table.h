// PendingTable: what some ranks have submitted and the root has not answered yet.
//
// Per key (process set and name): the request that came first, who has submitted it, and what the
// others said if they said something else. A tensor is *complete* when every rank of its set has
// submitted it or has joined. Tensors that are not complete form a list, oldest first, for the
// stall report.
//
// Every submission of a rank has an ordinal, so that "was this submitted before that rank's flush?"
// is a comparison. Entries are reused: but for carried inputs, the table allocates nothing in a
// training loop.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/result.h"
#include "runtime/carried.h"
#include "runtime/response_cache.h"
#include "runtime/tensor_key.h"

namespace hora {

/// Index of an entry while its tensor is pending.
using PendingId = std::uint32_t;
inline constexpr PendingId kNoPending = 0xffffffff;
/// Names pending at most; far beyond what the submission queues of the ranks allow.
inline constexpr std::size_t kMaxPending = std::size_t{1} << 20;

/// One rank's submission, as it arrives at the root.
struct Arrival {
  SharedRequest request;                     ///< Canonical.
  std::span<const std::int64_t> first_dims;  ///< The rank's own, `own_dims` of them.
  Slot slot = kNoSlot;                       ///< Where the rank's cache had it.
  std::span<const std::byte> input{};        ///< If it came along.
};

struct Pending {
  SharedRequest request;                                       ///< Of the first rank.
  SharedSet set;                                               ///< Whose ranks must submit it.
  Slot slot = kNoSlot;                                         ///< A guess where the cache has it.
  std::uint32_t missing = 0;                                   ///< Of the set: ranks to come.
  std::vector<std::uint64_t> ordinals;                         ///< By rank; 0: not yet.
  std::vector<std::int64_t> first_dims;                        ///< By rank, where they agree.
  std::vector<std::pair<std::int32_t, SharedRequest>> others;  ///< Ranks that said something else,
                                                               ///< `restored`.
  CarriedInputs inputs;             ///< Of the ranks that sent them along and agree.
  std::optional<Error> error;       ///< Why it fails, once that is known.
  TimePoint since;                  ///< First submission.
  TimePoint ready_at;               ///< Last one.
  std::uint64_t ready_ordinal = 0;  ///< Counts completions.
  std::uint64_t bytes = 0;
  PendingId older = kNoPending, newer = kNoPending;  ///< In the list of the incomplete.
};

/// Owner: the Coordinator.
class PendingTable {
 public:
  explicit PendingTable(int size)
      : size_(size),
        ordinals_(static_cast<std::size_t>(size)),
        joined_(static_cast<std::size_t>(size)) {}

  /// Notes a submission of a rank of `set`. The entry; complete if none is missing.
  /// Error protocol: this rank has submitted it already, or has joined.
  Result<PendingId> add(Rank from, const Arrival& arrival, const SharedSet& set, TimePoint now);
  /// The rank has joined: from now on nobody waits for it. What is complete thereby, oldest first.
  /// Error protocol: it has joined already.
  Result<std::vector<PendingId>> join(Rank rank);
  /// All ranks have joined; they begin anew.
  void end_joins();
  [[nodiscard]] bool has_joined(Rank rank) const { return joined_[index_of(rank)]; }
  /// Ranks that have joined.
  [[nodiscard]] int joins() const { return joins_; }
  /// Ordinal of the newest submission of a rank.
  [[nodiscard]] std::uint64_t newest(Rank rank) const { return ordinals_[index_of(rank)]; }
  /// The tensor is answered, complete or not: its name may come again.
  void remove(PendingId id);

  [[nodiscard]] Pending& at(PendingId id) { return entries_[id]; }
  [[nodiscard]] const Pending& at(PendingId id) const { return entries_[id]; }
  /// The incomplete tensor that waits longest, or kNoPending. From there on: `newer`.
  [[nodiscard]] PendingId oldest() const { return oldest_; }
  /// Ranks that have submitted it, ascending.
  [[nodiscard]] std::vector<std::int32_t> ranks_of(PendingId id) const;
  /// Ranks of its set that it waits for, ascending.
  [[nodiscard]] std::vector<std::int32_t> missing_of(PendingId id) const;
  /// Ranks of its set that have joined without submitting it, ascending.
  [[nodiscard]] std::vector<std::int32_t> absent_of(PendingId id) const;
  /// What each rank asked for, `restored`; ascending by rank.
  [[nodiscard]] std::vector<Submitted> requests_of(PendingId id) const;

 private:
  void keep_input(Pending& entry, Rank from, std::span<const std::byte> input);
  PendingId open(const Arrival& arrival, const SharedSet& set, TimePoint now);
  void unlink(PendingId id);
  /// Ranks of its set that have not submitted it and have joined, or have not.
  [[nodiscard]] std::vector<std::int32_t> without(PendingId id, bool joined) const;

  int size_;
  std::vector<std::uint64_t> ordinals_;
  std::vector<bool> joined_;
  int joins_ = 0;
  std::vector<Pending> entries_;
  std::vector<PendingId> free_;
  std::unordered_map<TensorKey, PendingId, TensorKeyHash> by_key_;  // views of the requests' names
  PendingId oldest_ = kNoPending, newest_ = kNoPending;
  std::uint64_t kept_bytes_ = 0;  // Of carried inputs.
};

}  // namespace hora
