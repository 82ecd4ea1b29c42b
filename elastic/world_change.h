// WorldChange: the next World of a job that goes on without some of its members. Pure.
//
//   a member is lost      freeze: every member that is left is asked how far it has come
//   reports come          kept; each is final
//   the last one is here  install: World E+1 of those who reported, and how they finish what was in
//                         flight. Another loss from now on begins the next change
//   a report is overdue   that member is left out; it may live, and is told
//   too few are left      give_up: the job ends as one that is not elastic
//
// Who decides is behind `WorldMaker`, because there will be more than one way: now the rendezvous
// decides alone; the members may come to agree by themselves. What a worker sees is the same in
// both: Freeze, its own report, Install.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "elastic/resolution.h"
#include "elastic/world.h"
#include "runtime/base/clock.h"

namespace hora {

/// What the coordinator told all members that is no collective (an error, the end of the job), as a
/// worker keeps it: others may have missed it. Only engines read `bytes`.
struct KeptAnswer {
  std::uint64_t message = 0;  ///< Number of the coordinator's message in the World.
  std::vector<std::byte> bytes;

  friend bool operator==(const KeptAnswer&, const KeptAnswer&) = default;
};

/// How far a frozen worker has come. Final once it is said.
struct WorkerReport {
  Epoch epoch{};             ///< The World that it speaks of.
  std::uint32_t window = 0;  ///< W of its lanes.
  std::vector<LaneReport> lanes;
  std::uint64_t heard = 0;  ///< Messages of the coordinator that it has followed.
  std::vector<KeptAnswer> answers;
};

/// A World that follows another one.
struct NextWorld {
  World world;
  std::vector<std::int32_t> old_ranks;  ///< Of its members, in the World before.
  std::vector<LanePlan> lanes;
  std::vector<KeptAnswer> answers;  ///< Those that not all of its members have heard.
  std::string reason;               ///< Who is lost, and how.
};

/// The members that reported, in their old order, with places on their hosts counted anew. Error
/// protocol: their reports contradict each other.
Result<NextWorld> make_world(const World& old, const std::map<Rank, WorkerReport>& reports,
                             std::string reason);

/// What is to be done next.
struct ChangeAction {
  enum class Kind {
    freeze,     ///< Ask `rank` for its report; `text` says why.
    install,    ///< `next` is the World; tell its members.
    leave_out,  ///< `rank` is not in the next World: tell it, `text` says why.
    give_up,    ///< There is no next World; `text` says why.
  };
  Kind kind{};
  Rank rank{};
  std::string text;
  std::shared_ptr<const NextWorld> next;
};

/// Decides what follows one World. Owner: one thread.
class WorldMaker {
 public:
  using Actions = std::vector<ChangeAction>;

  WorldMaker() = default;
  WorldMaker(const WorldMaker&) = delete;
  WorldMaker& operator=(const WorldMaker&) = delete;
  virtual ~WorldMaker() = default;

  /// May the World lose one more member? If not, on_lost gives up at once.
  [[nodiscard]] virtual bool elastic() const = 0;
  /// A member is dead; `text` names it and says how.
  virtual Actions on_lost(Rank rank, const std::string& text, TimePoint now) = 0;
  /// A member has left in order: it is in no further World, and nobody waits for it.
  virtual Actions on_left(Rank rank, TimePoint now) = 0;
  /// Two members cannot reach each other, although both seem to live.
  virtual Actions on_suspect(Rank from, Rank about, const std::string& text, TimePoint now) = 0;
  virtual Actions on_report(Rank rank, WorkerReport report, TimePoint now) = 0;
  virtual Actions on_tick(TimePoint now) = 0;
  [[nodiscard]] virtual std::optional<TimePoint> next_deadline() const = 0;
};

struct WorldMakerOptions {
  int min_size = 1;         ///< The job goes on with as many members.
  Duration report_limit{};  ///< How long a report may take.
};

/// The rendezvous decides alone, for the members of `world`.
std::unique_ptr<WorldMaker> make_sole_world_maker(World world, const WorldMakerOptions& options);

}  // namespace hora
