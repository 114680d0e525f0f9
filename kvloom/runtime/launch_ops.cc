#include "kvloom/runtime/launch_ops.h"

#include "kvloom/base/math.h"
#include "kvloom/jit/compile.h"
#include "kvloom/jit/unit.h"
#include "kvloom/support/check.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

namespace kvloom::runtime {
namespace {

using jit::check_driver;
using jit::driver;

constexpr int64_t kBlock = 128, kWarps = kBlock / 32;
constexpr int64_t kBlocksAnSm = 16;  // more than an SM holds at once; a block strides over what is left

struct Ops {
  std::mutex mutex;
  std::atomic<bool> loaded{false};
  jit::CuFunction append_kv = nullptr, apply_rope = nullptr, merge_states = nullptr;
};

/// Of one device, for the life of the process.
Ops& ops_of(const Device& device) {
  static std::mutex mutex;
  static auto* const list = new std::map<int32_t, std::unique_ptr<Ops>>;
  std::lock_guard lock(mutex);
  std::unique_ptr<Ops>& ops = (*list)[device.target().device];
  if (!ops) ops = std::make_unique<Ops>();
  return *ops;
}

void load(const Device& device, Ops& ops) {
  std::lock_guard lock(ops.mutex);
  if (ops.loaded) return;
  const jit::Program program = jit::ops_program();
  const std::string cubin = jit::cubin_of(program, device.target().arch);
  const ContextGuard guard(device);
  jit::CuModule module = nullptr;
  check_driver(driver().module_load_data(&module, cubin.data()), "cuModuleLoadData", program.key);
  for (const auto& [function, name] :
       {std::pair{&ops.append_kv, "append_kv"}, {&ops.apply_rope, "apply_rope"}, {&ops.merge_states, "merge_states"}}) {
    check_driver(driver().module_get_function(function, module, name), "cuModuleGetFunction", program.key + ": " + name);
  }
  ops.loaded = true;
}

/// The kernels, loaded now if that is possible.
const Ops& ready_ops(const Device& device, jit::CuStream stream, const char* where) {
  Ops& ops = ops_of(device);
  if (ops.loaded.load(std::memory_order_acquire)) [[likely]]
    return ops;
  jit::CuCaptureStatus status = jit::kCuCaptureNone;
  {
    const ContextGuard guard(device);
    check_driver(driver().stream_is_capturing(stream, &status), "cuStreamIsCapturing", "stream: wanted one of this device");
  }
  if (status != jit::kCuCaptureNone) {
    fail(ErrorCode::invalid_argument,
         "{}: stream: got one that is being captured, before the kernel was loaded, wanted it loaded; call load_ops(device) "
         "(kvloom_load_ops) before the capture begins",
         where);
  }
  load(device, ops);
  return ops;
}

/// A warp for each of `rows`. `head_dim` > 0: with room for its angles.
template <class Args>
void launch(const Device& device, jit::CuFunction function, Args& args, int64_t rows, int64_t head_dim, jit::CuStream stream,
            const char* where) {
  if (rows == 0) return;
  const ContextGuard guard(device);
  const int64_t blocks = min_of<int64_t>(ceil_div(rows, kWarps), device.target().num_sms * kBlocksAnSm);
  const int64_t shared = 8 * ceil_div<int64_t>(head_dim, 2);
  constexpr int64_t kMostShared = 48 * 1024;
  require(shared <= kMostShared, "{}: head dim: got {}, wanted at most {}", where, head_dim, kMostShared / 4);
  const jit::CuLaunchConfig config = {unsigned(blocks), 1, 1, unsigned(kBlock), 1, 1, unsigned(shared), stream, nullptr, 0};
  void* list[] = {&args};
  check_driver(driver().launch_kernel_ex(&config, function, list, nullptr), "cuLaunchKernelEx", where);
}

}  // namespace

void load_ops(const Device& device) { load(device, ops_of(device)); }

void launch_append_kv(const Device& device, AppendArgs args, jit::CuStream stream) {
  const Ops& ops = ready_ops(device, stream, "append_kv");
  launch(device, ops.append_kv, args, args.num_tokens * args.num_kv_heads, args.k_new.dim, stream, "append_kv");
}

void launch_apply_rope(const Device& device, RopeArgs args, jit::CuStream stream) {
  const Ops& ops = ready_ops(device, stream, "apply_rope");
  launch(device, ops.apply_rope, args, args.num_tokens * args.heads, args.x.dim, stream, "apply_rope");
}

void launch_merge_states(const Device& device, MergeArgs args, jit::CuStream stream, const char* where) {
  const Ops& ops = ready_ops(device, stream, where);
  launch(device, ops.merge_states, args, args.num_rows * args.heads, 0, stream, where);
}

}  // namespace kvloom::runtime
