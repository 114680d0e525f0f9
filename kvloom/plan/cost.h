// What work costs, in the unit of SchedulerConfig: one formula for the planner that balances by it and for everybody who reports it.
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

}  // namespace kvloom::plan
