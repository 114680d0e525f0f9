#include "kvloom/api/gpu.h"

#include "kvloom/jit/compile.h"
#include "kvloom/runtime/device.h"
#include "kvloom/support/check.h"

namespace kvloom {

using jit::check_driver;
using jit::driver;
using runtime::ContextGuard;
using runtime::Device;

std::vector<GpuInfo> gpus(std::string* why) {
  std::string reason;
  std::vector<GpuInfo> list;
  const int32_t n = Device::count(reason);
  for (int32_t i = 0; i < n; ++i) {
    const Device& d = Device::get(i);
    list.push_back({i, d.target().name, d.target().arch, d.target().num_sms, d.clock_khz(), d.memory_bytes(), d.l2_bytes()});
  }
  if (why != nullptr) *why = reason;
  return list;
}

int32_t gpu_driver_version() {
  std::string why;
  const jit::Driver* d = jit::find_driver(why);
  return d != nullptr ? d->version : 0;
}

GpuMemory gpu_memory(int32_t device) {
  const ContextGuard guard(Device::get(device));
  size_t free = 0, total = 0;
  check_driver(driver().mem_get_info(&free, &total), "cuMemGetInfo");
  return {int64_t(free), int64_t(total)};
}

void gpu_synchronize(int32_t device) {
  const ContextGuard guard(Device::get(device));
  check_driver(driver().ctx_synchronize(), "cuCtxSynchronize", "a kernel before this call failed");
}

struct GpuContext::Impl {
  ContextGuard guard;
};

GpuContext::GpuContext(int32_t device) : impl_(new Impl{ContextGuard(Device::get(device))}) {}
GpuContext::~GpuContext() = default;

struct GpuBuffer::Impl {
  const Device& device;
  runtime::DeviceMemory memory;
};

GpuBuffer::GpuBuffer(int32_t device, int64_t bytes) {
  const Device& d = Device::get(device);
  impl_.reset(new Impl{d, runtime::DeviceMemory(d, bytes, "buffer")});
}
GpuBuffer::GpuBuffer() = default;
GpuBuffer::~GpuBuffer() = default;
GpuBuffer::GpuBuffer(GpuBuffer&&) noexcept = default;
GpuBuffer& GpuBuffer::operator=(GpuBuffer&&) noexcept = default;

char* GpuBuffer::data() const { return impl_ ? impl_->memory.data() : nullptr; }
int64_t GpuBuffer::size() const { return impl_ ? impl_->memory.size() : 0; }

namespace {

void check_range(int64_t size, int64_t bytes, int64_t offset) {
  require(bytes >= 0 && offset >= 0 && bytes <= size - offset, "GpuBuffer: got bytes {} .. {}, wanted them within its {}", offset,
          offset + bytes, size);
}

}  // namespace

void GpuBuffer::upload(const void* from, int64_t bytes, int64_t offset) {
  check_range(size(), bytes, offset);
  if (bytes == 0) return;
  const ContextGuard guard(impl_->device);
  check_driver(driver().memcpy_htod(impl_->memory.address() + jit::CuAddress(offset), from, size_t(bytes)), "cuMemcpyHtoD");
  // Pageable memory may have been taken over without having arrived, and streams of ours do not wait for the default one.
  check_driver(driver().stream_synchronize(nullptr), "cuStreamSynchronize");
}

void GpuBuffer::download(void* to, int64_t bytes, int64_t offset) const {
  check_range(size(), bytes, offset);
  if (bytes == 0) return;
  const ContextGuard guard(impl_->device);
  check_driver(driver().memcpy_dtoh(to, impl_->memory.address() + jit::CuAddress(offset), size_t(bytes)), "cuMemcpyDtoH");
}

void GpuBuffer::fill(uint8_t value) {
  if (size() == 0) return;
  const ContextGuard guard(impl_->device);
  check_driver(driver().memset_d8_async(impl_->memory.address(), value, size_t(size()), nullptr), "cuMemsetD8Async");
  check_driver(driver().stream_synchronize(nullptr), "cuStreamSynchronize");
}

struct GpuStream::Impl {
  const Device& device;
  jit::CuStream stream = nullptr;
  runtime::Event order;
  std::vector<runtime::Event> marks;
  size_t used_marks = 0;
  jit::CuGraphExec graph = nullptr;

