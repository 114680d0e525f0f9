#include "kvloom/jit/driver.h"

#include "kvloom/support/check.h"
#include "kvloom/support/files.h"

namespace kvloom::jit {
namespace {

constexpr int kOldestDriver = 11080;  // cuLaunchKernelEx

/// Every entry with its exported name. "" or the first that is missing.
std::string load_entries(Driver& d) {
  std::string missing;
  const SharedLibrary& l = d.library;
  l.find(d.init, "cuInit", missing);
  l.find(d.driver_get_version, "cuDriverGetVersion", missing);
  l.find(d.get_error_name, "cuGetErrorName", missing);
  l.find(d.get_error_string, "cuGetErrorString", missing);
  l.find(d.device_get_count, "cuDeviceGetCount", missing);
  l.find(d.device_get, "cuDeviceGet", missing);
  l.find(d.device_get_name, "cuDeviceGetName", missing);
  l.find(d.device_get_attribute, "cuDeviceGetAttribute", missing);
  l.find(d.device_total_mem, "cuDeviceTotalMem_v2", missing);
  l.find(d.device_primary_ctx_retain, "cuDevicePrimaryCtxRetain", missing);
  l.find(d.device_primary_ctx_release, "cuDevicePrimaryCtxRelease_v2", missing);
  l.find(d.ctx_push_current, "cuCtxPushCurrent_v2", missing);
  l.find(d.ctx_pop_current, "cuCtxPopCurrent_v2", missing);
  l.find(d.ctx_get_current, "cuCtxGetCurrent", missing);
  l.find(d.ctx_get_device, "cuCtxGetDevice", missing);
  l.find(d.ctx_synchronize, "cuCtxSynchronize", missing);
  l.find(d.module_load_data, "cuModuleLoadData", missing);
  l.find(d.module_unload, "cuModuleUnload", missing);
  l.find(d.module_get_function, "cuModuleGetFunction", missing);
  l.find(d.module_get_global, "cuModuleGetGlobal_v2", missing);
  l.find(d.func_get_attribute, "cuFuncGetAttribute", missing);
  l.find(d.func_set_attribute, "cuFuncSetAttribute", missing);
  l.find(d.occupancy_max_active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", missing);
  l.find(d.mem_alloc, "cuMemAlloc_v2", missing);
  l.find(d.mem_free, "cuMemFree_v2", missing);
  l.find(d.mem_get_info, "cuMemGetInfo_v2", missing);
  l.find(d.mem_host_alloc, "cuMemHostAlloc", missing);
  l.find(d.mem_free_host, "cuMemFreeHost", missing);
  l.find(d.memcpy_htod, "cuMemcpyHtoD_v2", missing);
  l.find(d.memcpy_dtoh, "cuMemcpyDtoH_v2", missing);
  l.find(d.memcpy_htod_async, "cuMemcpyHtoDAsync_v2", missing);
  l.find(d.memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2", missing);
  l.find(d.memcpy_dtod_async, "cuMemcpyDtoDAsync_v2", missing);
  l.find(d.memset_d8_async, "cuMemsetD8Async", missing);
  l.find(d.memset_d32_async, "cuMemsetD32Async", missing);
  l.find(d.pointer_get_attributes, "cuPointerGetAttributes", missing);
  return missing;
}

std::string load_stream_entries(Driver& d) {
  std::string missing;
  const SharedLibrary& l = d.library;
  l.find(d.stream_create, "cuStreamCreate", missing);
  l.find(d.stream_destroy, "cuStreamDestroy_v2", missing);
  l.find(d.stream_synchronize, "cuStreamSynchronize", missing);
  l.find(d.stream_wait_event, "cuStreamWaitEvent", missing);
  l.find(d.stream_is_capturing, "cuStreamIsCapturing", missing);
  l.find(d.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", missing);
  l.find(d.stream_begin_capture, "cuStreamBeginCapture_v2", missing);
  l.find(d.stream_end_capture, "cuStreamEndCapture", missing);
  l.find(d.graph_instantiate, "cuGraphInstantiateWithFlags", missing);
  l.find(d.graph_launch, "cuGraphLaunch", missing);
  l.find(d.graph_destroy, "cuGraphDestroy", missing);
  l.find(d.graph_exec_destroy, "cuGraphExecDestroy", missing);
  l.find(d.event_create, "cuEventCreate", missing);
  l.find(d.event_destroy, "cuEventDestroy_v2", missing);
  l.find(d.event_record, "cuEventRecord", missing);
  l.find(d.event_query, "cuEventQuery", missing);
  l.find(d.event_synchronize, "cuEventSynchronize", missing);
  l.find(d.event_elapsed_time, "cuEventElapsedTime", missing);
  l.find(d.launch_kernel_ex, "cuLaunchKernelEx", missing);
  std::string none;
  l.find(d.tensor_map_encode_tiled, "cuTensorMapEncodeTiled", none);
  return missing;
}

std::string words_of(const Driver& d, CuResult result) {
  const char *name = nullptr, *text = nullptr;
  if (d.get_error_name == nullptr || d.get_error_name(result, &name) != kCuSuccess || name == nullptr) name = "an unknown error";
  if (d.get_error_string == nullptr || d.get_error_string(result, &text) != kCuSuccess || text == nullptr) text = "no description";
  return kvloom::format("{}: {}: {}", result, name, text);
}

struct Search {
  Driver driver;
  std::string why;  // "" if it serves
};

Search open_driver() {
  Search s;
  Driver& d = s.driver;
  std::string why;
  const std::string asked = environment("KVLOOM_CUDA_DRIVER");
  d.library = SharedLibrary::open(asked.empty() ? "libcuda.so.1" : asked, why);
  if (!d.library) {
    s.why = asked.empty() ? "no NVIDIA driver: libcuda.so.1 was not found; install the driver, or use the CPU backend"
                          : kvloom::format("no NVIDIA driver at KVLOOM_CUDA_DRIVER={}: {}; unset it, or use the CPU backend", asked, why);
    return s;
  }
  std::string missing = load_entries(d);
  if (missing.empty()) missing = load_stream_entries(d);
  if (d.driver_get_version != nullptr) d.driver_get_version(&d.version);
  if (!missing.empty() || d.version < kOldestDriver) {
    s.why = kvloom::format("the NVIDIA driver is too old: got one for CUDA {}.{}{}{}, wanted 11.8 or newer; update the driver",
                           d.version / 1000, d.version % 1000 / 10, missing.empty() ? "" : " without ", missing);
    return s;
  }
  const CuResult started = d.init(0);
  if (started != kCuSuccess) {
    s.why = kvloom::format("the NVIDIA driver does not start: cuInit: {}; look at nvidia-smi", words_of(d, started));
  }
  return s;
}

/// Opened once and never closed: kernels of other threads may run until the process ends.
const Search& search() {
  static const Search* const s = new Search(open_driver());
  return *s;
}

}  // namespace

const Driver* find_driver(std::string& why) {
  const Search& s = search();
  why = s.why;
  return s.why.empty() ? &s.driver : nullptr;
}

const Driver& driver() {
  const Search& s = search();
  if (!s.why.empty()) fail(ErrorCode::unsupported, "cuda: {}", s.why);
  return s.driver;
}

void fail_driver(CuResult result, const char* call, const std::string& what) {
  const std::string text = words_of(search().driver, result);
  const ErrorCode code = result == kCuOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::io;
  // Whatever loads, allocates or waits has to be done before.
  const char* remedy = result == kCuCaptureUnsupported ? "; not while a stream of this thread is being captured: make engines and plans, and load operations (load_ops), before that" : "";
  fail(code, "cuda: {}: got error {}{}{}{}", call, text, what.empty() ? "" : "; ", what, remedy);
}

}  // namespace kvloom::jit
