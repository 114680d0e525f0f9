// A CUDA driver without a GPU, for tests of everything around the kernels. It is as late as a driver may be: what is put into a stream is
// done when somebody waits for it, and only as much of it as that needs. Device memory can't be touched outside of such work. "Kernels" are
// fake_kernels.cc. Under capture it refuses what a driver refuses.
#include "kvloom/jit/driver_types.h"
#include "kvloom/contract/attend_boxes.h"
#include "tests/cuda/fake_cubin.h"
#include "tests/cuda/fake_kernels.h"
#include "tests/cuda/fake_machine.h"
#include "tests/cuda/fake_tensor_map.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {

using namespace kvloom;
using namespace kvloom::jit;
using namespace kvloom::test::fake;

struct Graph {
  std::vector<Operation> operations;
};
struct Module {
  test::FakeCubin cubin;
};
struct Function {
  Module* module;
  std::string name;
};

std::recursive_mutex mutex;
std::map<std::string, long long> counts;
std::string last_entry;
AttentionSpec spec_override;
bool has_spec_override = false;
int last_early = 0, occupancy = -1;

}  // namespace

#define LOCKED(NAME)                                       \
  const std::lock_guard<std::recursive_mutex> lock(mutex); \
  ++counts[NAME]

extern "C" {

void fake_reset() {
  counts.clear();
  free_bytes = kDeviceBytes;
}
void fake_set_spec(const AttentionSpec* spec) {
  has_spec_override = spec != nullptr;
  if (spec != nullptr) spec_override = *spec;
}
long long fake_count(const char* what) { return counts[what]; }
void fake_set_occupancy(int ctas) { occupancy = ctas; }
void fake_set_free_bytes(long long bytes) { free_bytes = bytes; }
const char* fake_last_entry() { return last_entry.c_str(); }
int fake_last_early() { return last_early; }

CuResult cuInit(unsigned) { return kCuSuccess; }
CuResult cuDriverGetVersion(int* v) { return *v = 13000, kCuSuccess; }
CuResult cuGetErrorName(CuResult r, const char** t) {
  *t = r == kCuOutOfMemory        ? "CUDA_ERROR_OUT_OF_MEMORY"
       : r == kCaptureUnsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                                  : "CUDA_ERROR_FAKE";
  return kCuSuccess;
}
CuResult cuGetErrorString(CuResult, const char** t) { return *t = "said by the fake driver", kCuSuccess; }
CuResult cuDeviceGetCount(int* n) { return *n = kDevices, kCuSuccess; }
CuResult cuDeviceGet(CuDevice* d, int i) { return *d = i, i < kDevices ? kCuSuccess : kInvalid; }
CuResult cuDeviceGetName(char* name, int bytes, CuDevice d) { return std::snprintf(name, size_t(bytes), "Fake %d", d), kCuSuccess; }
CuResult cuDeviceGetAttribute(int* v, CuDeviceAttribute a, CuDevice) {
  switch (a) {
    case kCuComputeCapabilityMajor:
      return *v = 9, kCuSuccess;
    case kCuComputeCapabilityMinor:
      return *v = 0, kCuSuccess;
    case kCuMultiprocessorCount:
      return *v = 5, kCuSuccess;
    case kCuClockRateKhz:
      return *v = 1980000, kCuSuccess;
    case kCuMaxSharedBytesPerBlockOptin:
      return *v = 227 * 1024, kCuSuccess;
    case kCuMaxSharedBytesPerMultiprocessor:
      return *v = 228 * 1024, kCuSuccess;
    default:
      return *v = 1000, kCuSuccess;
  }
}
CuResult cuDeviceTotalMem_v2(size_t* n, CuDevice) { return *n = size_t(kDeviceBytes), kCuSuccess; }
CuResult cuDevicePrimaryCtxRetain(CuContext* c, CuDevice d) { return *c = context_of(d), kCuSuccess; }
CuResult cuDevicePrimaryCtxRelease_v2(CuDevice) { return kCuSuccess; }
CuResult cuCtxPushCurrent_v2(CuContext c) { return contexts.push_back(c), kCuSuccess; }
CuResult cuCtxPopCurrent_v2(CuContext* c) { return *c = contexts.back(), contexts.pop_back(), kCuSuccess; }
CuResult cuCtxGetCurrent(CuContext* c) { return *c = contexts.empty() ? nullptr : contexts.back(), kCuSuccess; }
CuResult cuCtxGetDevice(CuDevice* d) { return *d = current_device(), kCuSuccess; }
CuResult cuCtxSynchronize() {
  LOCKED("cuCtxSynchronize");
  return drain_all(), kCuSuccess;
}
CuResult cuModuleLoadData(CuModule* m, const void* image) {
  LOCKED("cuModuleLoadData");
  if (anything_capturing()) return kCaptureUnsupported;
  auto* module = keep(new Module);
  std::memcpy(&module->cubin, image, sizeof module->cubin);
  if (std::memcmp(module->cubin.magic, test::FakeCubin().magic, 8) != 0) return kInvalid;
  return *m = reinterpret_cast<CuModule>(module), kCuSuccess;
}
CuResult cuModuleUnload(CuModule) { return kCuSuccess; }
CuResult cuModuleGetFunction(CuFunction* f, CuModule m, const char* name) {
  return *f = reinterpret_cast<CuFunction>(keep(new Function{reinterpret_cast<Module*>(m), name})), kCuSuccess;
}
CuResult cuModuleGetGlobal_v2(CuAddress* a, size_t* bytes, CuModule m, const char* name) {
  test::FakeCubin& cubin = reinterpret_cast<Module*>(m)->cubin;
  const std::map<std::string, KernelFacts*> all = {{"attend_memory_facts", &cubin.memory},
                                                   {"attend_compute_facts", &cubin.compute},
                                                   {"attend_mixed_facts", &cubin.mixed},
                                                   {"attend_small_facts", &cubin.small},
                                                   {"attend_memory_32_facts", &cubin.memory_32}};
  const auto found = all.find(name);
  if (found == all.end()) return kNotFound;
  *a = reinterpret_cast<CuAddress>(found->second);
  return *bytes = sizeof(KernelFacts), kCuSuccess;
}
CuResult cuFuncGetAttribute(int* v, CuFunctionAttribute a, CuFunction) { return *v = a == kCuFunctionRegisters ? 128 : 0, kCuSuccess; }
CuResult cuFuncSetAttribute(CuFunction, CuFunctionAttribute, int) { return kCuSuccess; }
CuResult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CuFunction, int, size_t shared) {
  return *n = occupancy >= 0 ? occupancy : int(228 * 1024 / (shared + 1024)), kCuSuccess;
}
CuResult cuMemAlloc_v2(CuAddress* a, size_t bytes) {
  LOCKED("cuMemAlloc");
  uintptr_t at = 0;
  const CuResult r = allocate(bytes, false, at);
  return *a = at, r;
}
CuResult cuMemFree_v2(CuAddress a) {
  LOCKED("cuMemFree");
  return spoils_a_capture() ? kCaptureUnsupported : release(a);
}
CuResult cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = size_t(free_bytes), *total = size_t(kDeviceBytes), kCuSuccess; }
CuResult cuMemHostAlloc(void** p, size_t bytes, unsigned) {
  LOCKED("cuMemHostAlloc");
  uintptr_t at = 0;
  const CuResult r = allocate(bytes, true, at);
  return *p = reinterpret_cast<void*>(at), r;
}
CuResult cuMemFreeHost(void* p) {
  LOCKED("cuMemFreeHost");
  return spoils_a_capture() ? kCaptureUnsupported : release(reinterpret_cast<uintptr_t>(p));
}
CuResult cuMemcpyHtoD_v2(CuAddress to, const void* from, size_t bytes) {
  LOCKED("cuMemcpyHtoD");
  const Open open;
  drain_all();
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), kCuSuccess;
}
CuResult cuMemcpyDtoH_v2(void* to, CuAddress from, size_t bytes) {
  LOCKED("cuMemcpyDtoH");
  const Open open;
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), kCuSuccess;
}
CuResult cuMemcpyHtoDAsync_v2(CuAddress to, const void* from, size_t bytes, CuStream s) {
  LOCKED("cuMemcpyHtoDAsync");
  counts["cuMemcpyHtoDAsync bytes"] += (long long)bytes;
  return put(s, {[=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); }}), kCuSuccess;
}
CuResult cuMemcpyDtoHAsync_v2(void* to, CuAddress from, size_t bytes, CuStream s) {
  LOCKED("cuMemcpyDtoHAsync");
  return put(s, {[=] { std::memcpy(to, reinterpret_cast<void*>(from), bytes); }}), kCuSuccess;
}
CuResult cuMemcpyDtoDAsync_v2(CuAddress to, CuAddress from, size_t bytes, CuStream s) {
  LOCKED("cuMemcpyDtoDAsync");
  return put(s, {[=] { std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); }}), kCuSuccess;
}
CuResult cuMemsetD8Async(CuAddress to, unsigned char v, size_t bytes, CuStream s) {
  LOCKED("cuMemsetD8Async");
  return put(s, {[=] { std::memset(reinterpret_cast<void*>(to), v, bytes); }}), kCuSuccess;
}
CuResult cuMemsetD32Async(CuAddress, unsigned, size_t, CuStream) { return kInvalid; }
CuResult cuPointerGetAttributes(unsigned count, CuPointerAttribute* asked, void** answers, CuAddress p) {
  LOCKED("cuPointerGetAttributes");
  for (unsigned i = 0; i < count; ++i) *static_cast<unsigned*>(answers[i]) = 0;
  auto at = blocks.upper_bound(p);
  if (at == blocks.begin()) return kCuSuccess;
  --at;
  if (p >= at->first + at->second.mapped) return kCuSuccess;
  const Block& b = at->second;
  const unsigned type = b.pinned ? kCuMemoryHost : kCuMemoryDevice;
  for (unsigned i = 0; i < count; ++i) {
    *static_cast<unsigned*>(answers[i]) = asked[i] == kCuPointerMemoryType ? type : asked[i] == kCuPointerDeviceOrdinal ? unsigned(b.device) : 0;
  }
  return kCuSuccess;
}
CuResult cuStreamCreate(CuStream* s, unsigned) {
  LOCKED("cuStreamCreate");
  auto* stream = keep(new Stream);
  all_streams().push_back(stream);
  return *s = reinterpret_cast<CuStream>(stream), kCuSuccess;
}
CuResult cuStreamDestroy_v2(CuStream s) {
  LOCKED("cuStreamDestroy");
  drain(*of(s));  // kept: events may still name it
  return kCuSuccess;
}
CuResult cuStreamSynchronize(CuStream s) {
  LOCKED("cuStreamSynchronize");
  if (of(s)->capturing) return kCaptureUnsupported;
  return drain(*of(s)), kCuSuccess;
}
CuResult cuStreamWaitEvent(CuStream s, CuEvent e, unsigned) {
  LOCKED("cuStreamWaitEvent");
  if (of(s)->capturing) return kCaptureUnsupported;  // of an event from outside the capture
  auto* event = reinterpret_cast<FakeEvent*>(e);
  if (event->recorded == 0) return kCuSuccess;
  return put(s, {{}, nullptr, event->recorded, event, event->stream}), kCuSuccess;
}
CuResult cuStreamIsCapturing(CuStream s, CuCaptureStatus* status) {
  LOCKED("cuStreamIsCapturing");
  return *status = of(s)->capturing ? kCuCaptureActive : kCuCaptureNone, kCuSuccess;
}
CuResult cuThreadExchangeStreamCaptureMode(CuCaptureMode* mode) { return std::swap(*mode, thread_mode), kCuSuccess; }
CuResult cuStreamBeginCapture_v2(CuStream s, CuCaptureMode mode) {
  LOCKED("cuStreamBeginCapture");
  of(s)->spoiled = false;
  of(s)->mode = mode;
  of(s)->captured_by = std::this_thread::get_id();
  return of(s)->capturing = true, kCuSuccess;
}
CuResult cuStreamEndCapture(CuStream s, CuGraph* g) {
  LOCKED("cuStreamEndCapture");
  of(s)->capturing = false;
  if (of(s)->spoiled) return of(s)->captured.clear(), kCaptureInvalidated;
  return *g = reinterpret_cast<CuGraph>(new Graph{std::move(of(s)->captured)}), of(s)->captured.clear(), kCuSuccess;
}
CuResult cuGraphInstantiateWithFlags(CuGraphExec* e, CuGraph g, unsigned long long) {
  return *e = reinterpret_cast<CuGraphExec>(new Graph(*reinterpret_cast<Graph*>(g))), kCuSuccess;
}
CuResult cuGraphLaunch(CuGraphExec e, CuStream s) {
  LOCKED("cuGraphLaunch");
  for (const Operation& op : reinterpret_cast<Graph*>(e)->operations) put(s, op);
  return kCuSuccess;
}
CuResult cuGraphDestroy(CuGraph g) { return delete reinterpret_cast<Graph*>(g), kCuSuccess; }
CuResult cuGraphExecDestroy(CuGraphExec e) { return delete reinterpret_cast<Graph*>(e), kCuSuccess; }
CuResult cuEventCreate(CuEvent* e, unsigned) { return *e = reinterpret_cast<CuEvent>(new FakeEvent), kCuSuccess; }
CuResult cuEventDestroy_v2(CuEvent e) {
  LOCKED("cuEventDestroy");
  return keep(e), kCuSuccess;  // queues may still name it
}
CuResult cuEventRecord(CuEvent e, CuStream s) {
  LOCKED("cuEventRecord");
  if (of(s)->capturing) return kNotPermitted;
  auto* event = reinterpret_cast<FakeEvent*>(e);
  event->stream = of(s);
  Operation op;
  op.reaches = event;
  op.number = ++event->recorded;
  return put(s, std::move(op)), kCuSuccess;
}
CuResult cuEventQuery(CuEvent e) {
  auto* event = reinterpret_cast<FakeEvent*>(e);
  return event->done == event->recorded ? kCuSuccess : kCuNotReady;
}
CuResult cuEventSynchronize(CuEvent e) {
  LOCKED("cuEventSynchronize");
  auto* event = reinterpret_cast<FakeEvent*>(e);
  if (event->done < event->recorded) drain(*event->stream, event, event->recorded);
  return kCuSuccess;
}
CuResult cuEventElapsedTime(float* ms, CuEvent, CuEvent) { return *ms = 1.0f, kCuSuccess; }
CuResult cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* tensor, const uint64_t* dims, const uint64_t* strides, const unsigned* box,
                                const unsigned*, int, int swizzle, int, int) {
  LOCKED("cuTensorMapEncodeTiled");
  if (reinterpret_cast<uintptr_t>(tensor) % 16 != 0) return kInvalid;
  for (unsigned i = 0; i < rank; ++i) {
    if (dims[i] == 0 || dims[i] > 1ull << 32 || box[i] == 0 || box[i] > 256) return kInvalid;
    if (i + 1 < rank && (strides[i] == 0 || strides[i] % 16 != 0 || strides[i] >= 1ull << 40)) return kInvalid;
  }
  test::FakeTensorMap m{static_cast<const char*>(tensor), {}, {}, {}, uint16_t(swizzle == 0 ? 0 : 16 << swizzle), uint16_t(type == kCuTensorMapU8 ? 1 : 2)};
  for (unsigned i = 0; i < rank; ++i) {
    m.dims[i] = uint32_t(dims[i]), m.box[i] = uint16_t(box[i]);
    if (i + 1 < rank) m.strides[i] = strides[i];
  }
  std::memset(map, 0, 128);
  return std::memcpy(map, &m, sizeof m), kCuSuccess;
}
CuResult cuLaunchKernelEx(const CuLaunchConfig* c, CuFunction f, void** list, void**) {
  LOCKED("cuLaunchKernelEx");
  const Function function = *reinterpret_cast<Function*>(f);
  test::KernelCall call;
  if (!test::find_kernel(function.name, list[0], call)) return kNotFound;
  unsigned cluster = 1;
  last_early = 0;
  for (unsigned i = 0; i < c->num_attributes; ++i) {
    const CuLaunchAttribute& a = c->attributes[i];
    if (a.id == kCuLaunchProgrammaticStreamSerialization) last_early = a.value.programmatic_stream_serialization_allowed;
    if (a.id == kCuLaunchClusterDimension) cluster = a.value.cluster.x;
  }
  if (c->grid_x % cluster != 0) return kInvalid;
  call.grid = c->grid_x / cluster;
  call.cluster = cluster;
  call.block = c->block_x;
  const test::FakeCubin& cubin = function.module->cubin;
  const kvloom::KernelFacts& facts = function.name == "attend_memory" ? cubin.memory : function.name == "attend_compute" ? cubin.compute : function.name == "attend_mixed" ? cubin.mixed : function.name == "attend_memory_32" ? cubin.memory_32 : cubin.small;
  call.boxed = function.name.rfind("attend_", 0) == 0 && facts.box_keys > 0;
  // Boxes that no map describes.
  if (call.boxed && cluster > 1 && call.as<kvloom::BoxedAttendArgs>().boxes.rows == 0) return kIllegalInstruction;
  call.spec = has_spec_override ? spec_override : function.module->cubin.spec;
  last_entry = function.name;
  put(c->stream, {[call] { call.run(call); }});
  return kCuSuccess;
}

}  // extern "C"
