// automatic: by the step's mix. Decode only: stream, or heap where there are no more units than CTAs (fewer pieces a CTA) and it comes out
// balanced to a tile. With compute-bound tiles: fill.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"

namespace kvloom::plan {

void schedule_automatic(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  if (work.units[1] > 0) return schedule_fill(work, config, memory, out);
  const bool few = work.num_units <= config.num_ctas && work.max_unit_cost[0] > whole_bound(work, config);
  if (few) {
    schedule_heap(work, config, memory, out);
    // Longest first can leave a whole chunk on top of a CTA that is full; a stream can't leave more than a tile.
    if (max_load(memory.loads) <= ceil_div<int64_t>(work.total_cost(), config.num_ctas) + grain(work, config)) return;
    out.pieces.clear();
    out.chunk_cap = 0;
  }
  schedule_stream(work, config, memory, out);
}

}  // namespace kvloom::plan
