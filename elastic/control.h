// Control: a worker's link to its World makers, on a thread of its own (the io thread).
//
// `join` finds this process's place - a job of one, a child of horarun, or a process under
// torchrun, Slurm or Open MPI - meets the others at the rendezvous server and returns the World.
// Afterwards the io thread sends heartbeats, watches for evidence of death (the launcher's word,
// which rests on a pidfd; the end of a control socket) and hands events to the engine. It never
// runs Python, never computes, never takes a lock that others hold for long; a long reduction
// therefore never looks like death.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "elastic/world.h"
#include "elastic/world_change.h"
#include "runtime/base/config.h"
#include "runtime/base/fd.h"
#include "runtime/base/fork.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"

namespace hora {

/// What the io thread tells the engine. `peer` is the member concerned, if one is.
struct ControlEvent {
  enum class Kind {
    peer_lost,    ///< The member died: `text` says how ("killed by signal 9 (Killed)").
    peer_silent,  ///< "has sent no heartbeat for 2.0 s; state T (stopped)"; it may come back.
    peer_back,    ///< It did.
    job_ended,    ///< The launcher ends the job: `text` says why.
    freeze,       ///< World `epoch` ends: finish nothing more and say how far it is
                  ///< (Control::frozen). `text` says who is lost, and how.
    next_world,   ///< `next` is the World from now on.
  };
  Kind kind{};
  std::optional<Rank> peer;
  std::string text;
  Epoch epoch{};
  std::shared_ptr<const NextWorld> next{};
};

/// Where this process stands, from the environment (HORA_*, torchrun's, Slurm's,
/// Open MPI's variables).
struct Placement {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  int cross_rank = 0, cross_size = 1;
  /// "horarun", "torchrun", "slurm", "openmpi", "environment" (HORA_* set by hand) or
  /// "single process".
  std::string source;
  /// "ip:port", "[ip6]:port", "name:port" or "unix:NAME" (abstract); several with commas between.
  std::string rendezvous;
  bool serve = false;  ///< This process (rank 0 without a launcher) runs the rendezvous server.
  std::string secret;  ///< Proves membership of the job. Never logged, never on a command line.
  std::string job;     ///< Names the job.
};

/// Reads the placement. Half-set pairs (a rank without a size) and nonsense are errors that name
/// the variables.
Result<Placement> read_placement(const Lookup& lookup);

/// The descriptors on which this worker's peers reach it. Made before `join`, because addresses are
/// part of a Member; both bound to port 0 / an unguessable abstract name.
struct Listeners {
  TrackedFd tcp;          ///< Invalid where no peer can need it.
  TrackedFd unix_socket;  ///< The same.
  std::vector<Address> addresses;
  std::string unix_name;
};

/// Asked every 50 ms while somebody waits, on the thread that waits: true ends the wait with an
/// Error of kind interrupted. May be empty.
using Interrupted = std::function<bool()>;

/// The worker's side of the rendezvous and of the control link. Owns the io thread. In a forked
/// child nothing of it works, and destroying it there touches nothing of the parent's.
class Control {
 public:
  /// Called on the io thread; must only enqueue.
  using Sink = std::function<void(ControlEvent)>;

  /// Joins the job and blocks until the World is complete (deadline: config.start_timeout_ms; the
  /// error names the ranks that have not come). For a job of one nothing is opened and no thread is
  /// started. `self` brings worker, pid and listeners; host and places are filled in here.
  static Result<std::unique_ptr<Control>> join(const Config& config, const Placement& placement,
                                               Member self, Sink sink,
                                               const Interrupted& interrupted = {});

  virtual ~Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// The first World.
  [[nodiscard]] virtual const World& world() const = 0;
  /// Answers a freeze. Any thread.
  virtual void frozen(WorkerReport report) = 0;
  /// A member of World `epoch` cannot be reached, and nobody has said that it is dead. Any thread.
  virtual void suspect(Epoch epoch, Rank about, const std::string& text) = 0;
  /// Tells the launcher (and through it the others) why this worker is about to
  /// fail; its last words.
  virtual void report(const std::string& text) = 0;
  /// Says goodbye: from now on this worker's end is no death. Does not block; the destructor gives
  /// the words up to 200 ms to be sent.
  virtual void leave() = 0;
  /// Takes over a socket that ends when `peer`'s process does (Session::witnesses): its end without
  /// goodbye becomes peer_lost.
  virtual void watch(Rank peer, Fd witness) = 0;

 protected:
  Control() = default;
};

}  // namespace hora
