// The line of units cut into equal shares (plan/cuts.h), one thread a cut. Where a cut may lie depends on the one before it, a little: all are
// looked for at once, from a guess of their neighbours, until none moves any more. That is the answer, since the first cut is known. Most don't move
// at all: what a cut is made of stays in registers, with the limits for which it holds.
#pragma once

#include "kvloom/device/plan/tiles.h"

namespace kvloom::device_plan {

template <class Step>
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

/// The cut for `target`, which lies in tile `tile`.
template <class Step>
KVLOOM_HD Cut cut_at(const Step& s, const plan::CutRules& rules, int32_t tile, int64_t target, plan::CutLimits& limits) {
  const plan::PlannedTile t = s.tiles[tile];
  const plan::HeadRuns& runs = s.runs(s.class_of(t));
  const plan::TileOnLine line = {t.position,    s.run_cost(t, 0), s.run_cost(t, runs.runs - 1), runs.last_heads != runs.heads, runs.runs - 1,
                                 t.kv_begin,    t.kv_end,         s.class_of(t),                false};
  const plan::TileCut c = plan::cut_tile(rules, line, target, limits);
  return {c.position, c.inside ? c.kv - t.kv_begin : 0, t.first_unit + c.run};
}

/// plan::equal_shares_sum() of one total.
struct Shares {
  FastDivide ctas;
  int64_t each;
  int32_t rest;

  KVLOOM_HD Shares(const FastDivide& by, int64_t total)
      : ctas(by), each(total >> 31 == 0 ? int64_t(by.divide(uint32_t(total))) : total / by.divisor), rest(int32_t(total - each * by.divisor)) {}
  KVLOOM_HD int64_t sum(int32_t count) const { return each * count + ctas.divide(uint32_t(rest * count)); }
};

/// A cut that is being looked for.
struct Sought {
  int64_t before, target;  // of the cut before it, its own
  int32_t tile;            // of the target
  Cut found;               // whatever the cut before it ...
  int64_t from, to;        // ... if the limit lies in [from, to)
  Cut now;

  template <class Step>
  KVLOOM_HD void begin(const Step& s, const Totals& totals, const Shares& shares, int32_t c) {
    before = shares.sum(c - 1);
    target = shares.sum(c);
    // The last of the tiles that begin there: the others cost nothing.
    tile = last_of(totals.tiles, [&](int32_t t) { return s.tiles[t].position <= target; });
    from = to = 0;
  }
  /// Behind `previous`. Returns whether it moved.
  template <class Step>
  KVLOOM_HD bool look(const Step& s, const plan::CutRules& rules, const Cut& previous) {
    Cut next = previous;  // without a share
    if (target != before) {
      plan::CutLimits limits(plan::cut_limit(rules, previous.position, previous.inside(), target - before));
      if (limits.at < from || limits.at >= to) {
        found = cut_at(s, rules, tile, target, limits);
        from = limits.from, to = limits.to;
      }
      if (found.place() >= previous.place()) next = found;
    }
    const bool moved = !next.is(now) || next.position != now.position;
    now = next;
    return moved;
  }
};

/// memory.cuts.cut of all CTAs. Returns how many rounds that took.
template <class Block, class Step>
KVLOOM_HD int32_t find_cuts(Block& block, Step& s, const Totals& totals) {
  CutMemory& m = s.memory.cuts;
  const plan::CutRules rules = cut_rules(s, totals);
  const int32_t ctas = s.num_ctas();
  const Shares shares(s.args.shares, totals.cost);
  const Cut end = {totals.cost, 0, totals.units};
  return block.template settle<Sought>(ctas, [&](int32_t c, Sought& sought, int32_t round) {
    const int32_t from = (round + 1) % 2 * kCutsOfRound, to = round % 2 * kCutsOfRound;  // what is left is the first, whichever was written last
    if (c == 0) {
      if (round == 0) m.cut[ctas] = end;
      m.cut[to] = {0, 0, 0};
      return false;
    }
    if (totals.cost == 0) {  // CTA 0 has everything
      m.cut[to + c] = end;
      return false;
    }
    if (round == 0) sought.begin(s, totals, shares, c);
    Cut previous = {sought.before, 1, -1};  // a guess: at its target, inside some unit
    if (round > 0) previous = m.cut[from + c - 1];
    const bool moved = sought.look(s, rules, previous);
    m.cut[to + c] = sought.now;
    return moved;
  });
}

}  // namespace kvloom::device_plan
