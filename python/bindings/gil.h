// Working without the GIL.
//
// Everything that may block runs without the GIL. Taking it back has a trap: a daemon thread that
// asks for the GIL while the interpreter goes down is ended by pthread_exit (until Python 3.14,
// which parks it). The unwinding would run the destructors of every frame on the stack, pybind11's
// among them, and these drop references without the GIL. So the unwinding is stopped where it
// begins and the thread parked, as Python 3.14 does; the process is ending.
#pragma once

#include <type_traits>
#include <utility>

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace hora {

/// Takes the GIL back; does not return when the interpreter has ended meanwhile.
inline void restore_gil(PyThreadState* thread) {
  try {
    PyEval_RestoreThread(thread);
  } catch (abi::__forced_unwind&) {
    for (;;)
      pause();
  }
}

/// Calls `body()` without the GIL; called with it, returns with it. `body` must not throw.
template <class Body>
auto without_gil(Body&& body) {
  static_assert(noexcept(body()), "nothing may be thrown while the GIL is away");
  PyThreadState* thread = PyEval_SaveThread();
  if constexpr (std::is_void_v<decltype(body())>) {
    body();
    restore_gil(thread);
  } else {
    auto result = body();
    restore_gil(thread);
    return result;
  }
}

}  // namespace hora
