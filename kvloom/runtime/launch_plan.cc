#include "kvloom/runtime/launch_plan.h"

#include "kvloom/device/plan/shared.h"
#include "kvloom/jit/compile.h"
#include "kvloom/jit/unit.h"
#include "kvloom/support/check.h"
#include "kvloom/support/made_once.h"

namespace kvloom::runtime {
namespace {

using jit::check_driver;
using jit::driver;

constexpr int kSharedBytes = int(sizeof(device_plan::SharedMemory));
constexpr int32_t kEarlyLaunchCapability = 90;

struct PlanKernel {
  jit::CuFunction function = nullptr;
};

std::unique_ptr<const PlanKernel> load(const Device& device, jit::CuStream stream) {
  const ContextGuard guard(device);
  jit::CuCaptureStatus status = jit::kCuCaptureNone;
  check_driver(driver().stream_is_capturing(stream, &status), "cuStreamIsCapturing", "plan_on_device: stream: wanted one of this device");
  if (status != jit::kCuCaptureNone) {
    fail(ErrorCode::invalid_argument,
         "plan_on_device: stream: got one that is being captured, before the planner's kernel was loaded, wanted it loaded; plan once before "
         "the capture begins");
  }
  const jit::Program program = jit::plan_program();
  const std::string cubin = jit::cubin_of(program, device.target().arch);
  jit::CuModule module = nullptr;  // for the life of the process
  check_driver(driver().module_load_data(&module, cubin.data()), "cuModuleLoadData", program.key);
  PlanKernel k;
  check_driver(driver().module_get_function(&k.function, module, "plan_stream"), "cuModuleGetFunction", program.key);
  check_driver(driver().func_set_attribute(k.function, jit::kCuFunctionMaxDynamicSharedBytes, kSharedBytes), "cuFuncSetAttribute", program.key);
  return std::make_unique<const PlanKernel>(k);
}

}  // namespace

void launch_plan(const Device& device, const plan::DeviceArgs& args, jit::CuStream stream) {
  static auto* const kernels = new MadeOnce<PlanKernel>;
  const PlanKernel& kernel = kernels->get(std::to_string(device.target().device), [&] { return load(device, stream); });
  const ContextGuard guard(device);
  jit::CuLaunchAttribute early = {};
  early.id = jit::kCuLaunchProgrammaticStreamSerialization;
  early.value.programmatic_stream_serialization_allowed = 1;
  const unsigned attributes = device.target().capability >= kEarlyLaunchCapability ? 1 : 0;
  const int threads = device_plan::threads_for(int64_t(args.num_requests) * args.request_lists, args.header.num_ctas);
  const jit::CuLaunchConfig config = {unsigned(device_plan::kCtas), 1, 1, unsigned(threads), 1, 1, unsigned(kSharedBytes), stream, &early, attributes};
  plan::DeviceArgs copy = args;
  void* list[] = {&copy};
  check_driver(driver().launch_kernel_ex(&config, kernel.function, list, nullptr), "cuLaunchKernelEx", "the planner");
}

}  // namespace kvloom::runtime
