#include "python/src/type_route.h"

#include <nanobind/stl/string.h>

#include <string>

namespace kvloom::python {

namespace nb = nanobind;

namespace {

constexpr size_t kSlots = 64;  // a process uses a handful of tensor types; a clash forgets one and finds it again

const dlpack::ExchangeApi* exchange_api_of(PyTypeObject* type) {
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const dlpack::ExchangeApi* api = nullptr;
  if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  }
  Py_DECREF(capsule);  // the table lives as long as its framework
  while (api != nullptr && api->version.major != dlpack::kMajor) api = api->previous;
  return api;
}

bool has(PyTypeObject* type, const char* attribute) {
  PyObject* found = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), attribute);
  if (found == nullptr) PyErr_Clear();
  Py_XDECREF(found);
  return found != nullptr;
}

bool is_of_jax(PyTypeObject* type) {
  const nb::object module = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__module__"));
  if (!module.is_valid()) PyErr_Clear();
  return module.is_valid() && PyUnicode_Check(module.ptr()) && nb::cast<std::string>(module).rfind("jax", 0) == 0;
}

}  // namespace

TypeRoute& route_of(PyTypeObject* type) {
  static TypeRoute slots[kSlots];
  TypeRoute& slot = slots[(reinterpret_cast<uintptr_t>(type) >> 4) % kSlots];
  if (slot.type == type) return slot;
  TypeRoute found;
  found.type = type;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  found.api = exchange_api_of(type);
  if (found.api != nullptr) {
    found.way = Way::exchange;
  } else if (has(type, "__array_struct__")) {
    found.way = Way::array_struct;
  } else if (has(type, "__dlpack__")) {
    found.way = Way::dlpack;
  }
  found.of_jax = is_of_jax(type);
  Py_XDECREF(reinterpret_cast<PyObject*>(slot.type));
  return slot = found;
}

}  // namespace kvloom::python
