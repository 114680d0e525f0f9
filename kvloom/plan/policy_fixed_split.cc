// fixed_split: bits that depend on the request alone. The key range of a row is folded in chunks of split_tokens, counted from list token
// 0, left to right, whatever the batch. Which CTA does which chunks is free, so the schedule is a stream whose cuts fall between chunks:
// a CTA folds its consecutive chunks of a row tile in registers, and where it begins amid a tile it writes one partial a chunk, which the
// merge folds in the same order. One kernel class for every query length; rows that an earlier level began are not cut.
#include "kvloom/plan/policy.h"

namespace kvloom::plan {

void schedule_fixed_split(const Work& work, const SchedulerConfig& config, int64_t max_partials, PolicyMemory& memory, Schedule& out) {
  StreamRules rules{config.classes, {config.snap_memory, config.snap_compute}, config.split_tokens, max_partials};
  out.policy = Policy::fixed_split;
  schedule_cuts(work, rules, config.num_ctas, memory, out);
}

}  // namespace kvloom::plan
