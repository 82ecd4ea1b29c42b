#include "python/bindings/errors.h"

#include <pybind11/pybind11.h>

namespace hora {

namespace py = pybind11;

void raise_error(const Error& error) {
  if (error.kind == ErrorKind::invalid_argument || error.kind == ErrorKind::duplicate_name) {
    throw py::value_error(error.message);
  }
  // The class is written in Python; an error may take the microsecond that the look-up costs.
  py::object type = py::module_::import("hora.exceptions").attr("HoraInternalError");
  py::object exception = type(error.message);
  exception.attr("kind") = to_string(error.kind);
  exception.attr("peer") = error.peer ? py::object(py::int_(error.peer->value)) : py::none();
  PyErr_SetObject(type.ptr(), exception.ptr());
  throw py::error_already_set();
}

}  // namespace hora
