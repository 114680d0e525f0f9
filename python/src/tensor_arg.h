// A tensor argument: a view of memory that a Python object owns, whatever framework it is of. Nothing is copied.
#pragma once

#include "kvloom/api/kvloom.h"
#include "python/src/dlpack.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace kvloom::python {

namespace nb = nanobind;

struct TypeRoute;

/// Where an engine or an operation runs.
struct Place {
  bool cuda = false;
  int32_t device = 0;  // ordinal, with cuda; -1: any, of an engine without a device (Options.cuda_arch)
};

std::string place_text(Place place);

/// Once, before any tensor is taken.
void prepare_tensors();

/// Taken from an object by, in this order: __dlpack_c_exchange_api__ of its type; NumPy's __array_struct__ (which also knows bfloat16 and
/// fp8 of ml_dtypes, and views that can't be written); __dlpack__, versioned and not; the buffer protocol. The object must live as long as
/// this.
class TensorArg {
 public:
  static constexpr int32_t kMaxDims = 8;

  TensorArg() = default;
  TensorArg(const TensorArg&) = delete;
  TensorArg& operator=(const TensorArg&) = delete;
  ~TensorArg() { release(); }

  /// None: not given. `name` is the argument's, for messages, kept by pointer. Raises TypeError for what is no tensor.
  void take(nb::handle object, const char* name);

  bool given() const { return object_ != nullptr; }
  const char* name() const { return name_; }
  PyObject* object() const { return object_; }
  const kvloom_tensor* c() const { return given() ? &tensor_ : nullptr; }
  const void* data() const { return static_cast<const char*>(tensor_.data) + tensor_.byte_offset; }
  int32_t ndim() const { return tensor_.ndim; }
  int64_t shape(int32_t d) const { return tensor_.shape[d]; }
  int64_t stride(int32_t d) const { return tensor_.strides[d]; }
  bool is_type(uint8_t code, uint8_t bits) const {
    return tensor_.dtype_code == code && tensor_.dtype_bits == bits && tensor_.dtype_lanes == 1;
  }
  bool on_host() const { return tensor_.device_type == dlpack::kCpu || tensor_.device_type == dlpack::kPinned; }
  bool is_at(Place place) const;
  bool read_only() const { return read_only_; }
  /// On a GPU, of a framework without a stream to work in (JAX): it is ready now, and must live until what reads it is done.
  bool streamless() const { return of_jax_ && place().cuda; }
  bool contiguous() const;
  int64_t size() const;
  Place place() const { return {tensor_.device_type == dlpack::kCuda || tensor_.device_type == dlpack::kManagedMemory, tensor_.device_id}; }

  /// KVLOOM_F32 ...; -1 for other types.
  int32_t dtype() const;
  /// "[5, 32, 128] bf16 on cuda:0".
  std::string describe() const;
  std::string strides_text() const;
  /// "bf16", "int32", ...
  std::string type_text() const;

 private:
  void release();
  void take_exchange(const dlpack::ExchangeApi& api);
  void take_array_struct();
  void take_dlpack(const TypeRoute& route);
  void take_buffer();
  void set(const kvloom_tensor& from);

  kvloom_tensor tensor_{};
  int64_t shape_[kMaxDims];
  int64_t strides_[kMaxDims];
  const char* name_ = "";
  PyObject* object_ = nullptr;   // the caller's
  PyObject* capsule_ = nullptr;  // ours: keeps what __dlpack__ exported
  dlpack::ManagedTensorVersioned* managed_ = nullptr;
  Py_buffer* buffer_ = nullptr;
  bool read_only_ = false, of_jax_ = false;
};

/// What an argument has to be. Sizes of -1 are free and show their label.
struct Wanted {
  int32_t dtype;  // KVLOOM_F32 ...
  Place place;
  int32_t ndim;
  int64_t shape[4];
  const char* labels[4];
  bool written = false;
  bool contiguous = false;
};

/// Raises "`q`: expected [5, 32, 128] bf16 on cuda:0, got [5, 8, 64] f32 on cpu; ...": TypeError for a wrong dtype, else ValueError.
void require(const TensorArg& tensor, const Wanted& wanted);

const char* dtype_name(int32_t dtype);
/// Raises ValueError for names that are none of f32, f16, bf16, e4m3, e5m2.
int32_t dtype_of_name(const char* name, const char* argument);

/// The stream that the framework of a tensor on a GPU works in now; nullptr: the default stream. Nothing is imported: a framework whose
/// tensor this is has been.
void* current_stream(const TensorArg& tensor);
/// A caller's `stream`: None, an integer, or an object with cuda_stream (torch), ptr (CuPy) or handle. None: current_stream(tensor).
void* stream_of(nb::handle stream, const TensorArg& tensor);
/// Waits for `stream`, with the GIL released.
void wait_for_stream(int32_t device, void* stream);

}  // namespace kvloom::python
