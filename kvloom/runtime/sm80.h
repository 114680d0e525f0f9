// The sm80 family as the host knows it: what it runs, with which tiles, and the text of its units. The kernels: kvloom/device/sm80.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/jit/unit.h"
#include "kvloom/plan/scheduler_config.h"
#include "kvloom/runtime/gpu_target.h"
#include "kvloom/runtime/registry.h"

#include <optional>
#include <string>

namespace kvloom::runtime {

/// "" if the family runs `spec` on `target`, else why not: one clause.
std::string sm80_refusal(const AttentionSpec& spec, const GpuTarget& target, bool fixed_split);

/// Tiles and costs of both classes for config.policy. num_ctas is set as far as it is known without a device.
OwnSchedules sm80_schedule(const AttentionSpec& spec, const GpuTarget& target, SchedulerConfig& config);
/// Of steps of nothing but few rows, on kernels of their own.
SchedulerConfig sm80_memory_schedule(const AttentionSpec& spec, const GpuTarget& target, const SchedulerConfig& config);
/// OwnSchedules::memory_32 beside `config`.
std::optional<SchedulerConfig> sm80_memory_32_schedule(const AttentionSpec& spec, const GpuTarget& target, const SchedulerConfig& config);

/// Its configurations, as text. `mixed_memory`: of class 0 beside class 1; "": the same as alone. `memory_32`: "" where there is none.
struct Sm80Texts {
  std::string memory, mixed_memory, compute, memory_32;
};
Sm80Texts sm80_texts(const AttentionSpec& spec, const GpuTarget& target, bool fixed_split);
/// attend_memory_32, where there is one: of both families' units.
void add_memory_32(const Sm80Texts& texts, std::vector<jit::UnitConfig>& configs, std::vector<jit::UnitEntry>& entries);

/// The unit of `spec`. `fixed_split`: its plans are made by that policy.
jit::Unit sm80_unit(const AttentionSpec& spec, const GpuTarget& target, bool fixed_split);

}  // namespace kvloom::runtime
