// HORA_CHECK: we are wrong.
//
// A broken invariant means that the next gradient may be wrong. Losing a worker is survivable,
// wrong gradients are not: so print what and where, and end this process. Never used for anything
// that a peer, the network or a user can cause.
#pragma once

namespace hora {

[[noreturn]] void check_failed(const char* condition, const char* why, const char* file, int line);

}  // namespace hora

#define HORA_CHECK(condition, why)                                 \
  do {                                                             \
    if (!(condition)) [[unlikely]] {                               \
      ::hora::check_failed(#condition, (why), __FILE__, __LINE__); \
    }                                                              \
  } while (false)
