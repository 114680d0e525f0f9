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

/// CTAs of which every one of `entries` of the unit fits an SM at once: any such step may be the next.
int32_t resident_ctas(const runtime::AttendModule& module, std::initializer_list<int> entries, int32_t num_sms) {
  int32_t an_sm = module.entries[*entries.begin()].ctas_per_sm;
  int32_t cluster = 1;
  for (const int i : entries) an_sm = min_of(an_sm, module.entries[i].ctas_per_sm), cluster = max_of(cluster, module.entries[i].cluster);
  return max_of(1, an_sm * num_sms / cluster);
}

/// Steps of so little that every SM should have one piece of it: keys times KV heads an SM, at most.
constexpr int64_t kSmallStep = 4096;

void set_gpu_schedule(Setup& s, const Capacity& capacity) {
  const int32_t sms = s.choice.gpu.num_sms;
  s.own = s.choice.winner().kernel->gpu.schedule(s.spec, s.choice.gpu, s.config);
  s.shares_kernels = !s.own.memory;
  if (s.module != nullptr) {
    const int few = s.own.memory && !s.own.small_computes ? 3 : 0, many = s.own.compute || s.own.all_compute_mixed ? 2 : 1;
    s.config.num_ctas = resident_ctas(*s.module, {few, many, 2}, sms);
    if (s.own.memory) s.own.memory->num_ctas = resident_ctas(*s.module, {0}, sms);
    if (s.own.memory_32) s.own.memory_32->num_ctas = resident_ctas(*s.module, {runtime::AttendModule::kMemory32}, sms);
    if (s.own.compute) s.own.compute->num_ctas = resident_ctas(*s.module, {s.own.fetches_rows ? 3 : 1}, sms);
  }
  if (s.own.memory_32 && capacity.max_query_tokens * s.spec.group_size() <= s.config.compute_rows_above) s.own.memory_32.reset();  // no step has so many rows
  // Decided by the capacity, not by the step: a captured graph must stay good as lengths grow.
  if (s.own.memory && s.own.memory->num_ctas > s.config.num_ctas && capacity.max_kv_tokens * s.spec.num_kv_heads <= kSmallStep * sms) s.own.memory.reset();
}

void set_schedule(Setup& s, const Capacity& capacity, const EngineOptions& options) {
  SchedulerConfig& config = s.config;
  config.policy = options.policy;
  config.levels = options.levels;
  if (s.on_gpu()) {
    set_gpu_schedule(s, capacity);
  } else {
    config.num_ctas = cpu::kVirtualCtas;
    cpu::kernel_classes(s.spec, s.choice.winner().kernel->target, config.classes);
  }
  const int32_t tile = std::lcm(config.classes[0].tile_kv, config.classes[1].tile_kv);
  require(options.split_tokens % tile == 0, "Engine: options.split_tokens: got {}, wanted a multiple of {} (the kernel's tile of keys)",
          options.split_tokens, tile);
  config.split_tokens = options.split_tokens > 0 ? options.split_tokens : round_up(config.split_tokens, tile);
  if (options.num_ctas > 0) config.num_ctas = options.num_ctas;
  for (auto* own : {&s.own.memory, &s.own.compute, &s.own.memory_32}) {
    if (!*own) continue;
    (*own)->split_tokens = config.split_tokens;
    if (options.num_ctas > 0) (*own)->num_ctas = options.num_ctas;
  }
}

}  // namespace

Setup make_setup(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options) {
  Setup s;
  s.early_launch = options.early_launch;
  s.spec = checked_spec(spec);
  check_capacity(capacity, s.spec);
  check_options(options);
  s.choice = runtime::choose_attend(
      s.spec, {options.backend, options.cpu_target, options.device, options.cuda_arch, options.kernel, options.policy == Policy::fixed_split, options.timeline});
  if (s.on_gpu() && s.choice.gpu.device >= 0) {
    s.device = &runtime::Device::get(s.choice.gpu.device);
    s.module = &runtime::attend_module(*s.device, s.choice.unit);
  }
  if (!s.on_gpu() && s.spec.variant.user != nullptr) s.user = runtime::user_stage(s.spec.variant, s.choice.winner().kernel->target);
  set_schedule(s, capacity, options);
  s.threads = options.threads > 0 ? options.threads : runtime::usable_cores();
  return s;
}

plan::PlanLayout plan_layout_of(const Setup& s, const Capacity& capacity) {
  plan::PlanLayout all = plan::plan_layout(s.spec, capacity, s.config);
  for (const auto* own : {&s.own.memory, &s.own.compute, &s.own.memory_32}) {
    if (!*own) continue;
    const plan::PlanLayout layout = plan::plan_layout(s.spec, capacity, **own);
    all.plan_bytes = max_of(all.plan_bytes, layout.plan_bytes);
    all.max_scratch_rows = max_of(all.max_scratch_rows, layout.max_scratch_rows);
    all.partial_o_bytes = max_of(all.partial_o_bytes, layout.partial_o_bytes);
    all.partial_lse_bytes = max_of(all.partial_lse_bytes, layout.partial_lse_bytes);
    all.counter_bytes = max_of(all.counter_bytes, layout.counter_bytes);
    all.start_bytes = max_of(all.start_bytes, layout.start_bytes);
  }
  return all;
}

runtime::ScratchLayout scratch_layout_of(const Setup& s, const plan::PlanLayout& layout) {
  if (!s.on_gpu()) return runtime::scratch_layout(layout, cpu::thread_arena_bytes(s.spec, s.config.classes), s.threads);
  plan::PlanLayout partials = layout;
  partials.counter_bytes = 0;
  return runtime::scratch_layout(partials, 0, 0);
}

}  // namespace kvloom::api
