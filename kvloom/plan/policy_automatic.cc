// automatic: by the step's mix. With compute-bound tiles: fill. Decode only: stream where no unit need be cut, else heap, which cuts fewer, where it comes
// out balanced; what it is off by more than a tile matters where CTAs alone have the memory, not where they share one.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"
#include "kvloom/plan/whole.h"

#include <algorithm>

namespace kvloom::plan {

namespace {

/// The load up to which heap is preferred to a stream. Longest first can leave a whole chunk on top of a CTA that is full; a stream can't leave more than
/// a tile. But every cut costs two partials and a merge behind everything else, and where `saturating_ctas` have all of the memory's bandwidth, the last
/// CTAs go faster: half of that is counted on.
int64_t heap_bound(const Work& work, const SchedulerConfig& config) {
  const int64_t mean = ceil_div<int64_t>(work.total_cost(), config.num_ctas), tile = mean + grain(work, config);
  if (config.saturating_ctas <= 0 || config.saturating_ctas >= config.num_ctas) return tile;
  return std::max(tile, mean + mean * (config.num_ctas - config.saturating_ctas) / (2 * int64_t(config.saturating_ctas)));
}

}  // namespace

void schedule_automatic(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  if (work.units[1] > 0) return schedule_fill(work, config, memory, out);
  if (place_whole(work, config, memory, out)) return;
  // Of more units a cut is a small part of the step, and longest first takes the host longer than that.
  const bool shares_memory = config.saturating_ctas > 0 && config.saturating_ctas < config.num_ctas;
  if (work.num_units <= config.num_ctas || (shares_memory && work.num_units <= int64_t(kWholeUnitsPerCta) * config.num_ctas)) {
    schedule_heap(work, config, memory, out);
    if (max_load(memory.loads) <= heap_bound(work, config)) return;
    out.pieces.clear();
    out.chunk_cap = 0;
  }
  cut_stream(work, config, memory, out);
}

}  // namespace kvloom::plan
