// The CUDA driver, opened at run time (libcuda.so.1). No CUDA runtime, no toolkit: these are all the entries that kvloom calls.
#pragma once

#include "kvloom/jit/driver_types.h"
#include "kvloom/support/shared_library.h"

#include <cstddef>
#include <string>

namespace kvloom::jit {

/// Entry points, named as in the API without the prefix. Which exported symbol each is: driver.cc.
struct Driver {
  CuResult (*init)(unsigned flags) = nullptr;
  CuResult (*driver_get_version)(int* version) = nullptr;
  CuResult (*get_error_name)(CuResult, const char** text) = nullptr;
  CuResult (*get_error_string)(CuResult, const char** text) = nullptr;
  CuResult (*device_get_count)(int* count) = nullptr;
  CuResult (*device_get)(CuDevice*, int ordinal) = nullptr;
  CuResult (*device_get_name)(char* name, int bytes, CuDevice) = nullptr;
  CuResult (*device_get_attribute)(int* value, CuDeviceAttribute, CuDevice) = nullptr;
  CuResult (*device_total_mem)(size_t* bytes, CuDevice) = nullptr;
  CuResult (*device_primary_ctx_retain)(CuContext*, CuDevice) = nullptr;
  CuResult (*device_primary_ctx_release)(CuDevice) = nullptr;
  CuResult (*ctx_push_current)(CuContext) = nullptr;
  CuResult (*ctx_pop_current)(CuContext*) = nullptr;
  CuResult (*ctx_get_current)(CuContext*) = nullptr;
  CuResult (*ctx_get_device)(CuDevice*) = nullptr;
  CuResult (*ctx_synchronize)() = nullptr;
  CuResult (*module_load_data)(CuModule*, const void* image) = nullptr;
  CuResult (*module_unload)(CuModule) = nullptr;
  CuResult (*module_get_function)(CuFunction*, CuModule, const char* name) = nullptr;
  CuResult (*module_get_global)(CuAddress*, size_t* bytes, CuModule, const char* name) = nullptr;
  CuResult (*func_get_attribute)(int* value, CuFunctionAttribute, CuFunction) = nullptr;
  CuResult (*func_set_attribute)(CuFunction, CuFunctionAttribute, int value) = nullptr;
  CuResult (*occupancy_max_active_blocks)(int* blocks, CuFunction, int threads, size_t shared_bytes) = nullptr;
  CuResult (*mem_alloc)(CuAddress*, size_t bytes) = nullptr;
  CuResult (*mem_free)(CuAddress) = nullptr;
  CuResult (*mem_get_info)(size_t* free, size_t* total) = nullptr;
  CuResult (*mem_host_alloc)(void** host, size_t bytes, unsigned flags) = nullptr;
  CuResult (*mem_free_host)(void* host) = nullptr;
  CuResult (*memcpy_htod)(CuAddress, const void* from, size_t bytes) = nullptr;
  CuResult (*memcpy_dtoh)(void* to, CuAddress, size_t bytes) = nullptr;
  CuResult (*memcpy_htod_async)(CuAddress, const void* from, size_t bytes, CuStream) = nullptr;
  CuResult (*memcpy_dtoh_async)(void* to, CuAddress, size_t bytes, CuStream) = nullptr;
  CuResult (*memcpy_dtod_async)(CuAddress to, CuAddress from, size_t bytes, CuStream) = nullptr;
  CuResult (*memset_d8_async)(CuAddress, unsigned char value, size_t bytes, CuStream) = nullptr;
  CuResult (*memset_d32_async)(CuAddress, unsigned value, size_t words, CuStream) = nullptr;
  CuResult (*pointer_get_attributes)(unsigned count, CuPointerAttribute*, void** values, CuAddress) = nullptr;
  CuResult (*stream_create)(CuStream*, unsigned flags) = nullptr;
  CuResult (*stream_destroy)(CuStream) = nullptr;
  CuResult (*stream_synchronize)(CuStream) = nullptr;
  CuResult (*stream_wait_event)(CuStream, CuEvent, unsigned flags) = nullptr;
  CuResult (*stream_is_capturing)(CuStream, CuCaptureStatus*) = nullptr;
  CuResult (*thread_exchange_capture_mode)(CuCaptureMode*) = nullptr;
  CuResult (*stream_begin_capture)(CuStream, CuCaptureMode) = nullptr;
  CuResult (*stream_end_capture)(CuStream, CuGraph*) = nullptr;
  CuResult (*graph_instantiate)(CuGraphExec*, CuGraph, unsigned long long flags) = nullptr;
  CuResult (*graph_launch)(CuGraphExec, CuStream) = nullptr;
  CuResult (*graph_destroy)(CuGraph) = nullptr;
  CuResult (*graph_exec_destroy)(CuGraphExec) = nullptr;
  CuResult (*event_create)(CuEvent*, unsigned flags) = nullptr;
  CuResult (*event_destroy)(CuEvent) = nullptr;
  CuResult (*event_record)(CuEvent, CuStream) = nullptr;
  CuResult (*event_query)(CuEvent) = nullptr;
  CuResult (*event_synchronize)(CuEvent) = nullptr;
  CuResult (*event_elapsed_time)(float* ms, CuEvent begin, CuEvent end) = nullptr;
  /// Since CUDA 12; nullptr in an older driver: its chips have no use for it.
  CuResult (*tensor_map_encode_tiled)(void* map, CuTensorMapType, unsigned rank, const void* tensor, const uint64_t* dims, const uint64_t* strides,
                                      const unsigned* box, const unsigned* steps, int interleave, CuTensorMapSwizzle, int promotion, int fill) = nullptr;
  CuResult (*launch_kernel_ex)(const CuLaunchConfig*, CuFunction, void** args, void** extra) = nullptr;

  int version = 0;  // 13000: CUDA 13.0
  SharedLibrary library;
};

/// The driver, opened and initialised once a process; nullptr if this machine has none that serves: `why` then says what and the remedy.
const Driver* find_driver(std::string& why);
/// The driver, or Error(unsupported) with that reason.
const Driver& driver();

/// Throws unless `result` is success: "cuMemAlloc: 2: CUDA_ERROR_OUT_OF_MEMORY: out of memory (what)". Out of memory has its own code.
[[noreturn]] void fail_driver(CuResult result, const char* call, const std::string& what);
inline void check_driver(CuResult result, const char* call, const char* what = "") {
  if (result != kCuSuccess) [[unlikely]] fail_driver(result, call, what);
}
inline void check_driver(CuResult result, const char* call, const std::string& what) { check_driver(result, call, what.c_str()); }

}  // namespace kvloom::jit
