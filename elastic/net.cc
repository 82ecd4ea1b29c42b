// See net.h. Thin wrappers: each turns one or two system calls into a Result with words that name
// the address, restarts what a signal interrupted, and waits by poll() until its deadline.
//
// IPv6 scopes are left out on purpose: link-local addresses mean nothing on another host.
#include "elastic/net.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace hora {

namespace {

constexpr int kBacklog = 1024;
constexpr std::size_t kMostEndpoints = 32;

/// A socket address of any family.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
};

Result<SocketAddress> tcp_address(const std::string& ip, std::uint16_t port) {
  SocketAddress address;
  sockaddr_in four{};
  if (::inet_pton(AF_INET, ip.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&address.storage, &four, sizeof four);
    address.length = sizeof four;
    return address;
  }
  sockaddr_in6 six{};
  if (::inet_pton(AF_INET6, ip.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    std::memcpy(&address.storage, &six, sizeof six);
    address.length = sizeof six;
    return address;
  }
  return fail(ErrorKind::invalid_argument, "'" + ip + "' is not a numeric address");
}

Result<SocketAddress> unix_address(const std::string& name) {
  sockaddr_un local{};
  if (name.empty() || name.size() + 1 > sizeof local.sun_path) {
    return fail(ErrorKind::invalid_argument,
                "unix socket name '" + name + "' is empty or longer than 107 characters");
  }
  local.sun_family = AF_UNIX;
  std::memcpy(local.sun_path + 1, name.data(), name.size());  // A leading zero: abstract.
  SocketAddress address;
  std::memcpy(&address.storage, &local, sizeof local);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Fd make_socket(int family) {
  return Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

/// Address and port of an internet socket address.
Address address_of(const sockaddr_storage& storage) {
  char ip[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET6) {
    sockaddr_in6 six{};
    std::memcpy(&six, &storage, sizeof six);
    ::inet_ntop(AF_INET6, &six.sin6_addr, ip, sizeof ip);
    return {ip, ntohs(six.sin6_port)};
  }
  sockaddr_in four{};
  std::memcpy(&four, &storage, sizeof four);
  ::inet_ntop(AF_INET, &four.sin_addr, ip, sizeof ip);
  return {ip, ntohs(four.sin_port)};
}

/// Both ends of the connection are this very socket.
bool connected_to_itself(int socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_length = sizeof here, there_length = sizeof there;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_length) != 0) return false;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_length) != 0) return false;
  return here_length == there_length && std::memcmp(&here, &there, here_length) == 0;
}

Result<std::uint16_t> parse_port(const std::string& text, const std::string& whole) {
  std::uint16_t port = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || stop != text.data() + text.size() || port == 0) {
    return fail(ErrorKind::invalid_argument,
                "rendezvous '" + whole + "': '" + text + "' is not a port (1 to 65535)");
  }
  return port;
}

Result<Endpoint> parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  if (text.starts_with("unix:")) {
    endpoint.unix_name = text.substr(5);
    if (auto checked = unix_address(endpoint.unix_name); !checked) return fail(checked.error());
    return endpoint;
  }
  const std::size_t colon = text.rfind(':');
  std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string::npos) {
    host.clear();  // An IPv6 address without brackets: where would the port begin?
  }
  if (host.empty()) {
    return fail(ErrorKind::invalid_argument, "rendezvous '" + text +
                                                 "' is not ip:port, [ip6]:port, name:port or "
                                                 "unix:NAME");
  }
  auto port = parse_port(text.substr(colon + 1), text);
  if (!port) return fail(port.error());
  endpoint.host = host;
  endpoint.port = *port;
  return endpoint;
}

}  // namespace

Result<std::vector<Endpoint>> parse_endpoints(const std::string& text) {
  std::vector<Endpoint> endpoints;
  std::size_t start = 0;
  while (start <= text.size() && endpoints.size() < kMostEndpoints) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    auto endpoint = parse_endpoint(text.substr(start, comma - start));
    if (!endpoint) return fail(endpoint.error());
    endpoints.push_back(std::move(*endpoint));
    start = comma + 1;
  }
  return endpoints;
}

std::string to_string(const Endpoint& endpoint) {
  if (!endpoint.unix_name.empty()) return "unix:" + endpoint.unix_name;
  return to_string(Address{endpoint.host, endpoint.port});
}

std::string to_string(const Address& address) {
  const bool six = address.ip.find(':') != std::string::npos;
  return (six ? "[" + address.ip + "]" : address.ip) + ":" + std::to_string(address.port);
}

