#include "python/src/errors.h"

namespace kvloom::python {
namespace {

[[noreturn]] void raise(PyObject* type, const std::string& message) {
  PyErr_SetString(type, message.c_str());
  throw nb::python_error();
}

/// Name in kvloom._errors; the order of the statuses.
constexpr const char* kClasses[] = {nullptr,   nullptr,         "CapacityError", "UnsupportedError", "DeviceMemoryError",
                                    "IoError", "MismatchError", "InternalError"};

/// C's name of a block table's width as Python's.
std::string in_python(std::string message) {
  for (const std::string name : {"batch.table_stride", "table_stride"}) {
    for (size_t at; (at = message.find(name)) != std::string::npos;) message.replace(at, name.size(), "block_table.shape[1]");
  }
  return message;
}

}  // namespace

void raise_value_error(const std::string& message) { raise(PyExc_ValueError, message); }
void raise_type_error(const std::string& message) { raise(PyExc_TypeError, message); }

void check(kvloom_status status) {
  if (status == KVLOOM_OK) return;
  const std::string message = in_python(kvloom_last_error());
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  if (status == KVLOOM_INVALID_ARGUMENT) raise_value_error(message);
  raise_refusal(status, message);
}

void raise_refusal(kvloom_status status, const std::string& message) {
  const char* name = status > 0 && status <= KVLOOM_INTERNAL ? kClasses[status] : "InternalError";
  const nb::object type = nb::module_::import_("kvloom._errors").attr(name);
  raise(type.ptr(), message);
}

std::string class_name(nb::handle object) { return nb::cast<std::string>(nb::object(object.type().attr("__name__"))); }

std::string word_of(nb::handle value, const char* name) {
  if (!PyUnicode_Check(value.ptr())) raise_type_error(std::string("`") + name + "`: expected a str, got " + class_name(value));
  return nb::cast<std::string>(value);
}

float number_of(nb::handle value, const char* name) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (!PyErr_Occurred()) return float(number);
  PyErr_Clear();
  raise_type_error(std::string("`") + name + "`: expected a number, got " + class_name(value));
}

nb::str taken_string(char* text) {
  nb::str copy(text);
  kvloom_string_free(text);
  return copy;
}

}  // namespace kvloom::python
