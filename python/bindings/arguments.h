// Arguments: what a user wrote, as a Submission.
//
// The package checks what can be wrong about a tensor and gives it as (address, shape, dtype
// number). Names and factors come as the user wrote them and are checked here, where they are
// converted anyway: a small collective takes a few microseconds, and a check in Python one of them.
// An error names the argument.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <pybind11/pybind11.h>

#include "runtime/runtime.h"

namespace hora {

/// The full names of a job's collectives: "allreduce.NAME", or "allreduce.noname.7" for one that
/// the user did not name; each kind counts for itself. With the GIL.
class Names {
 public:
  /// `name`: a str or None. Raises TypeError or ValueError.
  std::string full_name(Kind kind, pybind11::handle name);

 private:
  std::array<std::uint64_t, 6> unnamed_{};  // By kind.
};

/// A factor; raises TypeError unless it is a number. `argument`: its name.
double factor_from(pybind11::handle value, const char* argument);

/// The dimensions of a tensor, or the splits of an alltoall.
std::vector<std::int64_t> shape_from(const pybind11::tuple& shape);

/// Where the bytes of a C-contiguous buffer start. Raises BufferError or ValueError if it is none.
std::uintptr_t address_of(pybind11::handle buffer);

}  // namespace hora
