// From the C structs to the C++ ones, whatever version of the header the caller was built with; and from exceptions to statuses.
#pragma once

#include "kvloom/api/kvloom_device_plan.h"
#include "kvloom/api/ops.h"

#include <cstring>

namespace kvloom::api {

/// Sets the calling thread's last error. `message` nullptr: out of memory.
kvloom_status set_last_error(kvloom_status status, const char* message) noexcept;
/// The status of the exception in flight, its message kept as the last error. Call within a catch block.
kvloom_status status_of_exception() noexcept;

/// Runs f and turns what it throws into a status.
template <class F>
kvloom_status guarded(F&& f) noexcept {
  try {
    f();
    return KVLOOM_OK;
  } catch (...) {
    return status_of_exception();
  }
}

/// Throws invalid_argument for a null `p`: "function: name: got a null pointer".
void require_pointer(const void* p, const char* function, const char* name);

/// `host_only`: refuses tensors in device memory. `function`: the caller's, for the message.
Tensor tensor_of(const kvloom_tensor* t, const char* function, const char* name, bool host_only = true);
IndexView indices_of(const kvloom_indices& i, const char* function, const char* name);
RopeSpec rope_of(const kvloom_rope* rope);
ScaleParams scales_of(const kvloom_scales* scales);
AttentionSpec spec_of(const kvloom_spec* spec);
Capacity capacity_of(const kvloom_capacity* capacity);
EngineOptions options_of(const kvloom_options* options);
AppendBatch append_batch_of(const kvloom_append_batch* batch, const char* function);
OpOptions op_options_of(const kvloom_op_options* options);  // nullptr: the CPU

// Structs that begin with struct_size are read as far as the caller's size goes, over the defaults of this library. They throw if the size
// is absurd, or if bytes are set that this library does not know.

/// A batch, with the memory of its level groups.
struct BatchCopy {
  Batch batch;
  std::vector<LevelGroup> groups;
};
void batch_of(const kvloom_batch* from, BatchCopy& to, const char* function);
DeviceBatch device_batch_of(const kvloom_device_batch* from, const char* function);

/// Tensors, with the memory of a variant's parameters.
struct RunCopy {
  RunTensors tensors;
  std::vector<VariantParam> params;
};
void run_tensors_of(const kvloom_run_tensors* from, RunCopy& to, const char* function);

/// A copy of `text` for kvloom_string_free.
char* string_for_caller(const std::string& text);

}  // namespace kvloom::api
