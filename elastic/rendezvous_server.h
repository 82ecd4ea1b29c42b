// RendezvousServer: the edge of the rendezvous: sockets, a thread and a clock around `Rendezvous`.
//
// It runs inside the launcher (one per job), and inside rank 0 when there is no launcher. It
// listens on one place; every connection must prove the job's secret before a word of it is
// believed, and a stranger gets no answer. What strangers can cost is bounded: 128 connections
// without proof at a time (the oldest goes first), 5 s each, a few hundred bytes each.
//
// Callbacks run on the server's thread; they must be quick and must not destroy the server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "elastic/world.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/result.h"

namespace hora {

struct RendezvousServerOptions {
  int size = 1;
  std::string job;
  std::string secret;
  std::string unix_name;         ///< Listen on this abstract unix socket, if not empty;
  std::string ip = "127.0.0.1";  ///< else on this numeric address ("::": all, IPv4 and IPv6)
  std::uint16_t port = 0;        ///< and port.
  Duration heartbeat_limit = 2s;
  /// See RendezvousRules.
  int min_size = 0;
  Duration report_limit = 10s;
  /// How long the end of a control connection waits for announce_exit to explain it; 0
  /// where nobody will.
  Duration evidence_grace = 0ms;
  /// More about a silent member ("state T (stopped)", see process_state), or an empty text.
  std::function<std::string(const Member&)> inspect;

  // Each may be empty. Texts are whole sentences that name the rank.
  std::function<void(Rank, const std::string& text)> on_lost;
  std::function<void(Rank, const std::string& text)> on_silent;
  /// By the rank with which it was started: the others go on without it, although it may live.
  std::function<void(Rank, const std::string& text)> on_left_out;
  std::function<void(Rank, const std::string& text)> on_back;
  std::function<void(Rank, const std::string& text)> on_report;  ///< The rank's own last words.
  std::function<void()> on_formed;                               ///< A World was made.
  /// The job goes on without somebody: how many go on, who is lost and how.
  std::function<void(const std::string& text)> on_changed;
  std::function<void()> on_all_left;  ///< Its last member has left or is lost.
  Log log;
};

class RendezvousServer {
 public:
  struct Stats {
    std::uint64_t strangers = 0;    ///< Connections dropped because they proved nothing.
    std::uint64_t connections = 0;  ///< Open now.
    std::uint64_t worlds = 0;       ///< Made so far.
  };

  /// Listens and starts the thread. Error system when the place is taken.
  static Result<std::unique_ptr<RendezvousServer>> start(RendezvousServerOptions options);
  /// Says goodbye to the members, waits at most 200 ms for that to be sent, and ends the thread.
  virtual ~RendezvousServer() = default;
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  /// Where it listens, in HORA_RENDEZVOUS's spelling.
  [[nodiscard]] virtual std::string endpoint() const = 0;

  // Any thread.

  /// The process of `rank` has ended, and this is how: "killed by signal 9 (Killed)". Everybody
  /// learns of it; if the World is still forming, those who wait get an error.
  virtual void announce_exit(Rank rank, const std::string& text) = 0;
  /// Ends the job for all members, now and later; `text` says why.
  virtual void end_job(const std::string& text) = 0;
  [[nodiscard]] virtual Stats stats() const = 0;

 protected:
  RendezvousServer() = default;
};

/// What the kernel says about a process of this host: "state T (stopped)"; empty if
/// it does not exist.
std::string process_state(std::int64_t pid);

}  // namespace hora
