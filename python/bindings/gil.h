// Working without the GIL.
//
// Everything that may block runs without the GIL. pybind11's gil_scoped_release takes it back in a
// destructor; but a daemon thread that asks for the GIL while the interpreter goes down is ended by
// pthread_exit, whose unwinding must not meet a destructor in progress: that is std::terminate.
// Here the GIL is taken back in plain code, and pybind11's dispatcher lets the unwinding pass.
#pragma once

#include <type_traits>
#include <utility>

#include <pybind11/pybind11.h>

namespace hora {

/// Calls `body()` without the GIL; called with it, returns with it. `body` must not throw.
template <class Body>
auto without_gil(Body&& body) {
  static_assert(noexcept(body()), "nothing may be thrown while the GIL is away");
  PyThreadState* thread = PyEval_SaveThread();
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    PyEval_RestoreThread(thread);
  } else {
    auto result = body();
    PyEval_RestoreThread(thread);
    return result;
  }
}

}  // namespace hora
