// The buffer is one-dimensional bytes: whoever asked for the gathering knows dtype and shape and
// makes its own view. It is writable, because the memory belongs to nobody else.
#include "python/bindings/output.h"

namespace hora {

namespace py = pybind11;

void bind_output(py::module_& module) {
  py::class_<Output>(module, "Output", py::buffer_protocol(),
                     "Memory of a gathered result; use it through the buffer protocol.")
      .def("__len__", &Output::bytes)
      .def_buffer([](Output& output) {
        return py::buffer_info(output.data(), 1, py::format_descriptor<std::uint8_t>::format(),
                               static_cast<py::ssize_t>(output.bytes()));
      });
}

}  // namespace hora
