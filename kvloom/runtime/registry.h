// Which kernels exist, what each of them runs, what it costs, and how it is entered. Adding a kernel is one row of the table in
// registry.cc; choosing one is a function of the spec and the machine alone, and every kernel that was not chosen says why.
#pragma once

#include "kvloom/contract/backend.h"
#include "kvloom/contract/params.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/contract/timeline.h"
#include "kvloom/cpu/chunk.h"
#include "kvloom/jit/unit.h"
#include "kvloom/plan/scheduler_config.h"
#include "kvloom/runtime/gpu_target.h"
#include "kvloom/support/thread_pool.h"

#include <optional>
#include <string>
#include <vector>

namespace kvloom::runtime {

/// How an attention kernel of the CPU is entered. `scratch.counters` are zero before and after.
using CpuAttend = void (*)(const AttentionSpec& spec, const PlanView& plan, const AttendParams& params, const Scratch& scratch,
                           ThreadPool& pool, cpu::Target target, const cpu::UserStage& user, CtaTimes* timeline);

/// Tiles and costs of steps of one kind alone, where they have kernels of their own: of one class, or by their rows.
struct OwnSchedules {
  std::optional<SchedulerConfig> memory, compute;
  std::optional<SchedulerConfig> memory_32;  // no request has more than 32 packed rows, and some have more than others' compute_rows_above
  bool all_compute_mixed = false;  // attend_compute can't run the spec: steps of many rows run attend_mixed, alone too
  bool small_computes = false;     // attend_small is for many rows alone, fetched one by one; else for few rows of small engines
  bool fetches_rows = false;       // small_computes: steps planned by `compute` run it: attend_compute can't run the spec
};

/// What a family of GPU kernels brings: plain functions of the spec and the chip.
struct GpuFamily {
  std::string (*refusal)(const AttentionSpec& spec, const GpuTarget& target,
                         bool fixed_split);  // "" if it runs `spec`, else why not: one clause
  /// Tiles and costs of steps of all kinds into `config`; what is returned begins as that.
  OwnSchedules (*schedule)(const AttentionSpec& spec, const GpuTarget& target, SchedulerConfig& config);
  jit::Unit (*unit)(const AttentionSpec& spec, const GpuTarget& target, bool fixed_split);
  bool (*by_warpgroups)(const AttentionSpec& spec, bool fixed_split) = nullptr;  // whether steps of many rows run on wgmma, for explanations alone; nullptr: never
};

/// One row of the table.
struct AttendKernel {
  const char* family;       // "cpu-avx2", "sm80": the second word of its keys
  Backend backend;          // cpu or cuda
  int32_t flop_per_cycle;   // of one core or SM, multiply-adds counted as two: the cost that decides between kernels that could run
  int32_t bytes_per_cycle;  // CPU: that one core reads from memory when all of them read, nominal, for the ridge in explanations only
  cpu::Target target = cpu::Target::portable;                  // CPU
  std::string (*cpu_refusal)(const AttentionSpec&) = nullptr;  // CPU: "" if it runs the spec, else why not
  CpuAttend entry = nullptr;                                   // CPU
  GpuFamily gpu = {};                                          // GPU
};

/// All attention kernels that this library knows, whatever the machine.
Span<const AttendKernel> attend_kernels();

/// What the caller asks for.
struct Wanted {
  Backend backend = Backend::cpu;
  const char* cpu_target = nullptr;  // by name; nullptr: the best of this machine
  int32_t device = -1;               // ordinal; -1: the current context's, else 0
  const char* cuda_arch = nullptr;   // "sm_90a": choose for this architecture, device or not
  const char* family = nullptr;      // only this one; nullptr: the fastest
  bool fixed_split = false;          // the key says so where a family has kernels of their own for it
  bool timeline = false;             // GPU: with marks of time; the key is the same
};

/// One kernel that was considered for a spec.
struct Candidate {
  const AttendKernel* kernel;
  std::string key;
  std::string declined;  // "" for the one that was chosen
};

struct Choice {
  std::vector<Candidate> candidates;
  int32_t chosen = -1;
  GpuTarget gpu;   // where a GPU was looked at
  jit::Unit unit;  // GPU: what is compiled; its key leaves out what is data of the kernel

  const Candidate& winner() const { return candidates[size_t(chosen)]; }
  bool on_gpu() const { return winner().kernel->backend == Backend::cuda; }
};

/// Picks the kernel for `spec`. Throws invalid_argument (no such target, family, device or architecture) or unsupported (every candidate with its
/// reason).
Choice choose_attend(const AttentionSpec& spec, const Wanted& wanted);

}  // namespace kvloom::runtime
