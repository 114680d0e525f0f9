#include "kvloom/api/engine_setup.h"

#include "kvloom/api/spec_check.h"
#include "kvloom/base/math.h"
#include "kvloom/cpu/attend.h"
#include "kvloom/runtime/launch_cpu.h"
#include "kvloom/runtime/user_variant.h"
#include "kvloom/support/check.h"

#include <numeric>

namespace kvloom::api {
namespace {

/// CTAs that every entry of the unit fits at once: any step may be the next.
int32_t resident_ctas(const runtime::AttendModule& module, int32_t num_sms) {
  int32_t an_sm = module.entries[0].ctas_per_sm;
  for (const runtime::AttendModule::Entry& e : module.entries) an_sm = min_of(an_sm, e.ctas_per_sm);
  return an_sm * num_sms;
}

void set_schedule(Setup& s, const EngineOptions& options) {
  SchedulerConfig& config = s.config;
  config.policy = options.policy;
  config.levels = options.levels;
  const runtime::AttendKernel& kernel = *s.choice.winner().kernel;
  if (s.on_gpu()) {
    kernel.gpu.schedule(s.spec, s.choice.gpu, config);
    if (s.module != nullptr) config.num_ctas = resident_ctas(*s.module, s.choice.gpu.num_sms);
  } else {
    config.num_ctas = cpu::kVirtualCtas;
    cpu::kernel_classes(s.spec, kernel.target, config.classes);
  }
  if (options.num_ctas > 0) config.num_ctas = options.num_ctas;
  const int32_t tile = std::lcm(config.classes[0].tile_kv, config.classes[1].tile_kv);
  require(options.split_tokens % tile == 0, "Engine: options.split_tokens: got {}, wanted a multiple of {} (the kernel's tile of keys)",
          options.split_tokens, tile);
  config.split_tokens = options.split_tokens > 0 ? options.split_tokens : round_up(config.split_tokens, tile);
}

}  // namespace

Setup make_setup(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options) {
  Setup s;
  s.spec = checked_spec(spec);
  check_capacity(capacity, s.spec);
  check_options(options);
  s.choice = runtime::choose_attend(
      s.spec, {options.backend, options.cpu_target, options.device, options.cuda_arch, options.policy == Policy::fixed_split});
  if (s.on_gpu() && s.choice.gpu.device >= 0) {
    s.device = &runtime::Device::get(s.choice.gpu.device);
    s.module = &runtime::attend_module(*s.device, s.choice.unit);
  }
  if (!s.on_gpu() && s.spec.variant.user != nullptr) s.user = runtime::user_stage(s.spec.variant, s.choice.winner().kernel->target);
  set_schedule(s, options);
  s.threads = options.threads > 0 ? options.threads : runtime::usable_cores();
  return s;
}

runtime::ScratchLayout scratch_layout_of(const Setup& s, const plan::PlanLayout& layout) {
  if (!s.on_gpu()) return runtime::scratch_layout(layout, cpu::thread_arena_bytes(s.spec, s.config.classes), s.threads);
  plan::PlanLayout partials = layout;
  partials.counter_bytes = 0;
  return runtime::scratch_layout(partials, 0, 0);
}

}  // namespace kvloom::api
