#include "runtime/base/ids.h"

#include <sys/random.h>

#include "runtime/base/check.h"

namespace hora {

std::string to_string(const WorkerId& id) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * id.bytes.size());
  for (const std::byte b : id.bytes) {
    text.push_back(kDigits[std::to_integer<int>(b) >> 4]);
    text.push_back(kDigits[std::to_integer<int>(b) & 15]);
  }
  return text;
}

WorkerId make_worker_id() {
  WorkerId id;
  const ssize_t got = getrandom(id.bytes.data(), id.bytes.size(), 0);
  HORA_CHECK(got == static_cast<ssize_t>(id.bytes.size()),
             "the kernel gives 16 random bytes at once");
  return id;
}

}  // namespace hora