Result<Fd> listen_tcp(const std::string& ip, std::uint16_t port) {
  auto address = tcp_address(ip, port);
  if (!address) return fail(address.error());
  Fd socket = make_socket(address->family());
  const std::string what = "listening on " + to_string(Address{ip, port});
  if (!socket.valid()) return fail_errno(what);
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address->family() == AF_INET6) {
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, ip == "::" ? 0 : 1);
  }
  if (::bind(socket.get(), address->get(), address->length) != 0) return fail_errno(what);
  if (::listen(socket.get(), kBacklog) != 0) return fail_errno(what);
  return socket;
}

Result<Fd> listen_unix(const std::string& name) {
  auto address = unix_address(name);
  if (!address) return fail(address.error());
  Fd socket = make_socket(AF_UNIX);
  const std::string what = "listening on unix socket @" + name;
  if (!socket.valid()) return fail_errno(what);
  if (::bind(socket.get(), address->get(), address->length) != 0) return fail_errno(what);
  if (::listen(socket.get(), kBacklog) != 0) return fail_errno(what);
  return socket;
}

Result<std::uint16_t> port_of(int socket) {
  sockaddr_storage here{};
  socklen_t length = sizeof here;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &length) != 0) {
    return fail_errno("asking a listener for its port");
  }
  return address_of(here).port;
}

std::string peer_address(int socket) {
  sockaddr_storage there{};
  socklen_t length = sizeof there;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&there), &length) != 0) return "closed";
  return to_string(address_of(there));
}

std::string own_address(int socket) {
  sockaddr_storage here{};
  socklen_t length = sizeof here;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&here), &length) != 0) return "";
  return address_of(here).ip;
}

Result<Fd> accept_connection(int listener) {
  for (;;) {
    Fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) return socket;
    // These are about one connection that is gone already: look at the next.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Fd();
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return fail(ErrorKind::resource, "no descriptor left for a connection; raise `ulimit -n`");
    }
    return fail_errno("accepting a connection");
  }
}

Result<Fd> start_connect_tcp(const Address& address) {
  const std::string text = to_string(address);
  auto target = tcp_address(address.ip, address.port);
  if (!target) return fail(target.error());
  Fd socket = make_socket(target->family());
  if (!socket.valid()) return fail_errno("a socket for " + text);
  if (::connect(socket.get(), target->get(), target->length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return fail_errno(text);
  }
  return socket;
}

Result<void> finish_connect_tcp(int socket, const std::string& text) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  errno = error;
  if (error != 0) return fail_errno(text);
  if (connected_to_itself(socket)) {
    return fail(ErrorKind::system, text + ": connected to itself");
  }
  return {};
}

Result<Fd> connect_tcp(const Address& address, Deadline deadline) {
  auto socket = start_connect_tcp(address);
  if (!socket) return socket;
  const std::string text = to_string(address);
  if (!wait_socket(socket->get(), POLLOUT, deadline)) {
    return fail(ErrorKind::timeout, text + ": no answer");
  }
  HORA_TRY(finish_connect_tcp(socket->get(), text));
  return socket;
}

Result<Fd> connect_unix(const std::string& name) {
  const std::string text = "unix socket @" + name;
  auto target = unix_address(name);
  if (!target) return fail(target.error());
  Fd socket = make_socket(AF_UNIX);
  if (!socket.valid()) return fail_errno(text);
  // A unix socket connects at once or not at all (EAGAIN: its backlog is full).
  if (::connect(socket.get(), target->get(), target->length) != 0) return fail_errno(text);
  if (!same_user(socket.get())) {
    return fail(ErrorKind::protocol, text + ": belongs to another user");
  }
  return socket;
}

Result<Fd> connect_endpoint(const Endpoint& endpoint, Deadline deadline) {
  if (!endpoint.unix_name.empty()) return connect_unix(endpoint.unix_name);
  if (tcp_address(endpoint.host, endpoint.port)) {
    return connect_tcp({endpoint.host, endpoint.port}, deadline);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(endpoint.host.c_str(), nullptr, &hints, &found); code != 0) {
    return fail(ErrorKind::system, to_string(endpoint) + ": " + ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &::freeaddrinfo);
  Error last{ErrorKind::system, to_string(endpoint) + ": no address", std::nullopt};
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char ip[NI_MAXHOST];
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, ip, sizeof ip, nullptr, 0,
                      NI_NUMERICHOST) != 0) {
      continue;
    }
    auto socket = connect_tcp({ip, endpoint.port}, deadline);
    if (socket) return socket;
    last = socket.error();
  }
  return fail(std::move(last));
}

