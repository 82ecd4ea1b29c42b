// An exception of Python is a class that is looked up and an instance with attributes. The class is
// written in Python (hora/exceptions.py), where users read it, and is found when it is needed: only
// an error pays for that, and no static object holds it.
#include "python/bindings/errors.h"

#include <pybind11/pybind11.h>

namespace hora {

namespace py = pybind11;

void raise_error(const Error& error) {
  if (error.kind == ErrorKind::invalid_argument || error.kind == ErrorKind::duplicate_name) {
    py::object exception = py::reinterpret_borrow<py::object>(PyExc_ValueError)(error.message);
    exception.attr("told") = true;
    PyErr_SetObject(PyExc_ValueError, exception.ptr());
    throw py::error_already_set();
  }
  py::object type = py::module_::import("hora.exceptions").attr("HoraInternalError");
  py::object exception = type(error.message);
  exception.attr("told") = true;
  exception.attr("kind") = to_string(error.kind);
  exception.attr("peer") = error.peer ? py::object(py::int_(error.peer->value)) : py::none();
  PyErr_SetObject(type.ptr(), exception.ptr());
  throw py::error_already_set();
}

}  // namespace hora
