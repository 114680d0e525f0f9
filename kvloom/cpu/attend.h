// The CPU backend: executes the work items and merge lists of a plan with threads. A plan has a fixed number of virtual CTAs, so one
// thread and sixty-four give the same bits.
#pragma once

#include "kvloom/contract/params.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/contract/timeline.h"
#include "kvloom/cpu/chunk.h"
#include "kvloom/cpu/target.h"
#include "kvloom/support/thread_pool.h"

namespace kvloom::cpu {

/// Virtual CTAs of a plan made for the CPU.
inline constexpr int32_t kVirtualCtas = 64;

/// Tiles and costs that suit this target: [0] short query sides (decode), [1] the rest (prefill).
void kernel_classes(const AttentionSpec& spec, Target target, KernelClass classes[2]);

/// Bytes of one thread's arena for any item of `spec` under `classes`.
int64_t thread_arena_bytes(const AttentionSpec& spec, const KernelClass classes[2]);

/// Runs `plan`. Allocates nothing, throws nothing on valid input (the api room validates). `scratch.counters` are zero before and after.
/// `user`: the stage of spec.variant.user. `timeline`: memory of a TimelineLayout of the plan, or nullptr.
void attend(const AttentionSpec& spec, const PlanView& plan, const AttendParams& params, const Scratch& scratch, ThreadPool& pool,
            Target target, const UserStage& user = {}, CtaTimes* timeline = nullptr);

}  // namespace kvloom::cpu
