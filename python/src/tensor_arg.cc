#include "python/src/tensor_arg.h"

#include "python/src/errors.h"
#include "python/src/type_route.h"

#include <cstring>

namespace kvloom::python {
namespace {

using dlpack::TypeCode;

struct NamedType {
  const char* name;
  uint8_t code, bits;
};
constexpr NamedType kTypes[] = {{"f32", TypeCode::kFloat, 32},
                                {"f16", TypeCode::kFloat, 16},
                                {"bf16", TypeCode::kBfloat, 16},
                                {"e4m3", TypeCode::kE4m3fn, 8},
                                {"e5m2", TypeCode::kE5m2, 8}};  // the order of KVLOOM_F32 ...

/// Made when the module is: a static of a function could be waited for by a thread that holds the GIL.
struct Names {
  PyObject *array_struct, *dtype, *dlpack, *dlpack_device;
  PyObject *max_version, *version_and_stream, *version_alone, *stream_alone;  // of a call of __dlpack__
} names;

/// The first line of the pending Python exception, which is cleared: behind it torch prints where in its own C++ it stood.
std::string take_exception_text() {
  nb::python_error error;
  const auto text = nb::cast<std::string>(nb::str(error.value()));
  return text.substr(0, text.find('\n'));
}

std::string numbers_text(const int64_t* x, int32_t n) {
  std::string text = "[";
  for (int32_t d = 0; d < n; ++d) text += (d > 0 ? ", " : "") + std::to_string(x[d]);
  return text + "]";
}

std::string text_of_type(const kvloom_tensor& t) {
  for (const NamedType& type : kTypes) {
    if (t.dtype_code == type.code && t.dtype_bits == type.bits && t.dtype_lanes == 1) return type.name;
  }
  const char* kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string kind = t.dtype_code < 7 ? kinds[t.dtype_code] : "dtype " + std::to_string(t.dtype_code) + "/";
  return kind == "bool" ? kind : kind + std::to_string(t.dtype_bits);
}

}  // namespace

void prepare_tensors() {
  names = {PyUnicode_InternFromString("__array_struct__"),
           PyUnicode_InternFromString("dtype"),
           PyUnicode_InternFromString("__dlpack__"),
           PyUnicode_InternFromString("__dlpack_device__"),
           Py_BuildValue("(ii)", 1, 3),
           Py_BuildValue("(ss)", "max_version", "stream"),
           Py_BuildValue("(s)", "max_version"),
           Py_BuildValue("(s)", "stream")};
}

std::string place_text(Place place) {
  if (!place.cuda) return "cpu";
  return place.device < 0 ? "cuda" : "cuda:" + std::to_string(place.device);
}

const char* dtype_name(int32_t dtype) { return dtype >= 0 && dtype < 5 ? kTypes[dtype].name : "an unknown dtype"; }

int32_t dtype_of_name(const char* name, const char* argument) {
  for (int32_t d = 0; d < 5; ++d) {
    if (std::strcmp(name, kTypes[d].name) == 0) return d;
  }
  raise_value_error(std::string("`") + argument + "`: expected 'f32', 'f16', 'bf16', 'e4m3' or 'e5m2', got '" + name + "'");
}

void TensorArg::release() {
  Py_XDECREF(capsule_);
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
  if (buffer_ != nullptr) {
    PyBuffer_Release(buffer_);
    delete buffer_;
  }
  capsule_ = nullptr;
  managed_ = nullptr;
  buffer_ = nullptr;
  object_ = nullptr;
}

/// Copies a view, strides made explicit.
void TensorArg::set(const kvloom_tensor& from) {
  if (from.ndim < 0 || from.ndim > kMaxDims) {
    raise_value_error(std::string("`") + name_ + "`: expected at most 4 dimensions, got " + std::to_string(from.ndim));
  }
  tensor_ = from;
  int64_t step = 1;
  for (int32_t d = from.ndim - 1; d >= 0; --d) {
    shape_[d] = from.shape[d];
    strides_[d] = from.strides != nullptr ? from.strides[d] : step;
    if (__builtin_mul_overflow(step, shape_[d] > 0 ? shape_[d] : 1, &step))
      raise_value_error(std::string("`") + name_ + "`: its shape is too large");
  }
  tensor_.shape = shape_;
  tensor_.strides = strides_;
}

void TensorArg::take(nb::handle object, const char* name) {
  release();
  name_ = name;
  read_only_ = of_jax_ = false;
  if (object.is_none() || !object.is_valid()) return;
  object_ = object.ptr();
  const TypeRoute& route = route_of(Py_TYPE(object_));
  of_jax_ = route.of_jax;
  switch (route.way) {
    case Way::exchange:
      take_exchange(*route.api);
      break;
    case Way::array_struct:
      take_array_struct();
      break;
    case Way::dlpack:
      take_dlpack(route);
      break;
    case Way::buffer:
      take_buffer();
      break;
  }
  read_only_ |= of_jax_;
}

void TensorArg::take_exchange(const dlpack::ExchangeApi& api) {
  if (api.view_of_object != nullptr) {
    kvloom_tensor view;
    if (api.view_of_object(object_, &view) == 0) return set(view);
  } else if (api.managed_from_object(object_, &managed_) == 0) {
    read_only_ = (managed_->flags & dlpack::kReadOnly) != 0;
    return set(managed_->tensor);
  }
  managed_ = nullptr;
  raise_value_error(std::string("`") + name_ + "`: its framework does not hand it out: " +
                    (PyErr_Occurred() ? take_exception_text() : std::string("no reason given")));
}

namespace {

/// What NumPy's __array_struct__ capsule points at.
struct ArrayInterface {
  int two, ndim;
  char kind;
  int itemsize, flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  // bytes
  void* data;
  PyObject* descr;
};
constexpr int kNativeOrder = 0x200, kWritable = 0x400;

/// Small floats of NumPy by the name of their dtype: float16, and those of ml_dtypes.
bool small_float_type(PyObject* array, kvloom_tensor& t) {
  static struct {
    PyObject* dtype;
    uint8_t code, bits;
  } known[8];
  const nb::object dtype = nb::steal(PyObject_GetAttr(array, names.dtype));
  if (!dtype.is_valid()) throw nb::python_error();
  for (auto& k : known) {
    if (k.dtype == dtype.ptr()) {
      t.dtype_code = k.code;
      t.dtype_bits = k.bits;
      return true;
    }
    if (k.dtype != nullptr) continue;
    const std::string name = nb::cast<std::string>(nb::object(dtype.attr("name")));
    const NamedType names[] = {{"float16", TypeCode::kFloat, 16},
                               {"bfloat16", TypeCode::kBfloat, 16},
                               {"float8_e4m3fn", TypeCode::kE4m3fn, 8},
                               {"float8_e5m2", TypeCode::kE5m2, 8}};
    for (const NamedType& n : names) {
      if (name != n.name) continue;
      k = {dtype.inc_ref().ptr(), n.code, n.bits};
      t.dtype_code = n.code;
      t.dtype_bits = n.bits;
      return true;
    }
    return false;
  }
  return false;
}

}  // namespace

void TensorArg::take_array_struct() {
  const nb::object capsule = nb::steal(PyObject_GetAttr(object_, names.array_struct));
  if (!capsule.is_valid()) throw nb::python_error();
  const auto* a = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (a == nullptr || a->two != 2) {
    PyErr_Clear();
    raise_type_error(std::string("`") + name_ + "`: its __array_struct__ is not NumPy's");
  }
  const bool native = (a->flags & kNativeOrder) != 0;
  kvloom_tensor t{a->data, dlpack::kCpu, 0, a->ndim, 0, uint8_t(a->itemsize * 8), 1, nullptr, nullptr, 0};
  bool known = native && a->ndim <= kMaxDims;
  switch (a->kind) {
    case 'f':
      t.dtype_code = TypeCode::kFloat;
      if (a->itemsize <= 2) known = known && small_float_type(object_, t);
      break;
    case 'V':
      known = known && small_float_type(object_, t);
      break;
    case 'i':
      t.dtype_code = TypeCode::kInt;
      break;
    case 'u':
      t.dtype_code = TypeCode::kUint;
      break;
    case 'b':
      t.dtype_code = TypeCode::kBool;
      break;
    default:
      known = false;
  }
  if (!known) {
    raise_type_error(std::string("`") + name_ + "`: got an array of dtype " +
                     nb::cast<std::string>(nb::str(nb::object(nb::handle(object_).attr("dtype")))) + " with " + std::to_string(a->ndim) +
                     " dimensions, expected numbers in native byte order and at most 4 dimensions");
  }
  int64_t shape[kMaxDims], strides[kMaxDims];
  for (int d = 0; d < a->ndim; ++d) {
    shape[d] = a->shape[d];
    strides[d] = a->strides[d] / a->itemsize;
    if (strides[d] * a->itemsize != a->strides[d]) {
      if (shape[d] > 1)
        raise_value_error(std::string("`") + name_ + "`: expected strides of whole elements, got " + std::to_string(a->strides[d]) +
                          " bytes for elements of " + std::to_string(a->itemsize));
      strides[d] = 0;
    }
  }
  t.shape = shape;
  t.strides = strides;
  read_only_ = (a->flags & kWritable) == 0;
  set(t);
}

namespace {

/// object.__dlpack__(...), new style and old.
nb::object call_dlpack(PyObject* object, bool old, PyObject* stream) {
  PyObject* args[] = {object, old ? stream : names.max_version, stream};
  PyObject* keywords = stream != nullptr ? (old ? names.stream_alone : names.version_and_stream) : (old ? nullptr : names.version_alone);
  return nb::steal(PyObject_VectorcallMethod(names.dlpack, args, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords));
}

}  // namespace

void TensorArg::take_dlpack(const TypeRoute& route) {
  const bool old = route.old_dlpack;
  bool on_gpu = false;
  const nb::object device =
      nb::steal(PyObject_VectorcallMethod(names.dlpack_device, &object_, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (device.is_valid() && PyTuple_Check(device.ptr()) && PyTuple_Size(device.ptr()) == 2) {
    on_gpu = PyLong_AsLong(PyTuple_GetItem(device.ptr(), 0)) == dlpack::kCuda;
  }
  PyErr_Clear();
  // On a GPU work is queued in the framework's own stream, where the tensor is ready: -1 asks for no synchronisation. JAX has no such stream, and takes
  // -1 for the address of one: nothing said, it waits until the tensor is ready.
  const nb::object stream = on_gpu && !of_jax_ ? nb::object(nb::int_(-1)) : nb::object();
  nb::object capsule = call_dlpack(object_, old, stream.ptr());
  if (!capsule.is_valid() && !old && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    capsule = call_dlpack(object_, true, stream.ptr());
    if (capsule.is_valid()) route_of(Py_TYPE(object_)).old_dlpack = true;
  }
  if (!capsule.is_valid()) {
    const std::string reason = take_exception_text();
    raise_value_error(std::string("`") + name_ + "`: its __dlpack__ refuses: " + reason);
  }
  // The capsule is kept as it is, not consumed: its own destructor gives the tensor back.
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* m = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (m->version.major != dlpack::kMajor) {
      raise_value_error(std::string("`") + name_ + "`: expected DLPack 1.x, got version " + std::to_string(m->version.major) + "." +
                        std::to_string(m->version.minor));
    }
    read_only_ = (m->flags & dlpack::kReadOnly) != 0;
    capsule_ = capsule.release().ptr();
    return set(m->tensor);
  }
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor")) raise_type_error(std::string("`") + name_ + "`: its __dlpack__ gives no tensor");
  const auto* m = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  capsule_ = capsule.release().ptr();
  set(m->tensor);
}

void TensorArg::take_buffer() {
  auto* buffer = new Py_buffer;
  if (PyObject_GetBuffer(object_, buffer, PyBUF_FULL_RO) != 0) {
    delete buffer;
    PyErr_Clear();
    const std::string type = class_name(object_);
    raise_type_error(std::string("`") + name_ + "`: expected a tensor (with __dlpack__ or a buffer: NumPy, torch, JAX, CuPy), got " + type);
  }
  buffer_ = buffer;
  const char* format = buffer->format != nullptr ? buffer->format : "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  kvloom_tensor t{buffer->buf, dlpack::kCpu, 0, buffer->ndim, 0, uint8_t(buffer->itemsize * 8), 1, nullptr, nullptr, 0};
  if (std::strlen(format) != 1 || buffer->suboffsets != nullptr || buffer->ndim > kMaxDims) {
    raise_type_error(std::string("`") + name_ + "`: got a buffer of format '" + buffer->format + "', expected plain numbers");
  }
  if (std::strchr("efd", *format)) {
    t.dtype_code = TypeCode::kFloat;
  } else if (std::strchr("bhilqn", *format)) {
    t.dtype_code = TypeCode::kInt;
  } else if (std::strchr("BHILQN", *format)) {
    t.dtype_code = TypeCode::kUint;
  } else if (*format == '?') {
    t.dtype_code = TypeCode::kBool;
  } else {
    raise_type_error(std::string("`") + name_ + "`: got a buffer of format '" + buffer->format + "', expected plain numbers");
  }
  int64_t shape[kMaxDims], strides[kMaxDims];
  for (int d = 0; d < buffer->ndim; ++d) {
    shape[d] = buffer->shape[d];
    strides[d] = buffer->strides[d] / buffer->itemsize;
  }
  t.shape = shape;
  t.strides = strides;
  read_only_ = buffer->readonly != 0;
  set(t);
}

bool TensorArg::is_at(Place place) const {
  const int32_t type = tensor_.device_type;
  if (!place.cuda) return on_host();
  return type == dlpack::kPinned || type == dlpack::kManagedMemory ||
         (type == dlpack::kCuda && (place.device < 0 || tensor_.device_id == place.device));
}

bool TensorArg::contiguous() const {
  int64_t step = 1;
  for (int32_t d = ndim() - 1; d >= 0; --d) {
    if (shape_[d] == 0) return true;
    if (shape_[d] != 1 && strides_[d] != step) return false;
    step *= shape_[d];
  }
  return true;
}

int64_t TensorArg::size() const {
  int64_t n = 1;
  for (int32_t d = 0; d < ndim(); ++d) n *= shape_[d];
  return n;
}

int32_t TensorArg::dtype() const {
  for (int32_t d = 0; d < 5; ++d) {
    if (is_type(kTypes[d].code, kTypes[d].bits)) return d;
  }
  return -1;
}

std::string TensorArg::type_text() const { return text_of_type(tensor_); }
std::string TensorArg::strides_text() const { return numbers_text(strides_, ndim()); }

std::string TensorArg::describe() const {
  std::string where;
  switch (tensor_.device_type) {
    case dlpack::kCpu:
    case dlpack::kPinned:
      where = "cpu";
      break;
    case dlpack::kCuda:
    case dlpack::kManagedMemory:
      where = "cuda:" + std::to_string(tensor_.device_id);
      break;
    default:
      where = "DLPack device " + std::to_string(tensor_.device_type) + ":" + std::to_string(tensor_.device_id);
  }
  return numbers_text(shape_, ndim()) + " " + type_text() + " on " + where;
}

}  // namespace kvloom::python
