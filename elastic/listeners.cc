// Where this worker's peers reach it, and whom it may share memory with.
//
// Two listeners: an abstract unix socket with 128 random bits in its name for ranks of this host,
// and TCP for the others, on all addresses or on loopback alone. Addresses are told in the order in
// which a peer should try them.
#include <algorithm>
#include <climits>
#include <fstream>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elastic/net.h"
#include "elastic/session.h"

namespace hora {

namespace {

constexpr std::size_t kMostAddresses = 16;

/// The first of `ips` on which one can listen.
Result<TrackedFd> listen_on_first(std::initializer_list<const char*> ips, std::string& chosen) {
  Result<Fd> listener;
  for (const char* ip : ips) {
    listener = listen_tcp(ip, 0);
    chosen = ip;
    if (listener) return TrackedFd(std::move(*listener));
  }
  return fail(listener.error());
}

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    if (comma > start) names.push_back(text.substr(start, comma - start));
    start = comma + 1;
  }
  return names;
}

/// Where peers shall try to reach this host, in this order.
Result<std::vector<std::string>> addresses_for_peers(const Config& config) {
  std::vector<std::string> ips = local_addresses(split_names(config.network_interfaces));
  if (ips.empty() && !config.network_interfaces.empty()) {
    return fail(ErrorKind::invalid_argument,
                "HORA_NETWORK_INTERFACES=" + config.network_interfaces +
                    ": no such interface has an address on this host; it has " + interface_names());
  }
  // The one that is known to work first, if it may be used.
  if (const auto known = std::find(ips.begin(), ips.end(), config.host_address);
      known != ips.end()) {
    std::rotate(ips.begin(), known, known + 1);
  }
  return ips;
}

Result<void> open_tcp(const Config& config, bool one_host, Listeners& listeners) {
  std::string bound;
  auto listener = one_host ? listen_on_first({"127.0.0.1", "::1"}, bound)
                           : listen_on_first({"::", "0.0.0.0"}, bound);
  if (!listener) return fail(listener.error());
  listeners.tcp = std::move(*listener);
  auto port = port_of(listeners.tcp.get());
  if (!port) return fail(port.error());
  if (one_host) {
    listeners.addresses = {{bound, *port}};
    return {};
  }
  auto ips = addresses_for_peers(config);
  if (!ips) return fail(ips.error());
  for (std::string& ip : *ips) {
    if (bound == "0.0.0.0" && ip.find(':') != std::string::npos) continue;
    if (listeners.addresses.size() < kMostAddresses) {
      listeners.addresses.push_back({std::move(ip), *port});
    }
  }
  return {};
}

/// Error invalid_argument if the kernel does not have, or not allow, what HORA_CONGESTION names.
Result<void> check_congestion(const std::string& name) {
  if (name.empty()) return {};
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe.valid() || ::setsockopt(probe.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                                     static_cast<socklen_t>(name.size())) == 0) {
    return {};
  }
  std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  std::string allowed;
  std::getline(file, allowed);
  return fail(ErrorKind::invalid_argument,
              "HORA_CONGESTION='" + name + "' is not one of this kernel's: " + allowed);
}

}  // namespace

Result<Listeners> open_listeners(const Config& config, const Placement& placement) {
  Listeners listeners;
  if (placement.size == 1) return listeners;
  HORA_TRY(check_congestion(config.congestion));
  if (config.transport != "tcp") {
    const std::string name = "hora-" + to_string(make_worker_id());
    auto listener = listen_unix(name);
    if (!listener) return fail(listener.error());
    listeners.unix_socket = TrackedFd(std::move(*listener));
    listeners.unix_name = name;
  }
  if (config.transport == "shm") return listeners;
  const bool one_host = placement.local_size == placement.size;
  // On one host shared memory is enough, and a sandbox without loopback is no obstacle.
  auto opened = open_tcp(config, one_host, listeners);
  if (!opened && (!one_host || config.transport == "tcp")) return fail(opened.error());
  return listeners;
}

std::string host_id(const Config& config) {
  if (!config.host_id.empty()) return config.host_id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat status {};
  if (boot.empty() || ::stat("/proc/self/ns/net", &status) != 0) {
    // Nothing to recognize the host by: share memory with nobody.
    return "unknown-" + to_string(make_worker_id());
  }
  return boot + "/" + std::to_string(status.st_ino);
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown host";
  return name;
}

}  // namespace hora
