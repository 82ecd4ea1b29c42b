// hora._core: what the Python package needs of the core, and no more.
//
// The package (python/hora) is the API; this module is its private engine room, and each area has a
// file here: runtime.cc (the rules of GIL, signals and fork), bind_runtime.cc (its face),
// arguments.cc (what users wrote), output.cc (memory), errors.cc.
#include <pybind11/pybind11.h>

#include "python/bindings/output.h"
#include "python/bindings/runtime.h"

namespace hora {
namespace {

void add_numbers(pybind11::module_& module) {
  module.attr("ALLREDUCE") = static_cast<int>(Kind::allreduce);
  module.attr("ALLGATHER") = static_cast<int>(Kind::allgather);
  module.attr("BROADCAST") = static_cast<int>(Kind::broadcast);
  module.attr("BARRIER") = static_cast<int>(Kind::barrier);
  module.attr("REDUCESCATTER") = static_cast<int>(Kind::reducescatter);
  module.attr("ALLTOALL") = static_cast<int>(Kind::alltoall);
  pybind11::dict dtypes;
  for (int number = 0; number < kDTypeCount; ++number) {
    if (const auto dtype = dtype_from(number)) {
      dtypes[pybind11::str(std::string(to_string(*dtype)))] = number;
    }
  }
  module.attr("DTYPES") = dtypes;
}

}  // namespace
}  // namespace hora

PYBIND11_MODULE(_core, module) {
  module.doc() = "The core of Hora; use the package hora.";
  module.attr("__version__") = HORA_VERSION;
  hora::add_numbers(module);
  hora::bind_output(module);
  hora::bind_runtime(module);
}
