// The shared memory of the device's planner, and how it is launched.
#pragma once

#include "kvloom/device/plan/memory.h"

namespace kvloom::device_plan {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;  // at most
inline constexpr int kCtas = 16;  // a power of two. A plan of 1024 requests is 400 KB of items: more than one SM writes in 5 us
static_assert(kThreads >= plan::kMaxPlannedCtas);

/// Threads of a CTA: one a list and one a cut, as far as there are so many. Those that have nothing to do take time all the same.
constexpr int threads_for(int64_t lists, int32_t num_ctas) { return max_of<int64_t>(lists, num_ctas) <= kThreads / 2 ? kThreads / 2 : kThreads; }

/// What warps tell each other. Twice, in turn: what was told last may still be read.
inline constexpr int kMaxMost = 4;  // numbers of a most()
struct CtaMemory {
  Sum sums[2][kWarps];
  uint64_t counts[2][kWarps];
  uint64_t most[2][kMaxMost][kWarps];
  uint32_t totals[2][2][kWarps];
};

struct SharedMemory {
  CtaMemory cta;
  Memory memory;
  alignas(16) char tables[plan::kPlanTableBytes];
};
static_assert(sizeof(SharedMemory) <= 99 * 1024, "what a CTA may have on every chip from sm_80 up");

}  // namespace kvloom::device_plan
