// The server is one thread that runs one Asio io_context; all state belongs to that thread, and the
// public functions post to it. A connection moves through
//
//   stranger --proof--> known --first message--> talking --> closing: sends what is queued
//
// and may end anywhere. The Rendezvous decides; `perform` does what it says.
#include "elastic/rendezvous_server.h"

#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <sys/socket.h>

#include "elastic/io_thread.h"
#include "elastic/job.h"
#include "elastic/net.h"
#include "elastic/rendezvous.h"
#include "runtime/base/check.h"
#include "runtime/base/fork.h"
#include "runtime/base/handshake.h"

namespace hora {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;
using Bytes = std::shared_ptr<const std::vector<std::byte>>;

constexpr std::size_t kMostStrangers = 128;
constexpr auto kPatience =
    5s;  // For a handshake and the first message; for a slow reader at the end.
constexpr auto kSweep = 500ms;
constexpr auto kStopPatience = 200ms;
constexpr auto kAcceptPause = 50ms;  // When the process has no descriptor left.
constexpr std::size_t kMostQueuedBytes = std::size_t{64} << 20;

struct Connection {
  Connection(asio::io_context& io, ConnectionId number, Handshake proof)
      : id(number), socket(io), handshake(std::move(proof)), reader(kMaxMessageToServer) {}

  const ConnectionId id;
  Socket socket;
  ForkGuard guard;  // After the socket: goes first.
  Handshake handshake;
  std::optional<Identity> peer;  ///< Once proved.
  MessageReader reader;
  std::array<std::byte, 4096> input{};
  std::deque<Bytes> output;  ///< The first one is being sent.
  std::size_t output_bytes = 0;
  std::optional<TimePoint> drop_at;
  bool closing = false;
};
using ConnectionPtr = std::shared_ptr<Connection>;

std::array<std::byte, 16> random_bits() {
  return make_worker_id().bytes;
}

class Server final : public RendezvousServer {
 public:
  Server(RendezvousServerOptions options, Fd listener, std::string endpoint, int family)
      : options_(std::move(options)),
        endpoint_(std::move(endpoint)),
        family_(family),
        rendezvous_({options_.size, random_bits(), options_.heartbeat_limit,
                     options_.evidence_grace, options_.inspect, options_.min_size,
                     options_.report_limit}),
        listener_(io_, listener.get()),
        listener_guard_(listener.release()),
        tick_(io_),
        sweep_(io_),
        accept_pause_(io_) {}

  void run() {
    thread_.start("hora-rdzv", [this] { loop(); });
  }

  ~Server() override {
    if (thread_.inherited_by_fork()) return;
    asio::post(io_, [this] { stop(); });
    thread_.join();
  }

  [[nodiscard]] std::string endpoint() const override { return endpoint_; }

  void announce_exit(Rank rank, const std::string& text) override {
    asio::post(io_, [this, rank, text] { perform(rendezvous_.on_exit(rank, text, steady_now())); });
  }

  void end_job(const std::string& text) override {
    asio::post(io_, [this, text] { perform(rendezvous_.on_end(text)); });
  }

  [[nodiscard]] Stats stats() const override {
    return {strangers_dropped_.load(), open_.load(), worlds_.load()};
  }

