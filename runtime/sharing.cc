// See sharing.h. A vote is a bit field, rank 0 first, its last byte filled up with zeros. A verdict
// has four bytes per rank, low byte first; hosts are numbered in the order in which ranks name
// them, so every topology has exactly one verdict.
#include "runtime/sharing.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace hora {

namespace {

constexpr std::size_t kNumberBytes = 4;

std::size_t vote_bytes(int size) {
  return (static_cast<std::size_t>(size) + 7) / 8;
}

std::uint32_t number_at(std::span<const std::byte> message, std::size_t rank) {
  std::uint32_t number = 0;
  for (std::size_t i = kNumberBytes; i-- > 0;)
    number = number << 8 | std::to_integer<std::uint32_t>(message[rank * kNumberBytes + i]);
  return number;
}

}  // namespace

std::vector<std::byte> encode_vote(const std::vector<bool>& shares) {
  std::vector<std::byte> message(vote_bytes(static_cast<int>(shares.size())));
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank]) message[rank / 8] |= std::byte{1} << (rank % 8);
  }
  return message;
}

std::optional<std::vector<bool>> decode_vote(std::span<const std::byte> message, int size) {
  if (message.size() != vote_bytes(size)) return std::nullopt;
  std::vector<bool> shares(static_cast<std::size_t>(size));
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    const bool set = (message[bit / 8] >> (bit % 8) & std::byte{1}) != std::byte{0};
    if (bit < shares.size()) {
      shares[bit] = set;
    } else if (set) {
      return std::nullopt;
    }
  }
  return shares;
}

std::vector<std::byte> encode_verdict(const Topology& topology) {
  std::vector<std::byte> message(static_cast<std::size_t>(topology.size()) * kNumberBytes);
  for (std::size_t host = 0; host < topology.hosts.size(); ++host) {
    for (const int rank : topology.hosts[host]) {
      for (std::size_t i = 0; i < kNumberBytes; ++i) {
        message[static_cast<std::size_t>(rank) * kNumberBytes + i] =
            static_cast<std::byte>(host >> (8 * i) & 0xff);
      }
    }
  }
  return message;
}

std::optional<Topology> decode_verdict(std::span<const std::byte> message, int size) {
  if (message.size() != static_cast<std::size_t>(size) * kNumberBytes) return std::nullopt;
  Topology topology;
  for (int rank = 0; rank < size; ++rank) {
    const std::uint32_t host = number_at(message, static_cast<std::size_t>(rank));
    if (host > topology.hosts.size()) return std::nullopt;
    if (host == topology.hosts.size()) topology.hosts.emplace_back();
    topology.hosts[host].push_back(rank);
  }
  return topology;
}

}  // namespace hora
