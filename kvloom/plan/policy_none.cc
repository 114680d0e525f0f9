// none: one CTA a unit, in order, nothing is cut or balanced. The ablation.
#include "kvloom/plan/policy.h"

namespace kvloom::plan {

void schedule_none(const Work& work, const SchedulerConfig& config, PolicyMemory&, Schedule& out) {
  out.policy = Policy::none;
  int32_t cta = 0;
  for (int32_t i = 0; i < int32_t(work.tiles.size()); ++i) {
    const Tile& t = work.tiles[i];
    for (int32_t run = 0; run < t.runs; ++run) {
      add_piece(out.pieces, i, run, 1, t.kv_begin, t.kv_end, cta);
      if (++cta == config.num_ctas) cta = 0;
    }
  }
}

}  // namespace kvloom::plan
