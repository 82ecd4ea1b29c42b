// Job: names and numbers that every process of a job must compute alike.
//
// They go into every handshake, so that a connection of another job, or for another purpose, is
// refused before anything is said on it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hora {

/// What a connection is for: part of every handshake, so that no connection can be
/// passed off as another.
inline constexpr std::uint16_t kTcpPurpose = 1;
inline constexpr std::uint16_t kMemoryPurpose = 2;
inline constexpr std::uint16_t kControlPurpose = 3;

/// 128 bits that name a job in handshakes: a hash of its name.
std::array<std::byte, 16> job_id(const std::string& job);

/// Hexadecimal digits of a `bytes` long hash (BLAKE2b).
std::string hash_text(const std::string& text, std::size_t bytes);

}  // namespace hora
