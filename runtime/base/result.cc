#include "runtime/base/result.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "runtime/base/check.h"

namespace hora {

tl::unexpected<Error> fail_errno(const std::string& what) {
  return fail(ErrorKind::system, what + ": " + std::generic_category().message(errno));
}

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid_argument";
    case ErrorKind::duplicate_name:
      return "duplicate_name";
    case ErrorKind::mismatch:
      return "mismatch";
    case ErrorKind::not_initialized:
      return "not_initialized";
    case ErrorKind::shutdown:
      return "shutdown";
    case ErrorKind::peer_lost:
      return "peer_lost";
    case ErrorKind::timeout:
      return "timeout";
    case ErrorKind::protocol:
      return "protocol";
    case ErrorKind::resource:
      return "resource";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::interrupted:
      return "interrupted";
    case ErrorKind::system:
      return "system";
  }
  return "unknown";
}

void check_failed(const char* condition, const char* why, const char* file, int line) {
  std::fprintf(stderr,
               "hora: %s:%d: broken invariant: %s (%s). This is a bug in Hora; the worker ends.\n",
               file, line, why, condition);
  std::abort();
}

}  // namespace hora
