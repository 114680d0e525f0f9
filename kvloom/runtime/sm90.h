// The sm90 family as the host knows it: what it runs, with which tiles, and the text of its units. The kernels: kvloom/device/sm90; steps of
// nothing but few rows run on kvloom/device/stream, and those of many rows with fp8 K and V or fused RoPE on kvloom/device/sm80, which its units hold too.
#pragma once

#include "kvloom/jit/unit.h"
#include "kvloom/plan/scheduler_config.h"
#include "kvloom/runtime/gpu_target.h"
#include "kvloom/runtime/registry.h"

#include <string>

namespace kvloom::runtime {

/// "" if the family runs `spec` on `target`, else why not: one clause.
std::string sm90_refusal(const AttentionSpec& spec, const GpuTarget& target, bool fixed_split);

/// Whether steps of many rows run on wgmma (fp8 K and V, fused RoPE, and fixed_split: on mma.sync).
bool sm90_by_warpgroups(const AttentionSpec& spec, bool fixed_split);

/// Tiles and costs of both classes for config.policy. num_ctas is set as far as it is known without a device.
OwnSchedules sm90_schedule(const AttentionSpec& spec, const GpuTarget& target, SchedulerConfig& config);

jit::Unit sm90_unit(const AttentionSpec& spec, const GpuTarget& target, bool fixed_split);

}  // namespace kvloom::runtime
