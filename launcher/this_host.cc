// Addresses are compared as bytes: one address has many spellings.
#include "launcher/this_host.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hora {
namespace {

bool same_address(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.sa_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                            &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr) != 0;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
}

bool belongs_here(const sockaddr& address) {
  if (is_loopback(address)) return true;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, ::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr != nullptr && same_address(*one->ifa_addr, address)) return true;
  }
  return false;
}

}  // namespace

std::string own_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : path.string();
}

std::string current_directory(const std::string& told) {
  std::error_code error;
  if (!told.empty() && std::filesystem::equivalent(told, ".", error)) return told;
  return std::filesystem::current_path(error).string();
}

bool is_this_host(const std::string& name) {
  if (name == own_name()) return true;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, ::freeaddrinfo);
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (belongs_here(*one->ai_addr)) return true;
  }
  return false;
}

}  // namespace hora
