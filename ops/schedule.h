// Schedule: a collective algorithm as data.
//
// A collective cuts its elements into *segments*. A Schedule is the template of one segment for one
// rank: a list of small tasks with dependencies. Generators (ops/algorithms) are pure functions of
// (size, me, root); the executor instantiates a template with a byte count; the symbolic check
// (ops/check.h) proves a template right for all ranks together without moving a byte.
//
// The picture a template is written in:
//
//   segment   | chunk 0 | chunk 1 | chunk 2 |      `grid` chunks of equal stride (the last may be
//                                                  short or empty), stride a multiple of 64 B
//   slot      [ buffer 0: cells ][ buffer 1 ]...   a cell holds one chunk; every rank lays out its
//                                                  slot alike, so a sender knows where its payload
//                                                  lands in the receiver's slot
//
// Tasks, with `at` = place(buffer, cell) in this rank's own slot:
//   pack    caller's tensors -> at                 (prescale, gaps zeroed)
//   send    at -> peer, to land at `remote` in its slot. Complete when started; the bytes stay put
//           until every member is done with the segment
//   recv    peer's send of the same tag; the payload is then an operand. Where the transport shares
//           memory it is a *view* of the sender's slot and nothing moves; elsewhere it lies in
//           our slot at `at`
//   copy    operand -> at                          (no-op if it lies there already)
//   merge   operands -> at, reduced in the order given; `finish` also divides and postscales
//   unpack  operand -> caller's tensors. Runs only when every other task of the segment is
//           complete, because a caller's tensor is overwritten only when the segment's result is
//           wholly here. (The builder adds these dependencies: on the first unpack directly, the
//           other unpacks wait for the first.)
//
// With a codec (compress/codec.h) some cells are *encoded*: what a merge puts there is encoded,
// what is read from there is decoded. Then nothing is packed; a merge reads the caller's tensors
// themselves, and the merge of that one operand is "encode". Each rank encodes each chunk once,
// where its own contribution enters, so that error feedback needs one residual per element.
//
// Rules a template obeys (all proved by the check): a finished chunk holds each rank's contribution
// once, lower ranks first (ring: from rank chunk + 1 around), by the same merges for every rank; a
// cell is written once, so packed inputs stay; completion on any rank depends on every rank's start
// (broadcast: on the root's); between two ranks (tag) names one message; every rank unpacks the
// chunks that its shape gives it, once, and no others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace hora {

enum class Primitive : std::uint8_t { pack, send, recv, copy, merge, unpack };

/// "pack", "send", ...
std::string_view to_string(Primitive primitive);

/// A task touches the whole segment instead of one chunk.
inline constexpr int kWhole = -1;

/// Index of a task in its Schedule.
using TaskId = std::uint16_t;
inline constexpr TaskId kNoTask = 0xffff;

/// A cell of a buffer of the slot.
struct Place {
  std::uint16_t buffer = 0;
  std::uint16_t cell = 0;

  friend constexpr bool operator==(const Place&, const Place&) = default;
};

inline Place place(std::uint16_t buffer, int cell) {
  return Place{buffer, static_cast<std::uint16_t>(cell)};
}

/// What merge, copy and unpack read: a place in our own slot, or what a recv brought; or (a merge
/// into encoded cells) the caller's tensors.
struct Operand {
  TaskId received = kNoTask;  ///< A recv task, or kNoTask: then `place` counts.
  Place place{};
  bool caller = false;  ///< Neither: the caller's tensors, prescaled.
};

/// A buffer of the slot. `cells` chunk strides long, maybe none.
struct BufferSpec {
  std::string name;
  std::uint16_t cells = 0;
  /// Only written by peers without shared memory; not laid out when all share.
  bool landing = false;
  /// Cells hold payloads of the run's codec, each with a length of its own.
  bool encoded = false;
};

struct Task {
  Primitive kind{};
  bool finish = false;          ///< merge: completes the result (divide, postscale, round once).
  std::int16_t peer = -1;       ///< send, recv: index in the group.
  std::int32_t chunk = kWhole;  ///< Which chunk of the segment, or kWhole.
  std::uint16_t tag = 0;        ///< send, recv: which message of this pair.
  Place at{};
  Place remote{};  ///< send: where it lands in the peer's slot.
  std::uint32_t first_operand = 0, operand_count = 0;
  std::uint32_t first_dependency = 0, dependency_count = 0;  ///< Tasks that must come before.
};