bool same_user(int socket) {
  int domain = 0;
  socklen_t length = sizeof domain;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return false;
  if (domain != AF_UNIX) return true;
  ucred credentials{};
  length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return false;
  return credentials.uid == ::geteuid();
}

void tune_control_socket(int socket, Duration timeout) {
  // On a unix socket these fail, and are not needed.
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(to_ms(timeout)));
}

bool wait_socket(int socket, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{socket, events, 0};
    const long long left = to_ms(deadline.left(steady_now()));
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<long long>(left, 60000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (deadline.passed(steady_now())) return false;
  }
}

Result<void> send_all(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_socket(socket, POLLOUT, deadline))
        return fail(ErrorKind::timeout, "sending: timed out");
    } else if (errno != EINTR) {
      return fail_errno("sending");
    }
  }
  return {};
}

Result<void> receive_exactly(int socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return fail(ErrorKind::system, "the other side closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_socket(socket, POLLIN, deadline)) return fail(ErrorKind::timeout, "no answer");
    } else if (errno != EINTR) {
      return fail_errno("receiving");
    }
  }
  return {};
}

Result<void> send_with_fds(int socket, std::span<const std::byte> bytes, std::array<int, 2> fds,
                           Deadline deadline) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fds)> control{};
  // sendmsg reads only, but iovec has no const.
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    // The descriptors travel with the first byte; the rest follows without them.
    if (sent > 0) return send_all(socket, bytes.subspan(static_cast<std::size_t>(sent)), deadline);
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_socket(socket, POLLOUT, deadline))
        return fail(ErrorKind::timeout, "sending: timed out");
    } else if (errno != EINTR) {
      return fail_errno("sending descriptors");
    }
  }
}

Result<std::array<Fd, 2>> receive_with_fds(int socket, std::span<std::byte> bytes,
                                           Deadline deadline) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ssize_t got = 0;
  do {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (!wait_socket(socket, POLLIN, deadline)) return fail(ErrorKind::timeout, "no answer");
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK));
  if (got < 0) return fail_errno("receiving descriptors");
  if (got == 0) return fail(ErrorKind::system, "the other side closed the connection");

  std::array<Fd, 2> fds;
  std::size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN((at + 1) * sizeof(int)) <= header->cmsg_len; ++at) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + at * sizeof fd, sizeof fd);
      Fd owned(fd);
      if (count < fds.size()) fds[count] = std::move(owned);
      ++count;
    }
  }
  if (count != fds.size() || (message.msg_flags & MSG_CTRUNC) != 0) {
    return fail(ErrorKind::protocol, "expected 2 descriptors, got " + std::to_string(count));
  }
  HORA_TRY(receive_exactly(socket, bytes.subspan(static_cast<std::size_t>(got)), deadline));
  return fds;
}

std::vector<std::string> local_addresses(const std::vector<std::string>& interfaces) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<std::pair<int, std::string>> ranked;  // (how unlikely to be reached, address)
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string name = entry->ifa_name;
    if (!interfaces.empty() &&
        std::find(interfaces.begin(), interfaces.end(), name) == interfaces.end()) {
      continue;
    }
    int order = 0;
    char ip[INET6_ADDRSTRLEN] = {};
    if (entry->ifa_addr->sa_family == AF_INET) {
      sockaddr_in four{};
      std::memcpy(&four, entry->ifa_addr, sizeof four);
      if ((ntohl(four.sin_addr.s_addr) >> 16) == 0xA9FE) continue;  // 169.254/16: link-local.
      ::inet_ntop(AF_INET, &four.sin_addr, ip, sizeof ip);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      sockaddr_in6 six{};
      std::memcpy(&six, entry->ifa_addr, sizeof six);
      if (IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) continue;
      ::inet_ntop(AF_INET6, &six.sin6_addr, ip, sizeof ip);
      order = 1;
    } else {
      continue;
    }
    for (const char* prefix : {"docker", "br-", "virbr", "veth", "cni", "podman"}) {
      if (name.starts_with(prefix)) order += 2;
    }
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0) order += 4;
    ranked.emplace_back(order, ip);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> addresses;
  for (auto& [order, ip] : ranked)
    addresses.push_back(std::move(ip));
  return addresses;
}

std::string interface_names() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "none";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool has_address = entry->ifa_addr != nullptr && (entry->ifa_addr->sa_family == AF_INET ||
                                                            entry->ifa_addr->sa_family == AF_INET6);
    if (has_address && std::find(names.begin(), names.end(), entry->ifa_name) == names.end()) {
      names.emplace_back(entry->ifa_name);
    }
  }
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace hora