 private:
  void loop() {
    asio::post(io_, [this] {
      accept_later();
      sweep_later();
    });
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& e) {
        // From a callback or for want of memory; the handler is lost, the server is not.
        options_.log.error(std::string("rendezvous: ") + e.what());
      }
    }
  }

  void accept_later() {
    listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this](const error_code& error) {
                           if (!error) accept_all();
                         });
  }

  void accept_all() {
    for (;;) {
      auto socket = accept_connection(listener_.native_handle());
      if (!socket) {
        options_.log.warning("rendezvous: " + socket.error().message);
        if (!unproved_.empty()) drop(connections_.at(*unproved_.begin()));
        accept_pause_.expires_after(kAcceptPause);
        accept_pause_.async_wait([this](const error_code& error) {
          if (!error) accept_later();
        });
        return;
      }
      if (!socket->valid()) break;
      welcome_stranger(std::move(*socket));
    }
    accept_later();
  }

  void welcome_stranger(Fd fd) {
    if (!same_user(fd.get())) {
      ++strangers_dropped_;
      return;
    }
    tune_control_socket(fd.get(), std::max<Duration>(4 * options_.heartbeat_limit, kPatience));
    const Identity self{job_id(options_.job), Epoch(0), Rank(-1), WorkerId{}, kControlPurpose};
    auto connection = std::make_shared<Connection>(
        io_, ++last_id_, Handshake(HandshakeRole::acceptor, options_.secret, self, Rank(-1)));
    error_code error;
    connection->socket.assign(asio::generic::stream_protocol(family_, 0), fd.get(), error);
    if (error) return;
    connection->guard = ForkGuard(fd.release());
    connection->drop_at = steady_now() + kPatience;
    connections_[connection->id] = connection;
    unproved_.insert(connection->id);
    open_ = connections_.size();
    if (unproved_.size() > kMostStrangers) drop(connections_.at(*unproved_.begin()));
    read_proof(connection);
  }

  void read_proof(const ConnectionPtr& connection) {
    flush_proof(connection);
    const std::size_t wants = connection->handshake.wants();
    HORA_CHECK(wants > 0 && wants <= connection->input.size(), "a handshake wants a few bytes");
    asio::async_read(connection->socket, asio::buffer(connection->input.data(), wants),
                     [this, connection](const error_code& error, std::size_t got) {
                       if (!is_open(connection)) return;
                       if (error) return drop(connection);
                       on_proof(connection, std::span(connection->input).first(got));
                     });
  }

  void on_proof(const ConnectionPtr& connection, std::span<const std::byte> bytes) {
    if (!connection->handshake.feed(bytes)) {
      flush_proof(connection);  // A verdict for a confused member of another job; else nothing.
      return close_after_output(connection);
    }
    if (!connection->handshake.done()) return read_proof(connection);
    flush_proof(connection);
    connection->peer = connection->handshake.peer();
    unproved_.erase(connection->id);
    read_messages(connection);
  }

  void flush_proof(const ConnectionPtr& connection) {
    for (auto out = connection->handshake.take_output(); !out.empty();
         out = connection->handshake.take_output()) {
      send(connection, std::make_shared<const std::vector<std::byte>>(std::move(out)));
    }
  }

  void read_messages(const ConnectionPtr& connection) {
    connection->socket.async_read_some(
        asio::buffer(connection->input),
        [this, connection](const error_code& error, std::size_t got) {
          if (!is_open(connection)) return;
          if (error) return drop(connection);
          connection->reader.feed(std::span(connection->input).first(got));
          if (take_messages(connection)) read_messages(connection);
        });
  }

  /// False once the connection is gone or going.
  bool take_messages(const ConnectionPtr& connection) {
    for (;;) {
      auto message = connection->reader.next();
      if (!message || (*message && !matches_proof(*connection, **message))) {
        options_.log.warning("rendezvous: a member sent nonsense and is dropped");
        drop(connection);
        return false;
      }
      if (!*message) return true;
      const bool beat = std::holds_alternative<Heartbeat>(**message);
      if (!connection->closing) connection->drop_at.reset();
      if (std::holds_alternative<Join>(**message)) {
        connection->reader.raise_limit(kMaxMessageOfMember);
      }
      perform(rendezvous_.on_message(connection->id, **message, steady_now()), beat);
      if (!is_open(connection) || connection->closing) return false;
    }
  }

  /// Nobody joins as somebody else than it proved to be.
  static bool matches_proof(const Connection& connection, const Message& message) {
    const auto* join = std::get_if<Join>(&message);
    return join == nullptr ||
           (join->rank == connection.peer->rank && join->member.worker == connection.peer->worker);
  }

  void send(const ConnectionPtr& connection, Bytes bytes) {
    connection->output_bytes += bytes->size();
    if (connection->output_bytes > kMostQueuedBytes) return drop(connection);
    connection->output.push_back(std::move(bytes));
    if (connection->output.size() == 1) send_next(connection);
  }

  void send_next(const ConnectionPtr& connection) {
    const Bytes bytes = connection->output.front();
    asio::async_write(connection->socket, asio::buffer(bytes->data(), bytes->size()),
                      [this, connection, bytes](const error_code& error, std::size_t) {
                        if (!is_open(connection)) return;
                        if (error) return drop(connection);
                        connection->output_bytes -= bytes->size();
                        connection->output.pop_front();
                        if (!connection->output.empty()) return send_next(connection);
                        if (connection->closing) drop(connection);
                      });
  }

  void close_after_output(const ConnectionPtr& connection) {
    if (!is_open(connection)) return;
    connection->closing = true;
    connection->drop_at = steady_now() + kPatience;
    if (connection->output.empty()) drop(connection);
  }

  void drop(const ConnectionPtr& connection) {
    if (!is_open(connection)) return;
    if (unproved_.erase(connection->id) > 0) ++strangers_dropped_;
    // `connection` may be the table's own pointer: keep it until the end of this function.
    const auto kept = connections_.extract(connection->id);
    open_ = connections_.size();
    connection->guard = ForkGuard();
    error_code ignored;
    connection->socket.close(ignored);
    if (stopping_) {
      if (connections_.empty()) io_.stop();
      return;
    }
    // Posted, because the Rendezvous may be in the middle of saying something to others.
    asio::post(io_,
               [this, id = connection->id] { perform(rendezvous_.on_closed(id, steady_now())); });
  }

  [[nodiscard]] bool is_open(const ConnectionPtr& connection) const {
    return connections_.count(connection->id) > 0;
  }

  /// `routine`: nothing that could have moved the next deadline closer.
  void perform(const Rendezvous::Actions& actions, bool routine = false) {
    for (const RendezvousAction& action : actions) {
      const auto found = connections_.find(action.connection);
      switch (action.kind) {
        case RendezvousAction::Kind::send:
          if (found != connections_.end()) send(ConnectionPtr(found->second), action.bytes);
          break;
        case RendezvousAction::Kind::close:
          if (found != connections_.end()) close_after_output(ConnectionPtr(found->second));
          break;
        default:
          tell(action);
      }
    }
    if (!routine) tick_later();
  }

  /// Calls the owner back; what it throws is its own affair and ends no connection.
  void tell(const RendezvousAction& action) {
    try {
      call_back(action);
    } catch (const std::exception& e) {
      options_.log.error(std::string("rendezvous: a callback failed: ") + e.what());
    }
  }

  void call_back(const RendezvousAction& action) {
    const auto call = [&action](const std::function<void(Rank, const std::string&)>& callback) {
      if (callback) callback(action.rank, action.text);
    };
    switch (action.kind) {
      case RendezvousAction::Kind::lost:
        return call(options_.on_lost);
      case RendezvousAction::Kind::silent:
        return call(options_.on_silent);
      case RendezvousAction::Kind::left_out:
        return call(options_.on_left_out);
      case RendezvousAction::Kind::back:
        return call(options_.on_back);
      case RendezvousAction::Kind::report:
        return call(options_.on_report);
      case RendezvousAction::Kind::formed:
        ++worlds_;
        if (options_.on_formed) options_.on_formed();
        return;
      case RendezvousAction::Kind::changed:
        ++worlds_;
        if (options_.on_changed) options_.on_changed(action.text);
        return;
      case RendezvousAction::Kind::all_left:
        if (options_.on_all_left) options_.on_all_left();
        return;
      case RendezvousAction::Kind::send:
      case RendezvousAction::Kind::close:
        break;
    }
  }

  void tick_later() {
    const auto next = rendezvous_.next_deadline();
    if (!next) {
      tick_.cancel();
      return;
    }
    tick_.expires_at(*next);
    tick_.async_wait([this](const error_code& error) {
      if (!error) perform(rendezvous_.on_tick(steady_now()));
    });
  }

  void sweep_later() {
    sweep_.expires_after(kSweep);
    sweep_.async_wait([this](const error_code& error) {
      if (error) return;
      const TimePoint now = steady_now();
      std::vector<ConnectionPtr> late;
      for (const auto& [id, connection] : connections_) {
        if (connection->drop_at && now >= *connection->drop_at) late.push_back(connection);
      }
      for (const auto& connection : late)
        drop(connection);
      sweep_later();
    });
  }

  void stop() {
    perform(rendezvous_.on_stop());
    stopping_ = true;
    error_code ignored;
    listener_guard_ = ForkGuard();
    listener_.close(ignored);
    tick_.cancel();
    std::vector<ConnectionPtr> others;
    for (const auto& [id, connection] : connections_) {
      if (!connection->closing) others.push_back(connection);
    }
    for (const auto& connection : others)
      drop(connection);
    if (connections_.empty()) return io_.stop();
    sweep_.expires_after(kStopPatience);
    sweep_.async_wait([this](const error_code&) { io_.stop(); });
  }

  const RendezvousServerOptions options_;
  const std::string endpoint_;
  const int family_;
  asio::io_context io_{1};
  Rendezvous rendezvous_;
  asio::posix::stream_descriptor listener_;
  ForkGuard listener_guard_;
  asio::steady_timer tick_, sweep_, accept_pause_;
  std::map<ConnectionId, ConnectionPtr> connections_;
  std::set<ConnectionId> unproved_;  ///< Oldest first.
  ConnectionId last_id_ = 0;
  bool stopping_ = false;
  std::atomic<std::uint64_t> strangers_dropped_{0}, open_{0}, worlds_{0};
  IoThread thread_;
};

}  // namespace

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(RendezvousServerOptions options) {
  const bool local = !options.unix_name.empty();
  auto listener = local ? listen_unix(options.unix_name) : listen_tcp(options.ip, options.port);
  if (!listener) return fail(listener.error());
  Endpoint endpoint{options.unix_name, options.ip, 0};
  if (!local) {
    auto port = port_of(listener->get());
    if (!port) return fail(port.error());
    endpoint.port = *port;
  }
  const int family = local                                       ? AF_UNIX
                     : options.ip.find(':') != std::string::npos ? AF_INET6
                                                                 : AF_INET;
  try {
    auto server = std::make_unique<Server>(std::move(options), std::move(*listener),
                                           to_string(endpoint), family);
    server->run();
    return server;
  } catch (const std::exception& e) {
    return fail(ErrorKind::system, std::string("starting the rendezvous: ") + e.what());
  }
}

std::string process_state(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // "17 (a name with ) in it) T ...": the state follows the last parenthesis.
  const std::size_t close = line.rfind(')');
  if (close == std::string::npos || close + 2 >= line.size()) return "";
  const char state = line[close + 2];
  const char* meaning = "";
  switch (state) {
    case 'R':
      meaning = " (running)";
      break;
    case 'S':
      meaning = " (sleeping)";
      break;
    case 'D':
      meaning = " (waiting for a device)";
      break;
    case 'T':
      meaning = " (stopped)";
      break;
    case 't':
      meaning = " (stopped by a debugger)";
      break;
    case 'Z':
      meaning = " (dead, not yet reaped)";
      break;
    default:
      break;
  }
  return std::string("state ") + state + meaning;
}

}  // namespace hora
