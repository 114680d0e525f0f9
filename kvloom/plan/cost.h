// What work costs, in the unit of SchedulerConfig: one formula for the planners that balance by it (the host's, the device's) and for everybody
// who reports it.
#pragma once

#include "kvloom/contract/plan_format.h"

namespace kvloom::plan {

/// Cost of an item: `rows` packed rows against `tokens` keys for each of `heads` KV heads. Does not wrap: costs of a class are at most 2^30
/// (check_config), rows 2^12, heads 2^8, tokens 2^29.
KVLOOM_HD uint64_t work_cost(const KernelClass& c, int64_t rows, int64_t tokens, int64_t heads) {
  return uint64_t(c.cost_per_item) + (uint64_t(c.cost_per_tile_row) * uint64_t(rows) + uint64_t(c.cost_per_token) * uint64_t(tokens)) * uint64_t(heads);
}

/// Cost of an item of a plan with these classes.
KVLOOM_HD uint64_t work_cost(const PlanHeader& header, const WorkItem& item) {
  return work_cost(header.classes[item.kernel_class], item.row_count, int64_t(item.kv_end) - item.kv_begin, item.kv_head_count);
}

/// Largest cost of a step: policies pack a load and a CTA number into 64 bits.
inline constexpr int64_t kMaxStepCost = int64_t(1) << 46;

/// Costs of a run of a tile, as an item.
struct RunCost {
  int64_t unit;   // with all of its keys
  int64_t fixed;  // with none
  int64_t token;  // of a key
};
KVLOOM_HD RunCost run_cost_of(const KernelClass& c, int32_t rows, int32_t tokens, int32_t heads) {
  const int64_t fixed = int64_t(work_cost(c, rows, 0, heads)), token = int64_t(c.cost_per_token) * heads;
  return {fixed + token * tokens, fixed, token};
}

/// a / b for a >= 0, b > 0, by a 32-bit division (several times faster on many cores) where that suffices.
KVLOOM_HD int64_t short_div(int64_t a, int64_t b) { return ((a | b) >> 32) == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b; }

}  // namespace kvloom::plan
