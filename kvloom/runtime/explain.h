// Why this kernel: for people.
#pragma once

#include "kvloom/plan/scheduler_config.h"
#include "kvloom/runtime/registry.h"

namespace kvloom::runtime {

/// Every kernel considered and why it was declined; the tiles; packed rows, FLOP a byte of KV read and the roof that binds, for one new
/// token a request and for a full tile of the compute class; with fused RoPE, the advice to rotate at append.
/// Whether shared prefixes are looked for, and if not, why not. `own`: of steps of one class alone, where they have kernels of their own.
std::string explain_choice(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const OwnSchedules& own, const Choice& choice);

}  // namespace kvloom::runtime
