// automatic: by the step's mix. With compute-bound tiles: fill. Decode only: stream where no unit need be cut, else heap, which cuts fewer, where it comes
// out balanced; what it is off by more than a tile matters where CTAs alone have the memory, not where they share one.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"

namespace kvloom::plan {

void schedule_automatic(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  if (work.units[1] > 0) return schedule_fill(work, config, memory, out);
  if (place_whole(work, config, memory, out)) return;
  const int64_t grid[2] = {config.classes[0].tile_kv, config.classes[1].tile_kv};
  if (place_heap(work, config, grid, memory, out)) return;
  cut_stream(work, config, memory, out);
}

}  // namespace kvloom::plan
