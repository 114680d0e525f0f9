// automatic: by the step's mix. With compute-bound tiles: fill, or heap where the step is short, it comes out balanced, and merges don't come all at once. Decode only: stream where no unit need be cut, else heap, which cuts fewer, where it comes
// out balanced, or nearly so with levels; what it is off by more than a tile matters where CTAs alone have the memory, not where they share one.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"
#include "kvloom/plan/whole.h"

namespace kvloom::plan {
namespace {

/// True if all items of many rows of shared levels are one prefix's: every request's last merge waits for its last part, and fill leaves time for that.
bool has_one_prefix(const Work& work, const SchedulerConfig& config) {
  int32_t group = -1;
  if (config.cost_shared == 0) return false;
  for (const Tile& t : work.tiles) {
    if (!t.shared || t.kernel_class != 1 || t.runs == 0) continue;
    if (group >= 0 && t.group != group) return false;
    group = t.group;
  }
  return group >= 0;
}

/// Reading and computing at a time are worth an eighth of a step of both classes; what fill cuts for that costs more in a short one.
bool place_short(const Work& work, const SchedulerConfig& config, const int64_t (&grid)[2], PolicyMemory& memory, Schedule& out) {
  const int64_t mean = ceil_div<int64_t>(work.total_cost(), config.num_ctas);
  if (work.units[0] == 0 || mean >= config.fill_from || work.num_units > 2 * int64_t(kWholeUnitsPerCta) * config.num_ctas) return false;
  if (has_one_prefix(work, config)) return false;
  return heap_within(mean + mean / 4, work, config, grid, memory, out);
}

/// Levels of few rows: nearly all items are partial and short as it is, and one that is cut has two more to merge. Steps of 156 and 240 requests in fours
/// take 0.95 to 0.98 with heap of what they take with stream (docs: lab notes).
bool place_levels(const Work& work, const SchedulerConfig& config, const int64_t (&grid)[2], PolicyMemory& memory, Schedule& out) {
  if (!work.shared || config.cost_level_item == 0) return false;
  const int64_t mean = ceil_div<int64_t>(work.total_cost(), config.num_ctas);
  return heap_within(mean + mean / 4, work, config, grid, memory, out);
}

}  // namespace

void schedule_automatic(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  const int64_t grid[2] = {config.classes[0].tile_kv, config.classes[1].tile_kv};
  if (work.units[1] > 0) {
    if (place_short(work, config, grid, memory, out)) return;
    return schedule_fill(work, config, memory, out);
  }
  if (place_whole(work, config, memory, out)) return;
  if (place_levels(work, config, grid, memory, out)) return;
  if (place_heap(work, config, grid, memory, out)) return;
  cut_stream(work, config, memory, out);
}

}  // namespace kvloom::plan
