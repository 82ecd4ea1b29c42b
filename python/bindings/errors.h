// Errors, as Python exceptions.
//
//   invalid_argument, duplicate_name    ValueError: this rank's own mistake
//   everything else                     hora.HoraInternalError, with attributes `kind` and `peer`
//
// All have an attribute `told`, for the package: of a call that the core has refused it has told
// the other ranks itself.
//
// `interrupted` never comes here: the exception that the signal handler raised is
// already set (runtime.cc).
#pragma once

#include "runtime/runtime.h"

namespace hora {

/// Raises `error` as a Python exception. With the GIL.
[[noreturn]] void raise_error(const Error& error);

}  // namespace hora
