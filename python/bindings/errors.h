// Errors, as Python exceptions.
//
//   invalid_argument, duplicate_name    ValueError: this rank's own mistake, of which the others
//                                       know nothing
//   everything else                     hora.HoraInternalError, with attributes `kind` and `peer`
//
// `interrupted` never comes here: the exception that the signal handler raised is
// already set (runtime.cc).
#pragma once

#include "runtime/runtime.h"

namespace hora {

/// Raises `error` as a Python exception. With the GIL.
[[noreturn]] void raise_error(const Error& error);

}  // namespace hora
