// Net: the few socket calls that control links and sessions share, with deadlines and words.
//
// Addresses are numeric wherever a peer told us of them; only a rendezvous that a user or
// launcher named by a host name is ever looked up. Abstract unix sockets have no file, so nothing
// is left behind, and exist per network namespace; who is at the other end is asked from the
// kernel (same user), not believed. All sockets are close-on-exec and non-blocking, and every
// wait ends at a deadline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "elastic/world.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace hora {

/// Where a rendezvous is: an abstract unix socket, or a host (numeric or a name) and a port.
struct Endpoint {
  std::string unix_name;  ///< Not empty: the others do not matter.
  std::string host;
  std::uint16_t port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// "ip:port", "[ip6]:port", "name:port" or "unix:NAME", several separated by commas.
/// Error invalid_argument.
Result<std::vector<Endpoint>> parse_endpoints(const std::string& text);
/// The spelling that parse_endpoints reads.
std::string to_string(const Endpoint& endpoint);
/// "10.0.0.1:4711", "[fe80::1]:4711".
std::string to_string(const Address& address);

/// Listens on a numeric address and port (0: any). "::" listens on IPv4 as well.
Result<Fd> listen_tcp(const std::string& ip, std::uint16_t port);
/// Listens on an abstract unix socket.
Result<Fd> listen_unix(const std::string& name);
/// The port that a listener got.
Result<std::uint16_t> port_of(int socket);
/// An accepted connection, or an invalid Fd when none waits. Error: resource (no
/// descriptors left) or system.
Result<Fd> accept_connection(int listener);

/// Connects to a numeric address. A connection to itself (possible on a local port of the ephemeral
/// range) counts as refused.
Result<Fd> connect_tcp(const Address& address, Deadline deadline);
/// The same in two steps: after the first, wait until the socket is writable.
Result<Fd> start_connect_tcp(const Address& address);
Result<void> finish_connect_tcp(int socket, const std::string& text);
/// Connects to an abstract unix socket of a process of the same user.
Result<Fd> connect_unix(const std::string& name);
/// Connects to a rendezvous; looks the host up if it is a name.
Result<Fd> connect_endpoint(const Endpoint& endpoint, Deadline deadline);

/// The address at the other end of a TCP connection, for messages.
std::string peer_address(int socket);
/// The address at our end of a TCP connection, without the port.
std::string own_address(int socket);
/// A unix socket's peer runs under our user id. TCP sockets: true, the handshake decides.
bool same_user(int socket);
/// Turns off Nagle and lets the kernel give up on a peer that acknowledges nothing for `timeout`.
void tune_control_socket(int socket, Duration timeout);

/// True when `events` (POLLIN, POLLOUT) are there; false at the deadline.
bool wait_socket(int socket, short events, Deadline deadline);
/// Writes all of `bytes`.
Result<void> send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);
/// Fills all of `bytes`.
Result<void> receive_exactly(int socket, std::span<std::byte> bytes, Deadline deadline);

/// Sends bytes and two descriptors over a unix socket.
Result<void> send_with_fds(int socket, std::span<const std::byte> bytes, std::array<int, 2> fds,
                           Deadline deadline);
/// Receives exactly that; anything else is a protocol error, and no descriptor leaks.
Result<std::array<Fd, 2>> receive_with_fds(int socket, std::span<std::byte> bytes,
                                           Deadline deadline);

/// This host's addresses, best first: IPv4, IPv6, those of bridges and containers, loopback.
/// Link-local ones are left out, since they mean nothing without an interface. With `interfaces`,
/// only theirs.
std::vector<std::string> local_addresses(const std::vector<std::string>& interfaces);
/// "lo, eth0": the interfaces that have an address, for messages.
std::string interface_names();

}  // namespace hora
