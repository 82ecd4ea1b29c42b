// pybind11's own conversions refuse a whole call and list its signature; these say which argument
// is wrong and why. They are also the cheaper ones: CPython's functions, without a copy in between.
#include "python/bindings/arguments.h"

#include <string_view>

#include "runtime/base/check.h"

namespace hora {

namespace py = pybind11;

namespace {

/// The first word of a full name.
constexpr std::array<std::string_view, 6> kPrefixes = {"allreduce.", "allgather.",     "broadcast.",
                                                       "barrier.",   "reducescatter.", "alltoall."};

std::string type_name(py::handle value) {
  return py::str(py::type::handle_of(value).attr("__name__"));
}

/// `prefix` with the name, or with the next number of those that have none.
std::string named(std::string prefix, py::handle name, const std::string& unnamed_prefix,
                  std::uint64_t& unnamed) {
  if (name.is_none()) return prefix + unnamed_prefix + std::to_string(++unnamed);
  if (PyUnicode_Check(name.ptr()) == 0) {
    throw py::type_error("name must be a str or None, not " + type_name(name));
  }
  Py_ssize_t length = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(name.ptr(), &length);
  if (utf8 == nullptr) {
    PyErr_Clear();
    throw py::value_error("name must be Unicode text; " + std::string(py::repr(name)) +
                          " holds a surrogate without its partner");
  }
  return prefix.append(utf8, static_cast<std::size_t>(length));
}

}  // namespace

std::string Names::full_name(const Request& request, py::handle name) {
  const auto index = static_cast<std::size_t>(request.kind);
  HORA_CHECK(index < kPrefixes.size(), "the package names a collective by its number");
  return named(std::string(kPrefixes[index]), name, unnamed_prefix(),
               counts_of(request.set).single[index]);
}

std::string Names::group_name(const Request& member, py::handle name) {
  const auto index = static_cast<std::size_t>(member.kind);
  HORA_CHECK(index < kPrefixes.size(), "the package names a collective by its number");
  return named("grouped_" + std::string(kPrefixes[index]), name, unnamed_prefix(),
               counts_of(member.set).grouped[index]);
}

std::string Names::unnamed_prefix() const {
  return joins_ == 0 ? "noname." : "noname.j" + std::to_string(joins_) + ".";
}

std::string member_name(const std::string& group, std::size_t index, std::size_t count) {
  return group + "_" + std::to_string(index + 1) + "of" + std::to_string(count);
}

double factor_from(py::handle value, const char* argument) {
  const double factor = PyFloat_AsDouble(value.ptr());
  if (factor == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw py::type_error(std::string(argument) + " must be a number, not " + type_name(value));
  }
  return factor;
}

std::vector<std::int64_t> shape_from(const py::tuple& shape) {
  std::vector<std::int64_t> dimensions(shape.size());
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    dimensions[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), static_cast<Py_ssize_t>(i)));
    if (dimensions[i] == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  }
  return dimensions;
}

std::uintptr_t address_of(py::handle buffer) {
  Py_buffer view;
  if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

}  // namespace hora
