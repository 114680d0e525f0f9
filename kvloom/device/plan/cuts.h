// The line of units cut into equal shares (plan/cuts.h), one thread a cut. Where a cut may lie depends on the one before it, a little: all are
// looked for at once, from a guess of their neighbours, until none moves any more. That is the answer, since the first cut is known.
#pragma once

#include "kvloom/device/plan/tiles.h"

namespace kvloom::device_plan {

KVLOOM_HD plan::CutRules cut_rules(const Step& s, const Totals& totals) {
  plan::CutRules rules{};
  for (int c = 0; c < 2; ++c) {
    const KernelClass& k = s.kernel_class(c);
    rules.grid[c] = k.tile_kv;
    rules.snap[c] = s.args.snap[c];
    if (totals.class_units[c] == 0) continue;
    rules.max_tile = max_of(rules.max_tile, k.cost_per_token * rules.grid[c] * s.runs(c).heads);
    rules.max_fixed = max_of(rules.max_fixed, max_fixed_cost(s, totals, c));
  }
  return rules;
}

/// The gap before a tile, or behind the last.
KVLOOM_HD Cut gap_before(const Step& s, const Totals& totals, int32_t tile, int64_t position) {
  if (tile >= totals.tiles) return {position, totals.tiles, totals.units, 0, false};
  return {position, tile, s.tiles[tile].first_unit, s.tiles[tile].kv_begin, false};
}

/// The cut for `target`, which lies in tile `tile`.
KVLOOM_HD Cut cut_at(const Step& s, const Totals& totals, const plan::CutRules& rules, int32_t tile, int64_t target, int64_t limit) {
  const plan::PlannedTile t = s.tiles[tile];
  const plan::HeadRuns& runs = s.runs(t.kernel_class);
  const plan::TileOnLine line = {t.position,    s.run_cost(t, 0), s.run_cost(t, runs.runs - 1), runs.last_heads != runs.heads, runs.runs - 1,
                                 t.kv_begin,    t.kv_end,         t.kernel_class,               false};
  const plan::TileCut c = plan::cut_tile(rules, line, target, limit);
  if (c.run == runs.runs) return gap_before(s, totals, tile + 1, c.position);
  return {c.position, tile, t.first_unit + c.run, c.kv, c.inside};
}

/// memory.cuts.cut of all CTAs. Returns how many times they were looked for.
template <class Block>
KVLOOM_HD int32_t find_cuts(Block& block, Step& s, const Totals& totals) {
  CutMemory& m = s.memory.cuts;
  const plan::CutRules rules = cut_rules(s, totals);
  const int32_t ctas = s.num_ctas();
  // A first guess: every cut at its target, in the tile of it. Without any cost, CTA 0 has everything.
  block.each(ctas + 1, [&](int32_t c) {
    const int64_t target = m.target[c] = plan::equal_shares_sum(totals.cost, ctas, c);
    m.item[c] = 0;
    if (c == 0) {
      m.cut[c] = gap_before(s, totals, 0, 0);
    } else if (c == ctas || totals.cost == 0) {
      m.cut[c] = gap_before(s, totals, totals.tiles, totals.cost);
    } else {
      // The last of the tiles that begin there: the others cost nothing.
      m.item[c] = last_of(totals.tiles, [&](int32_t t) { return s.tiles[t].position <= target; });
      m.cut[c] = {target, m.item[c], -1, 0, true};
    }
  });
  if (totals.cost == 0) return 0;
  int32_t times = 0;
  for (bool moved = true; moved; ++times) {
    bool mine = false;
    block.template two_steps<Cut>(
        ctas - 1,
        [&](int32_t i, Cut& to) {
          const int64_t before = m.target[i], target = m.target[i + 1];
          const Cut& previous = m.cut[i];
          if (target == before) {  // no share
            to = previous;
            return;
          }
          to = cut_at(s, totals, rules, m.item[i + 1], target, plan::cut_limit(rules, previous.position, previous.inside, target - before));
          if (to.comes_before(previous)) to = previous;
        },
        [&](int32_t i, const Cut& to) {
          Cut& now = m.cut[i + 1];
          mine |= !now.is(to) || now.position != to.position || now.inside != to.inside;
          now = to;
        });
    moved = block.any(mine);
  }
  return times;
}

}  // namespace kvloom::device_plan
