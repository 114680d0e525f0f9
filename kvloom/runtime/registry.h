// Which kernels exist, what each of them runs, what it costs, and how it is entered. Adding a kernel is one row of the table in
// registry.cc; choosing one is a function of the spec and the machine alone, and every kernel that was not chosen says why.
#pragma once

#include "kvloom/contract/params.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"
#include "kvloom/cpu/target.h"
#include "kvloom/support/thread_pool.h"

#include <string>
#include <vector>

namespace kvloom::runtime {

/// How an attention kernel of the CPU is entered. `scratch.counters` are zero before and after.
using CpuAttend = void (*)(const AttentionSpec& spec, const PlanView& plan, const AttendParams& params, const Scratch& scratch,
                           ThreadPool& pool, cpu::Target target);

/// One row of the table.
struct AttendKernel {
  const char* family;  // "cpu-avx2": the second word of its keys
  cpu::Target target;
  int32_t flop_per_cycle;  // of one core, fp32 multiply-adds counted as two: the cost that decides between kernels that could run
  std::string (*refusal)(const AttentionSpec& spec);  // "" if it runs `spec`, else why not: one clause
  CpuAttend entry;
};

/// All attention kernels compiled into this library, whatever the machine.
Span<const AttendKernel> attend_kernels();

/// One kernel that was considered for a spec.
struct Candidate {
  const AttendKernel* kernel;
  std::string key;
  std::string declined;  // "" for the one that was chosen
};

struct Choice {
  std::vector<Candidate> candidates;
  int32_t chosen = -1;

  const Candidate& winner() const { return candidates[size_t(chosen)]; }
};

/// Picks the kernel for `spec`. `wanted`: a target by name ("avx2"), or nullptr for the best of this machine.
/// Throws invalid_argument (no such target) or unsupported (every candidate with its reason).
Choice choose_attend(const AttentionSpec& spec, const char* wanted);

}  // namespace kvloom::runtime
