// Where the working memory of a launch lies within one block of bytes.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/plan/planner.h"

namespace kvloom::runtime {

/// Every part starts on a cache line.
inline constexpr int64_t kScratchAlign = 64;

/// Byte offsets. `bytes` is exact: the end of the last part.
struct ScratchLayout {
  int64_t partial_o = 0;
  int64_t partial_lse = 0;
  int64_t counters = 0;
  int64_t arena = 0;
  int64_t arena_bytes = 0;  // of one thread
  int64_t bytes = 0;
};

/// `arena_bytes`: what one thread of `threads` needs. Throws over_capacity where the sum does not fit 62 bits.
ScratchLayout scratch_layout(const plan::PlanLayout& plan, int64_t arena_bytes, int32_t threads);

/// The parts of the block at `data` (kScratchAlign-aligned, layout.bytes long).
Scratch scratch_at(void* data, const ScratchLayout& layout);

}  // namespace kvloom::runtime
