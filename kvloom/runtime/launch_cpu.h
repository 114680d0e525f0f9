// plan -> output on the CPU.
#pragma once

#include "kvloom/runtime/registry.h"

#include <memory>

namespace kvloom::runtime {

/// Runs `plan` with `kernel` and returns when all outputs are written. `scratch` may hold anything: the counters that this plan uses are
/// zeroed here, so a workspace may be shared by engines that take turns, and what a caller or an aborted run left in it never matters.
void launch_cpu(const AttendKernel& kernel, const AttentionSpec& spec, const PlanView& plan, const AttendParams& params,
                const Scratch& scratch, ThreadPool& pool, const cpu::UserStage& user = {}, CtaTimes* timeline = nullptr);

/// The threads of engines that were not given a number: one a core that this process may use. One pool for the whole process, made
/// when first asked for and gone with its last user; its users take turns.
std::shared_ptr<ThreadPool> shared_threads();

/// shared_threads() for work on that many elements, or nullptr where one thread is as fast.
std::shared_ptr<ThreadPool> threads_for(int64_t elements);

/// Cores that this process may use (its affinity mask), at least 1.
int32_t usable_cores();

}  // namespace kvloom::runtime
