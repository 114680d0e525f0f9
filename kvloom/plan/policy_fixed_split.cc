// fixed_split: bits that depend on the request alone. The key range of a row is folded in chunks of split_tokens, counted from list token
// 0, left to right, whatever the batch. Which CTA does which chunks is free, so the schedule is automatic's, with cuts between chunks alone:
// a CTA folds its consecutive chunks of a row tile by itself, and where it begins amid a tile it writes one partial a chunk, which the
// merge folds in the same order. Rows that an earlier level began are not cut. Items of the compute class, where its kernel gives the same bits,
// neither: a partial of theirs is as long as the keys of a chunk. They are placed as fill does.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"

namespace kvloom::plan {
namespace {

/// Partials of one chunk and one head of the pieces of cut units.
int64_t chunk_partials(const Work& work, const std::vector<Piece>& pieces, int64_t split) {
  int64_t count = 0;
  for (const Piece& p : pieces) {
    const Tile& t = work.tiles[size_t(p.tile)];
    if (p.kv_begin > t.kv_begin) count += ceil_div<int64_t>(p.kv_end - p.kv_begin, split) * run_heads(t, p.run);
    else if (p.kv_end < t.kv_end) count += run_heads(t, p.run);
  }
  return count;
}

}  // namespace

void schedule_fixed_split(const Work& work, const SchedulerConfig& config, int64_t max_partials, PolicyMemory& memory, Schedule& out) {
  const StreamRules rules{config.classes, {config.snap_memory, config.snap_compute}, config.split_tokens, max_partials};
  const auto place = [&] {
    if (work.units[1] > 0) return fill_around(work, config, rules, false, memory, out);
    if (place_whole(work, config, memory, out)) return;
    if (!work.levels && place_heap(work, config, {config.split_tokens, config.split_tokens}, memory, out)) {
      if (chunk_partials(work, out.pieces, config.split_tokens) <= max_partials) return;
      out.pieces.clear();
    }
    schedule_cuts(work, rules, config.num_ctas, memory, out);
  };
  place();
  out.policy = Policy::fixed_split;
  out.chunk_cap = 0;
}

}  // namespace kvloom::plan