/// What the template computes. The executor takes byte ranges and lengths of chunks from it.
enum class Shape : std::uint8_t {
  reduce,     ///< Input and output are the segment; chunk c is the c-th part of it.
  gather,     ///< Chunk c is the contribution of rank c; the output is their concatenation.
  copy,       ///< Broadcast: the root's segment everywhere. Grid 1.
  scatter,    ///< Reduce-scatter: chunk c of the sum is the result of rank c. Grid size.
  transpose,  ///< All-to-all: chunk s * size + r is what rank s has for rank r. Grid size^2.
};

/// Chunks have lengths of their own, unequal or 0, so every task names one and none takes the
/// whole segment.
constexpr bool is_ragged(Shape shape) {
  return shape == Shape::gather || shape == Shape::scatter || shape == Shape::transpose;
}
/// A rank's result is nobody else's: when the rank is gone nobody has it.
constexpr bool is_private(Shape shape) {
  return shape == Shape::scatter || shape == Shape::transpose;
}

/// The template of one segment for rank `me` of `size`. The order of tasks respects dependencies.
struct Schedule {
  std::string algorithm;
  Shape shape = Shape::reduce;
  int size = 1;
  int me = 0;
  int root = 0;
  int grid = 1;   ///< Chunks of the segment.
  int depth = 0;  ///< Hops until a contribution is everywhere.
  int tags = 0;   ///< Tags are < tags.
  std::vector<BufferSpec> buffers;
  std::vector<Task> tasks;
  std::vector<Operand> operands;
  std::vector<TaskId> dependencies;

  /// Cells of all buffers together; `views_only`: without landing buffers.
  [[nodiscard]] std::size_t cells(bool views_only) const;
  /// The rank whose result a chunk is; -1: all ranks'.
  [[nodiscard]] int owner_of(int chunk) const;
  /// Does the operand, of this schedule, hold payloads of a codec?
  [[nodiscard]] bool is_encoded(const Operand& operand) const {
    if (operand.caller) return false;
    const bool received = operand.received != kNoTask;
    return buffers[received ? tasks[operand.received].at.buffer : operand.place.buffer].encoded;
  }
};

/// The template of a rank that takes no part: no tasks, so its segments are passed at once. Ranks
/// outside of a group keep count of its collectives in this way.
Schedule make_bystander();

/// What one rank sends for one segment.
struct Traffic {
  std::size_t messages = 0;
  double segments = 0;  ///< Payload in lengths of the segment (gather: in `size` contributions).
};
Traffic traffic_of(const Schedule& schedule);

/// Writes a Schedule in the words of the algorithm. Dependencies on operands and on the writer of a
/// sent place are found by the builder; only other orderings need `after`.
class ScheduleBuilder {
 public:
  ScheduleBuilder(std::string_view algorithm, Shape shape, int size, int me, int grid);

  /// Adds a buffer of `cells` cells. Landing buffers must be added last.
  std::uint16_t buffer(std::string_view name, int cells, bool landing = false);
  /// The same for payloads of a codec.
  std::uint16_t encoded_buffer(std::string_view name, int cells, bool landing = false);

  TaskId pack(Place at, int chunk = kWhole);
  TaskId send(int peer, int tag, int chunk, Place from, Place remote);
  TaskId recv(int peer, int tag, int chunk, Place landing);
  TaskId copy(Operand from, int chunk, Place at);
  TaskId merge(const std::vector<Operand>& operands, int chunk, Place at, bool finish);
  TaskId unpack(Operand from, int chunk);
  void after(TaskId task, TaskId dependency);
  /// Makes `tags` at least this. All ranks must agree on it, also those that use only some tags.
  void reserve_tags(int tags);

  /// Ends the schedule: `depth` in hops, `root` for broadcasts.
  Schedule finish(int depth, int root = 0);

 private:
  TaskId add(Task task, const std::vector<Operand>& operands);
  /// Appends the tasks that wrote what `from`/`chunk` covers.
  void depend_on_writers(std::vector<TaskId>& out, Place from, int chunk) const;
  void make_unpacks_last();

  Schedule schedule_;
  std::vector<std::vector<TaskId>> writers_;       // per buffer and cell
  std::vector<std::vector<TaskId>> dependencies_;  // per task, until finish()
};

/// The operand that a recv task brought.
inline Operand received(TaskId recv) {
  return Operand{recv, {}};
}
/// The operand at a place of our own slot.
inline Operand local(Place place) {
  return Operand{kNoTask, place};
}
/// The caller's tensors as an operand.
inline Operand from_caller() {
  return Operand{kNoTask, {}, true};
}

}  // namespace hora
