// The kernels around attention on a GPU: one unit a device, loaded once a process, and launches that put work into a stream and return.
#pragma once

#include "kvloom/contract/op_args.h"
#include "kvloom/runtime/device.h"

namespace kvloom::runtime {

/// Compiles (or finds in the cache) and loads the kernels of `device`: what the first operation there does, and what has to be done before
/// a capture. Safe from any thread.
void load_ops(const Device& device);

/// Everything has been checked; pointers are the device's. Refused under capture if the kernels are not loaded.
void launch_append_kv(const Device& device, AppendArgs args, jit::CuStream stream);
void launch_apply_rope(const Device& device, RopeArgs args, jit::CuStream stream);
void launch_merge_states(const Device& device, MergeArgs args, jit::CuStream stream, const char* where);

}  // namespace kvloom::runtime
