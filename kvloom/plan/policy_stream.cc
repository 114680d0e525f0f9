// stream: the units end to end, cut into equal shares (pour.cc). Where there are few units, whole ones are tried first: an assignment
// that cuts nothing has nothing to merge, and is kept if no CTA gets more than the mean plus one item of one KV tile (or plus
// keep_whole_margin, if that is less).
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

/// Whole units beyond this many a CTA are not worth the search: a stream cuts at most one unit a CTA.
constexpr int32_t kWholeUnitsPerCta = 4;

/// ... nor where their costs differ by more than so many times what a CTA may have above the mean: of 8,000 random steps 0.7 % came out
/// balanced then (lab notes).
constexpr int64_t kWholeSpread = 32;

/// Places whole units so that no CTA has more than `bound`; false (and no pieces) if that fails, as it mostly does.
bool place_whole(const Work& work, int32_t num_ctas, int64_t bound, PolicyMemory& memory, std::vector<Piece>& pieces) {
  const int64_t largest = std::max(work.max_unit_cost[0], work.max_unit_cost[1]);
  if (largest > bound) return false;
  if (work.num_units <= num_ctas) {
    int32_t cta = 0;
    for (int32_t i = 0; i < int32_t(work.tiles.size()); ++i) {
      const Tile& t = work.tiles[i];
      for (int32_t run = 0; run < t.runs; ++run) add_piece(pieces, i, run, 1, t.kv_begin, t.kv_end, cta++);
    }
    return true;
  }
  if (largest - work.min_unit_cost > kWholeSpread * (bound - work.total_cost() / num_ctas)) return false;
  // Some CTA gets so many units, each of which costs as much as the cheapest: with equal lengths nothing more has to be tried.
  if (ceil_div(work.units[0] + work.units[1], num_ctas) * work.min_unit_cost > bound) return false;
  memory.loads.assign(num_ctas, 0);
  whole_kinds(work, {}, memory.kinds);
  if (!longest_first_fits(memory, memory.loads, bound)) return false;
  longest_first(memory, memory.loads, pieces);
  return true;
}

}  // namespace

void schedule_stream(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  out.policy = Policy::stream;
  const int32_t ctas = config.num_ctas;
  if (work.num_units <= int64_t(kWholeUnitsPerCta) * ctas) {
    if (place_whole(work, ctas, whole_bound(work, config), memory, out.pieces)) return;
  }
  StreamRules rules{config.classes, {config.snap_memory, config.snap_compute}};
  schedule_cuts(work, rules, ctas, memory, out);
}

}  // namespace kvloom::plan
