// Hashes with a prefix that says what for, so that no two uses of a job's name give related bits.
//
// BLAKE2b by libsodium: a job id must not be guessable from another job's, and it costs a
// microsecond per process.
#include "elastic/job.h"

#include <vector>

#include <sodium.h>

namespace hora {

namespace {

void hash(const std::string& text, unsigned char* digest, std::size_t bytes) {
  crypto_generichash(digest, bytes, reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
}

}  // namespace

std::array<std::byte, 16> job_id(const std::string& job) {
  std::array<std::byte, 16> id{};
  hash("hora job\n" + job, reinterpret_cast<unsigned char*>(id.data()), id.size());
  return id;
}

std::string hash_text(const std::string& text, std::size_t bytes) {
  std::vector<unsigned char> digest(bytes);
  hash(text, digest.data(), digest.size());
  std::string hex(2 * bytes + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), digest.data(), digest.size());
  hex.pop_back();
  return hex;
}

}  // namespace hora