  explicit Impl(const Device& d) : device(d), order(d) {}
  void drop_graph() {
    if (graph != nullptr) driver().graph_exec_destroy(graph);
    graph = nullptr;
  }
};

GpuStream::GpuStream(int32_t device) : impl_(std::make_unique<Impl>(Device::get(device))) {
  const ContextGuard guard(impl_->device);
  check_driver(driver().stream_create(&impl_->stream, jit::kCuStreamNonBlocking), "cuStreamCreate");
}

GpuStream::~GpuStream() {
  const ContextGuard guard(impl_->device);
  impl_->drop_graph();
  driver().stream_destroy(impl_->stream);
}

void* GpuStream::handle() const { return impl_->stream; }

void GpuStream::synchronize() {
  const ContextGuard guard(impl_->device);
  check_driver(driver().stream_synchronize(impl_->stream), "cuStreamSynchronize", "a kernel of the stream failed");
}

void GpuStream::wait_for(const GpuStream& other) {
  const ContextGuard guard(impl_->device);
  impl_->order.record(other.impl_->stream);
  check_driver(driver().stream_wait_event(impl_->stream, impl_->order.handle(), 0), "cuStreamWaitEvent");
}

void GpuStream::copy(void* to, const void* from, int64_t bytes) {
  const ContextGuard guard(impl_->device);
  check_driver(driver().memcpy_dtod_async(reinterpret_cast<jit::CuAddress>(to), reinterpret_cast<jit::CuAddress>(from), size_t(bytes),
                                          impl_->stream),
               "cuMemcpyDtoDAsync");
}

void GpuStream::fill(void* to, uint8_t value, int64_t bytes) {
  const ContextGuard guard(impl_->device);
  check_driver(driver().memset_d8_async(reinterpret_cast<jit::CuAddress>(to), value, size_t(bytes), impl_->stream), "cuMemsetD8Async");
}

int32_t GpuStream::mark() {
  const ContextGuard guard(impl_->device);
  if (impl_->used_marks == impl_->marks.size()) impl_->marks.emplace_back(impl_->device, true);
  impl_->marks[impl_->used_marks].record(impl_->stream);
  return int32_t(impl_->used_marks++);
}

float GpuStream::milliseconds(int32_t from_mark, int32_t to_mark) {
  const ContextGuard guard(impl_->device);
  const int32_t n = int32_t(impl_->used_marks);
  require(from_mark >= 0 && to_mark >= 0 && from_mark < n && to_mark < n, "GpuStream: marks: got {} and {}, wanted 0 .. {}", from_mark,
          to_mark, n - 1);
  impl_->marks[size_t(to_mark)].wait();
  float ms = 0.0f;
  check_driver(driver().event_elapsed_time(&ms, impl_->marks[size_t(from_mark)].handle(), impl_->marks[size_t(to_mark)].handle()),
               "cuEventElapsedTime");
  return ms;
}

void GpuStream::forget_marks() { impl_->used_marks = 0; }

void GpuStream::begin_capture() {
  const ContextGuard guard(impl_->device);
  check_driver(driver().stream_begin_capture(impl_->stream, jit::kCuCaptureModeThreadLocal), "cuStreamBeginCapture");
}

void GpuStream::end_capture() {
  const ContextGuard guard(impl_->device);
  jit::CuGraph graph = nullptr;
  check_driver(driver().stream_end_capture(impl_->stream, &graph), "cuStreamEndCapture");
  impl_->drop_graph();
  const jit::CuResult made = driver().graph_instantiate(&impl_->graph, graph, 0);
  driver().graph_destroy(graph);
  check_driver(made, "cuGraphInstantiate");
}

void GpuStream::launch() {
  const ContextGuard guard(impl_->device);
  require(impl_->graph != nullptr, "GpuStream: launch: got no captured graph, wanted begin_capture and end_capture before it");
  check_driver(driver().graph_launch(impl_->graph, impl_->stream), "cuGraphLaunch");
}

struct GpuProgram::Impl {
  const Device& device;
  jit::CuModule module = nullptr;
};

GpuProgram::GpuProgram(int32_t device, const std::string& name, const std::string& text) : impl_(new Impl{Device::get(device)}) {
  const std::string cubin = jit::cubin_of({name, text}, impl_->device.target().arch);
  const ContextGuard guard(impl_->device);
  check_driver(driver().module_load_data(&impl_->module, cubin.data()), "cuModuleLoadData", name);
}

GpuProgram::~GpuProgram() {
  const ContextGuard guard(impl_->device);
  driver().module_unload(impl_->module);
}

void GpuProgram::launch(const char* entry, uint32_t grid, uint32_t block, std::vector<void*> arguments, GpuStream& stream) {
  const ContextGuard guard(impl_->device);
  jit::CuFunction function = nullptr;
  check_driver(driver().module_get_function(&function, impl_->module, entry), "cuModuleGetFunction", entry);
  const jit::CuLaunchConfig config = {grid, 1, 1, block, 1, 1, 0, static_cast<jit::CuStream>(stream.handle()), nullptr, 0};
  check_driver(driver().launch_kernel_ex(&config, function, arguments.data(), nullptr), "cuLaunchKernelEx", entry);
}

}  // namespace kvloom
