// What a tensor argument has to be, and the stream that its framework works in.
#include "python/src/errors.h"
#include "python/src/tensor_arg.h"
#include "python/src/type_route.h"

namespace kvloom::python {

void require(const TensorArg& t, const Wanted& w) {
  bool shape_fits = t.given() && t.ndim() == w.ndim;
  for (int32_t d = 0; shape_fits && d < w.ndim; ++d) shape_fits = w.shape[d] < 0 || t.shape(d) == w.shape[d];
  const bool type_fits = t.given() && t.dtype() == w.dtype;
  if (shape_fits && type_fits && t.is_at(w.place) && !(w.written && t.read_only()) && (!w.contiguous || t.contiguous())) [[likely]]
    return;
  std::string expected = "[";
  for (int32_t d = 0; d < w.ndim; ++d) {
    expected += d > 0 ? ", " : "";
    expected += w.shape[d] < 0 ? std::string(w.labels[d]) : std::to_string(w.shape[d]);
  }
  expected += std::string("] ") + dtype_name(w.dtype) + " on " + place_text(w.place);
  const std::string message = std::string("`") + t.name() + "`: expected " + expected + ", got ";
  if (!t.given()) raise_type_error(message + "None");
  if (!shape_fits) raise_value_error(message + t.describe() + "; the shape is another");
  if (!type_fits) raise_type_error(message + t.describe() + "; convert it, or say its dtype in the Spec");
  if (!t.is_at(w.place)) raise_value_error(message + t.describe() + "; move it there, or choose `backend` and `device` for where it is");
  if (w.written && t.read_only()) raise_value_error(message + "a tensor that may not be written; give one that may");
  raise_value_error(message + "strides " + t.strides_text() + "; make it contiguous");
}

void* current_stream(const TensorArg& tensor) {
  if (!tensor.given() || !tensor.place().cuda) return nullptr;
  const TypeRoute& route = route_of(Py_TYPE(tensor.object()));
  if (route.api != nullptr && route.api->current_stream != nullptr) {
    void* stream = nullptr;
    if (route.api->current_stream(dlpack::kCuda, tensor.c()->device_id, &stream) != 0) throw nb::python_error();
    return stream;
  }
  const nb::object found =
      nb::module_::import_("kvloom._frameworks").attr("current_stream")(nb::handle(tensor.object()), tensor.c()->device_id);
  return reinterpret_cast<void*>(nb::cast<uintptr_t>(found));
}

void wait_for_stream(int32_t device, void* stream) {
  kvloom_status status;
  {
    nb::gil_scoped_release released;
    status = kvloom_wait_for_stream(device, stream);
  }
  check(status);
}

void* stream_of(nb::handle stream, const TensorArg& tensor) {
  if (stream.is_none()) return current_stream(tensor);
  nb::object address = nb::borrow(stream);
  for (const char* attribute : {"cuda_stream", "ptr", "handle"}) {
    if (!nb::hasattr(stream, attribute)) continue;
    address = stream.attr(attribute);
    break;
  }
  if (PyLong_Check(address.ptr())) {
    const size_t value = PyLong_AsSize_t(address.ptr());
    if (!PyErr_Occurred()) return reinterpret_cast<void*>(value);
    PyErr_Clear();
  }
  raise_type_error("`stream`: expected None, an address as an integer, or a stream of torch or CuPy, got " +
                   nb::cast<std::string>(nb::repr(stream)));
}

}  // namespace kvloom::python
