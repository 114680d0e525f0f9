// stream: the units end to end, cut into equal shares (pour.cc). Where there are few units, whole ones are tried first: an assignment
// that cuts nothing has nothing to merge, and is kept if no CTA gets more than the mean plus one item of one KV tile (or plus
// keep_whole_margin, if that is less).
#include "kvloom/plan/policy.h"
#include "kvloom/plan/whole.h"

#include <algorithm>

namespace kvloom::plan {

bool place_whole(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  out.policy = Policy::stream;
  std::vector<Piece>& pieces = out.pieces;
  const int32_t num_ctas = config.num_ctas;
  if (work.num_units > std::max<int64_t>(int64_t(kWholeUnitsPerCta) * num_ctas, kMostWholeUnits)) return false;
  const int64_t bound = whole_bound(work, config);
  const WholeAttempt attempt = whole_attempt(work.num_units, work.units[0] + work.units[1], num_ctas, work.total_cost(),
                                             std::max(work.max_unit_cost[0], work.max_unit_cost[1]), work.min_unit_cost, bound, config.saturating_ctas > 0);
  if (attempt == WholeAttempt::none) return false;
  if (attempt == WholeAttempt::in_turn) {
    int32_t cta = 0;
    for (int32_t i = 0; i < int32_t(work.tiles.size()); ++i) {
      const Tile& t = work.tiles[i];
      for (int32_t run = 0; run < t.runs; ++run) {
        add_piece(pieces, i, run, 1, t.kv_begin, t.kv_end, cta);
        cta = cta + 1 == num_ctas ? 0 : cta + 1;
      }
    }
    return true;
  }
  memory.loads.assign(num_ctas, 0);
  whole_kinds(work, {}, memory.kinds);
  if (!longest_first_fits(memory, memory.loads, bound)) return false;
  longest_first(memory, memory.loads, pieces);
  return true;
}

void cut_stream(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  out.policy = Policy::stream;
  StreamRules rules{config.classes, {config.snap_memory, config.snap_compute}};
  schedule_cuts(work, rules, config.num_ctas, memory, out);
}

void schedule_stream(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  if (!place_whole(work, config, memory, out)) cut_stream(work, config, memory, out);
}

}  // namespace kvloom::plan
