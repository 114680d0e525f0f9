#include "kvloom/api/op_place.h"

#include "kvloom/api/run_check.h"
#include "kvloom/api/tensor_check.h"
#include "kvloom/runtime/launch_ops.h"
#include "kvloom/support/check.h"

#include <optional>

namespace kvloom {
namespace api {
namespace {

/// The addresses that this thread has shown to the driver for the device it used last.
PointerCheck& pointer_check(int32_t device) {
  thread_local std::optional<PointerCheck> check;
  if (!check || check->device() != device) check.emplace(device);
  return *check;
}

}  // namespace

OpPlace::OpPlace(const OpOptions& o, const char* where) : where_(where), stream_(o.stream), ask_driver_(o.check_pointers) {
  require(o.backend == Backend::cpu || o.backend == Backend::cuda, "{}: backend: got {}, wanted cpu (0) or cuda (1)", where,
          int32_t(o.backend));
  if (o.backend == Backend::cpu) {
    require(o.stream == nullptr, "{}: stream: got a stream, wanted a null pointer; the CPU has none", where);
    return;
  }
  device_ = &runtime::Device::chosen(o.device);
}

void OpPlace::check(const Tensor& t, const char* name) const {
  if (!t.given()) return;
  require(t.device_type != (on_gpu() ? kDlCpu : kDlCuda), "{}: {}: device_type: got {} ({}), wanted {} memory", where_, name, t.device_type,
          on_gpu() ? "CPU" : "CUDA", on_gpu() ? "device" : "host");
  check_array(t.data, name);
}

void OpPlace::check_array(const void* p, const char* name) const {
  if (on_gpu() && ask_driver_) pointer_check(device_->target().device).check(p, where_, name);
}

}  // namespace api

void load_ops(int32_t device) { runtime::load_ops(runtime::Device::chosen(device)); }

void wait_for_stream(int32_t device, void* stream) {
  const runtime::ContextGuard guard(runtime::Device::chosen(device));
  jit::check_driver(jit::driver().stream_synchronize(static_cast<jit::CuStream>(stream)), "cuStreamSynchronize", "a kernel of the stream failed");
}

}  // namespace kvloom
