#include "kvloom/runtime/device.h"

#include "kvloom/base/math.h"
#include "kvloom/jit/compile.h"
#include "kvloom/support/check.h"

#include <memory>
#include <mutex>
#include <utility>

namespace kvloom::runtime {

using jit::check_driver;
using jit::driver;

namespace {

int attribute(jit::CuDeviceAttribute which, jit::CuDevice device) {
  int value = 0;
  check_driver(driver().device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

/// Of the calling thread's current context, else 0.
int32_t current_ordinal() {
  const jit::Driver& d = driver();
  jit::CuContext context = nullptr;
  jit::CuDevice device = 0;
  if (d.ctx_get_current(&context) != jit::kCuSuccess || context == nullptr) return 0;
  return d.ctx_get_device(&device) == jit::kCuSuccess ? device : 0;
}

}  // namespace

int32_t Device::count(std::string& why) {
  const jit::Driver* d = jit::find_driver(why);
  int n = 0;
  if (d == nullptr) return 0;
  if (d->device_get_count(&n) != jit::kCuSuccess || n == 0)
    why = "the NVIDIA driver finds no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES";
  return n;
}

Device::Device(int32_t ordinal) {
  const jit::Driver& d = driver();
  jit::CuDevice device = 0;
  check_driver(d.device_get(&device, ordinal), "cuDeviceGet");
  char name[128] = "";
  check_driver(d.device_get_name(name, sizeof name, device), "cuDeviceGetName");
  const int major = attribute(jit::kCuComputeCapabilityMajor, device), minor = attribute(jit::kCuComputeCapabilityMinor, device);
  target_.device = ordinal;
  target_.arch = jit::arch_of(major, minor);
  target_.capability = 10 * major + minor;
  target_.num_sms = attribute(jit::kCuMultiprocessorCount, device);
  target_.shared_bytes_block = attribute(jit::kCuMaxSharedBytesPerBlockOptin, device);
  target_.shared_bytes_sm = attribute(jit::kCuMaxSharedBytesPerMultiprocessor, device);
  target_.name = name;
  l2_bytes_ = attribute(jit::kCuL2Bytes, device);
  clock_khz_ = attribute(jit::kCuClockRateKhz, device);
  size_t bytes = 0;
  check_driver(d.device_total_mem(&bytes, device), "cuDeviceTotalMem");
  memory_bytes_ = int64_t(bytes);
  check_driver(d.device_primary_ctx_retain(&context_, device), "cuDevicePrimaryCtxRetain", target_.name);
}

const Device& Device::get(int32_t ordinal) {
  static std::mutex mutex;
  static auto* const devices = new std::vector<std::unique_ptr<Device>>;  // never destroyed: memory may be freed until the process ends
  driver();                                                               // its own message where there is none
  std::string why;
  const int32_t n = count(why);
  if (n == 0) fail(ErrorCode::unsupported, "cuda: {}", why);
  require(ordinal >= 0 && ordinal < n, "cuda: device: got {}, wanted 0 .. {}", ordinal, n - 1);
  std::lock_guard lock(mutex);
  if (devices->size() < size_t(n)) devices->resize(size_t(n));
  std::unique_ptr<Device>& device = (*devices)[size_t(ordinal)];
  if (!device) device.reset(new Device(ordinal));
  return *device;
}

const Device& Device::chosen(int32_t ordinal) { return get(ordinal >= 0 ? ordinal : current_ordinal()); }

ContextGuard::ContextGuard(const Device& device) {
  jit::CuContext now = nullptr;
  check_driver(driver().ctx_get_current(&now), "cuCtxGetCurrent");
  if (now == device.context()) return;
  check_driver(driver().ctx_push_current(device.context()), "cuCtxPushCurrent", device.target().name);
  pushed_ = true;
}

ContextGuard::~ContextGuard() {
  jit::CuContext ours = nullptr;
  if (pushed_) driver().ctx_pop_current(&ours);
}

DeviceMemory::DeviceMemory(const Device& device, int64_t bytes, const char* what) : device_(&device), bytes_(bytes) {
  const ContextGuard guard(device);
  const jit::CuResult result = driver().mem_alloc(&address_, size_t(max_of<int64_t>(bytes, 1)));
  if (result == jit::kCuOutOfMemory) {
    size_t free = 0, total = 0;
    driver().mem_get_info(&free, &total);
    fail(ErrorCode::out_of_memory, "cuda: {}: got {} bytes free of {} on {}, wanted {}; lower the capacity, or free memory first", what,
         free, total, device.target().name, bytes);
  }
  check_driver(result, "cuMemAlloc", what);
}

namespace {

/// What frees memory: an engine or a plan may be dropped at any moment, also while some stream is being captured, and a free would spoil that
/// capture, in whatever thread, if this thread did not say that it knows. No exceptions: at the end of the process the driver may be gone.
template <class Free>
void release(const Device& device, Free&& free) {
  const jit::Driver& d = driver();
  jit::CuContext ours = nullptr;
  if (d.ctx_push_current(device.context()) != jit::kCuSuccess) return;
  jit::CuCaptureMode mode = jit::kCuCaptureModeRelaxed;
  const bool relaxed = d.thread_exchange_capture_mode(&mode) == jit::kCuSuccess;
  free(d);
  if (relaxed) d.thread_exchange_capture_mode(&mode);
  d.ctx_pop_current(&ours);
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (address_ != 0) release(*device_, [&](const jit::Driver& d) { d.mem_free(address_); });
}

void DeviceMemory::swap(DeviceMemory& other) {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
}

PinnedMemory::PinnedMemory(const Device& device, int64_t bytes, const char* what) : device_(&device) {
  const ContextGuard guard(device);
  check_driver(driver().mem_host_alloc(&data_, size_t(max_of<int64_t>(bytes, 1)), 0), "cuMemHostAlloc",
               kvloom::format("{} bytes of page-locked memory for {}", bytes, what));
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) release(*device_, [&](const jit::Driver& d) { d.mem_free_host(data_); });
}

void PinnedMemory::swap(PinnedMemory& other) {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
}

Event::Event(const Device& device, bool timing) : device_(&device) {
  const ContextGuard guard(device);
  check_driver(driver().event_create(&event_, timing ? jit::kCuEventDefault : jit::kCuEventDisableTiming), "cuEventCreate");
}

Event::~Event() {
  jit::CuContext ours = nullptr;
  if (event_ == nullptr || driver().ctx_push_current(device_->context()) != jit::kCuSuccess) return;
  driver().event_destroy(event_);
  driver().ctx_pop_current(&ours);
}

void Event::record(jit::CuStream stream) {
  check_driver(driver().event_record(event_, stream), "cuEventRecord");
  recorded_ = true;
}

void Event::wait() const {
  if (recorded_) check_driver(driver().event_synchronize(event_), "cuEventSynchronize", "an earlier kernel of the stream may have failed");
}

void Event::swap(Event& other) {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  std::swap(recorded_, other.recorded_);
}

PointerPlace place_of(const void* address) {
  const jit::Driver& d = driver();
  const auto at = reinterpret_cast<jit::CuAddress>(address);
  PointerPlace place;
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  jit::CuPointerAttribute asked[] = {jit::kCuPointerMemoryType, jit::kCuPointerIsManaged, jit::kCuPointerDeviceOrdinal};
  void* answers[] = {&type, &managed, &ordinal};
  check_driver(d.pointer_get_attributes(3, asked, answers, at), "cuPointerGetAttributes");
  if (type == 0) return place;  // the driver has never seen it
  place.memory = type == jit::kCuMemoryHost ? MemoryPlace::pinned : MemoryPlace::device;
  if (place.memory == MemoryPlace::pinned) return place;
  place.managed = (managed & 0xff) != 0;  // written as a byte or as a word, by version
  place.device = ordinal;
  return place;
}

}  // namespace kvloom::runtime
