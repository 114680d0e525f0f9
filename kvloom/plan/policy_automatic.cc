// automatic: by the step's mix. Decode only: stream, or heap where there are no more units than CTAs (fewer pieces a CTA). With
// compute-bound tiles: fill.
#include "kvloom/plan/policy.h"

namespace kvloom::plan {

void schedule_automatic(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  if (work.units[1] > 0) return schedule_fill(work, config, memory, out);
  const bool few = work.num_units <= config.num_ctas && work.max_unit_cost[0] > whole_bound(work, config);
  return few ? schedule_heap(work, config, memory, out) : schedule_stream(work, config, memory, out);
}

}  // namespace kvloom::plan
