// DLPack 1.3, as far as it is read here: the published binary interface by which frameworks hand tensors to each other. The tensor itself
// is kvloom_tensor, which has DLTensor's layout.
#pragma once

#include "kvloom/api/kvloom.h"

#include <cstddef>
#include <cstdint>

namespace kvloom::python::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kPinned = 3, kManagedMemory = 13 };
enum TypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6, kE4m3fn = 10, kE5m2 = 12 };

constexpr uint64_t kReadOnly = 1;  // a flag of ManagedTensorVersioned
constexpr uint32_t kMajor = 1;     // of the versions that are understood

struct Version {
  uint32_t major, minor;
};

struct ManagedTensor {  // capsules "dltensor"
  kvloom_tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

struct ManagedTensorVersioned {  // capsules "dltensor_versioned"
  Version version;
  void* manager;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  kvloom_tensor tensor;
};

/// A table of functions that a tensor type offers as __dlpack_c_exchange_api__: no capsule, no Python call. 0 is success; after anything
/// else a Python error is set.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(kvloom_tensor* prototype, ManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void*, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensorVersioned** out);
  int (*object_from_managed)(ManagedTensorVersioned* tensor, void** object);
  int (*view_of_object)(void* object, kvloom_tensor* out);  // may be null; the object owns what `out` points at
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

static_assert(sizeof(kvloom_tensor) == 48 && offsetof(ManagedTensorVersioned, tensor) == 32);
static_assert(offsetof(ExchangeApi, allocate) == 16 && offsetof(ExchangeApi, current_stream) == 48);

}  // namespace kvloom::python::dlpack
