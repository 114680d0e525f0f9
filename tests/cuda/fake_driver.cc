// A CUDA driver without a GPU, for tests of everything around the kernels. It is as late as a driver may be: what is put into a stream is
// done when somebody waits for it, and only as much of it as that needs. Device memory can't be touched outside of such work. "Kernels" are
// fake_kernels.cc. Under capture it refuses what a driver refuses.
#include "kvloom/jit/driver_types.h"
#include "tests/cuda/fake_cubin.h"
#include "tests/cuda/fake_kernels.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace {

/// Things that live as long as the process, where a leak checker finds them.
template <class T>
T keep(T p) {
  static std::mutex mutex;
  static auto* const all = new std::vector<void*>;
  std::lock_guard lock(mutex);
  all->push_back(reinterpret_cast<void*>(p));
  return p;
}

using namespace kvloom;
using namespace kvloom::jit;

constexpr CuResult kInvalid = 1, kNotPermitted = 800, kCaptureUnsupported = 900, kNotFound = 500;
constexpr int kDevices = 2;
constexpr size_t kPage = 4096;

struct Stream;
struct FakeEvent {
  Stream* stream = nullptr;
  long long recorded = 0;  // records put into streams
  long long done = 0;      // of those, reached
};
struct Operation {
  std::function<void()> work;
  FakeEvent* reaches = nullptr;  // a record
  long long number = 0;
  FakeEvent* waits = nullptr;  // a wait, for record `number` of that event in `other`
  Stream* other = nullptr;
};
struct Stream {
  std::deque<Operation> queue;
  bool capturing = false;
  std::vector<Operation> captured;
};
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
struct Block {
  size_t bytes, mapped;
  bool pinned;
  int device;
};

std::recursive_mutex mutex;
Stream default_stream;
std::map<uintptr_t, Block> blocks;
std::map<std::string, long long> counts;
long long free_bytes = 1LL << 34;
std::string last_entry;
AttentionSpec spec_override;
bool has_spec_override = false;
int last_early = 0, open_depth = 0, occupancy = -1;
thread_local std::vector<CuContext> contexts;
int context_tags[kDevices];

CuContext context_of(int device) { return reinterpret_cast<CuContext>(&context_tags[device]); }
int current_device() { return contexts.empty() ? 0 : int(reinterpret_cast<int*>(contexts.back()) - context_tags); }
Stream* of(CuStream s) { return s == nullptr ? &default_stream : reinterpret_cast<Stream*>(s); }
void touch(bool allowed) {
  for (auto& [address, b] : blocks) {
    if (!b.pinned) mprotect(reinterpret_cast<void*>(address), b.mapped, allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}
/// Device memory is open while work is done, and only then.
struct Open {
  Open() {
    if (open_depth++ == 0) touch(true);
  }
  ~Open() {
    if (--open_depth == 0) touch(false);
  }
};

void drain(Stream& s, FakeEvent* until = nullptr, long long number = 0) {
  if (s.queue.empty()) return;
  const Open open;
  while (!s.queue.empty() && !(until != nullptr && until->done >= number)) {
    Operation op = std::move(s.queue.front());
    s.queue.pop_front();
    if (op.waits != nullptr && op.waits->done < op.number) drain(*op.other, op.waits, op.number);
    if (op.work) op.work();
    if (op.reaches != nullptr) op.reaches->done = std::max(op.reaches->done, op.number);
  }
}
std::vector<Stream*>& all_streams() {
  static std::vector<Stream*> list{&default_stream};
  return list;
}
void drain_all() {
  for (Stream* s : all_streams()) drain(*s);
}
bool anything_capturing() {
  for (Stream* s : all_streams()) {
    if (s->capturing) return true;
  }
  return false;
}
void put(CuStream stream, Operation op) {
  Stream* s = of(stream);
  if (s->capturing) {
    s->captured.push_back(std::move(op));
  } else {
    s->queue.push_back(std::move(op));
  }
}
CuResult allocate(size_t bytes, bool pinned, uintptr_t& address) {
  if (anything_capturing()) return kCaptureUnsupported;
  if (!pinned && (long long)bytes > free_bytes) return kCuOutOfMemory;
  const size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  address = reinterpret_cast<uintptr_t>(p);
  blocks[address] = {bytes, mapped, pinned, current_device()};
  if (!pinned) {
    std::memset(p, 0xff, mapped);
    if (open_depth == 0) mprotect(p, mapped, PROT_NONE);
    free_bytes -= (long long)bytes;
  }
  return kCuSuccess;
}
CuResult release(uintptr_t address) {
  const auto at = blocks.find(address);
  if (at == blocks.end()) return kInvalid;
  drain_all();
  munmap(reinterpret_cast<void*>(address), at->second.mapped);
  if (!at->second.pinned) free_bytes += (long long)at->second.bytes;
  blocks.erase(at);
  return kCuSuccess;
}

}  // namespace

#define LOCKED(NAME)                                       \
  const std::lock_guard<std::recursive_mutex> lock(mutex); \
  ++counts[NAME]

extern "C" {

void fake_reset() {
  counts.clear();
  free_bytes = 1LL << 34;
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
CuResult cuDeviceTotalMem_v2(size_t* n, CuDevice) { return *n = size_t(1) << 34, kCuSuccess; }
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
  if (std::string(name) != "kvloom_facts") return kNotFound;
  *a = reinterpret_cast<CuAddress>(&reinterpret_cast<Module*>(m)->cubin.facts);
  return *bytes = sizeof(test::FakeCubin::facts), kCuSuccess;
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
  return release(a);
}
CuResult cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = size_t(free_bytes), *total = size_t(1) << 34, kCuSuccess; }
CuResult cuMemHostAlloc(void** p, size_t bytes, unsigned) {
  LOCKED("cuMemHostAlloc");
  uintptr_t at = 0;
  const CuResult r = allocate(bytes, true, at);
  return *p = reinterpret_cast<void*>(at), r;
}
CuResult cuMemFreeHost(void* p) {
  LOCKED("cuMemFreeHost");
  return release(reinterpret_cast<uintptr_t>(p));
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
CuResult cuStreamBeginCapture_v2(CuStream s, CuCaptureMode) {
  LOCKED("cuStreamBeginCapture");
  return of(s)->capturing = true, kCuSuccess;
}
CuResult cuStreamEndCapture(CuStream s, CuGraph* g) {
  LOCKED("cuStreamEndCapture");
  of(s)->capturing = false;
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
CuResult cuLaunchKernelEx(const CuLaunchConfig* c, CuFunction f, void** list, void**) {
  LOCKED("cuLaunchKernelEx");
  const Function function = *reinterpret_cast<Function*>(f);
  test::KernelCall call;
  if (!test::find_kernel(function.name, list[0], call)) return kNotFound;
  call.grid = c->grid_x;
  call.block = c->block_x;
  call.spec = has_spec_override ? spec_override : function.module->cubin.spec;
  last_entry = function.name;
  last_early = c->num_attributes == 1 && c->attributes[0].id == kCuLaunchProgrammaticStreamSerialization &&
               c->attributes[0].value.programmatic_stream_serialization_allowed == 1;
  put(c->stream, {[call] { call.run(call); }});
  return kCuSuccess;
}

}  // extern "C"
