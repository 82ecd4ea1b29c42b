// What horarun and the agents on other hosts say to each other, over the pipe that ssh is.
//
//   horarun                                        agent
//      | <-- greeting, Hello ------------------------ |   after what a login script prints
//      | --- Prepare (environment, secret, slots) --> |   finds program and rendezvous
//      | <-- Ready or Refused ----------------------- |
//      | --- StartWorkers --------------------------> |   once every host is ready
//      | <-- Started, OutputBytes, Exited, Census --- |
//      | --- SignalWorkers, StdinBytes, Consumed ---> |
//      | --- Ping ----------- Pong ------------------ |   silence is the end of the other
//      | --- Finish --------------------------------> |   nothing lives there any more
//
// A frame is a length, a kind and the fields of one struct, numbers in little-endian order (Hora
// runs on no other). The pipe is ssh's, which proved both ends; still a frame is checked as if a
// stranger had sent it, for a damaged one must not be taken for an order. Pure: bytes in, structs
// out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/environment.h"
#include "launcher/exit_status.h"
#include "launcher/output.h"
#include "launcher/plan.h"
#include "runtime/base/result.h"

namespace hora {

/// Goes up with every change of a struct below.
inline constexpr std::uint32_t kAgentProtocol = 1;
/// The first bytes of an agent; its frames follow.
inline constexpr std::string_view kAgentGreeting = "\n<hora host agent>\n";
/// What an agent writes of its workers' output before it waits for Consumed.
inline constexpr std::uint64_t kOutputWindowBytes = 1 << 20;
/// A frame is no longer; what is larger travels in pieces.
inline constexpr std::size_t kMostFrameBytes = std::size_t{64} << 20;

// From horarun to an agent.

/// All that an agent has to know about the job.
struct Prepare {
  std::string job;
  std::string secret;
  std::vector<std::string> endpoints;   ///< Where the rendezvous may be reached, best first.
  std::vector<std::string> interfaces;  ///< Only these may be used; empty: all.
  std::vector<std::string> arguments;   ///< The workers' command, with argv[0].
  Environment environment;              ///< To be merged with the host's own.
  std::string directory;                ///< Where the workers shall run.
  std::vector<Slot> slots;              ///< Those of this host.
  std::uint32_t patience_ms = 0;        ///< For the rendezvous to answer.
  std::uint32_t silence_ms = 0;         ///< Horarun is gone when it has said nothing for so long.
};
struct StartWorkers {};
struct SignalWorkers {
  enum class Target : std::uint8_t {
    groups,      ///< The process groups of the living workers.
    each,        ///< The living workers themselves.
    everything,  ///< The groups, and all that dead workers left.
  };
  Target target{};
  std::int32_t signo = 0;  ///< SIGKILL to everything is repeated until nothing is left.
};
/// For rank 0's standard input; empty: its end. One at a time: StdinTaken asks for the next.
struct StdinBytes {
  std::string bytes;
};
/// So many bytes of OutputBytes have been passed on.
struct Consumed {
  std::uint64_t bytes = 0;
};
struct Ping {};
struct Finish {};

// From an agent to horarun.

struct Hello {
  std::uint32_t protocol = kAgentProtocol;
  std::string version;
  std::string program;     ///< The agent's own file.
  std::string host_name;   ///< What the host calls itself.
  std::string ssh_client;  ///< The address from which ssh came, as seen there; empty: unknown.
};
struct Ready {
  std::string endpoint;  ///< The first of Prepare's that answered and proved the secret.
  std::string address;   ///< This host's end of that connection.
  std::vector<std::string> notes;
};
/// Cannot run the job, and why; `exit_code` is what horarun shall end with.
struct Refused {
  std::int32_t exit_code = 1;
  std::string text;
};
struct Started {
  Rank rank{};
  std::int64_t pid = 0;
};
struct OutputBytes {
  Rank rank{};
  Stream stream{};
  std::string bytes;
};
struct OutputEnd {
  Rank rank{};
  Stream stream{};
};
struct Exited {
  Rank rank{};
  ExitStatus status;
};
/// What is alive there; `others` are processes that workers left.
struct HostCensus {
  std::int32_t workers = 0;
  bool others = false;

  friend bool operator==(const HostCensus&, const HostCensus&) = default;
};
struct StdinTaken {};
struct Pong {};
/// A sentence for the user.
struct Note {
  std::string text;
};

using ToAgent =
    std::variant<Prepare, StartWorkers, SignalWorkers, StdinBytes, Consumed, Ping, Finish>;
using FromAgent = std::variant<Hello, Ready, Refused, Started, OutputBytes, OutputEnd, Exited,
                               HostCensus, StdinTaken, Pong, Note>;

std::string encode(const ToAgent& message);
std::string encode(const FromAgent& message);

/// Cuts a stream into messages. After an error nothing more is to be had.
template <class Message>
class FrameReader {
 public:
  void feed(std::string_view bytes) { buffer_ += bytes; }
  /// The next whole message, if there is one. Error protocol: these are no frames of ours.
  Result<std::optional<Message>> next();

 private:
  std::string buffer_;
  std::size_t read_ = 0;
};

}  // namespace hora
