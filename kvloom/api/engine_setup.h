// Everything about an engine that follows from its spec, capacity and options, before it owns memory.
#pragma once

#include "kvloom/api/engine.h"
#include "kvloom/plan/planner.h"
#include "kvloom/runtime/launch_cuda.h"
#include "kvloom/runtime/registry.h"
#include "kvloom/runtime/scratch_layout.h"

#include <optional>

namespace kvloom::api {

struct Setup {
  AttentionSpec spec;
  runtime::Choice choice;
  SchedulerConfig config;
  runtime::OwnSchedules own;                      // of steps of one kind alone, where they have kernels of their own
  bool shares_kernels = true;                     // steps of the memory class alone run on attend_memory, planned like all others
  int32_t threads = 1;                            // CPU
  bool early_launch = true;                       // GPU: of the options
  cpu::UserStage user;                            // CPU: of a user's variant
  const runtime::Device* device = nullptr;        // GPU; nullptr: none, or an architecture alone
  const runtime::AttendModule* module = nullptr;  // of `device`

  bool on_gpu() const { return choice.on_gpu(); }
};

/// Checks, chooses, and, for a device that is there, compiles and loads the kernel: how many CTAs it fits decides how work is cut.
Setup make_setup(const AttentionSpec& spec, const Capacity& capacity, const EngineOptions& options);

/// Of plan buffers and partials: what the steps of any kind need at most.
plan::PlanLayout plan_layout_of(const Setup& setup, const Capacity& capacity);
/// Of the workspace. On a GPU it holds partials alone: counters travel with the plan.
runtime::ScratchLayout scratch_layout_of(const Setup& setup, const plan::PlanLayout& layout);

}  // namespace kvloom::api
