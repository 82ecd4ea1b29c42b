// Result and Error: how everything that the world can do to us is reported.
//
// There are three kinds of failure (docs/errors.md). The world misbehaves (a peer dies, a time-out,
// nonsense from a socket or a user): that is an `Error` value, and it travels in a `Result<T>`. We
// are wrong: that is HORA_CHECK (check.h). A foreign exception: the adapter that called the library
// catches it and makes an Error of it. Nothing in the core throws.
//
// An error message says who, what, how long, and what to do; it is product and it is tested.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <tl/expected.hpp>

#include "runtime/base/ids.h"

namespace hora {

/// What kind of thing went wrong. Bindings map it to an exception type of their language.
enum class ErrorKind {
  invalid_argument,  ///< The caller's own mistake, seen on this rank alone (Python: ValueError).
  duplicate_name,    ///< A tensor of this name is still in flight (Python: ValueError).
  mismatch,          ///< Ranks disagree about a tensor; the same error reaches all of them.
  not_initialized,   ///< No runtime, or it is already gone.
  shutdown,          ///< This or another rank has shut the job down.
  peer_lost,         ///< A member died or cannot be reached; `peer` names it.
  timeout,           ///< A deadline passed.
  protocol,          ///< Malformed or unauthenticated bytes.
  resource,          ///< Memory, descriptors, disk: the message has the number to raise.
  unsupported,       ///< Hora does not do this (yet); the message says what does.
  interrupted,       ///< The caller asked to stop waiting (Python: KeyboardInterrupt and the like).
  system,            ///< The operating system said no; the message has its reason.
};

/// A failure, as a value.
struct Error {
  ErrorKind kind{};
  std::string message;
  std::optional<Rank> peer{};
};

/// Either a T or the Error that took its place.
template <class T>
using Result = tl::expected<T, Error>;

/// `return fail(ErrorKind::timeout, "...")` from any function that returns a Result.
[[nodiscard]] inline tl::unexpected<Error> fail(ErrorKind kind, std::string message) {
  return tl::unexpected<Error>(Error{kind, std::move(message), std::nullopt});
}

/// The same for an Error at hand.
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

/// An Error for a failed system call: "`what`: <text of errno>".
[[nodiscard]] tl::unexpected<Error> fail_errno(const std::string& what);

/// A short name for logs and tests, such as "peer_lost".
const char* to_string(ErrorKind kind);

}  // namespace hora

/// Evaluates a Result; on failure returns its Error from the enclosing function.
#define HORA_TRY(expression)                                                  \
  do {                                                                        \
    if (auto hora_result = (expression); !hora_result) {                      \
      return ::tl::unexpected<::hora::Error>(std::move(hora_result.error())); \
    }                                                                         \
  } while (false)
