// From cuts, or from an assignment of whole units, to the sections of the plan, as plan/emit.cc and plan/emit_stream.cc write them.
#pragma once

#include "kvloom/device/plan/tiles.h"

namespace kvloom::device_plan {

/// Counts and costs of the header that depend on the step.
struct Counts {
  int32_t items = 0;
  int32_t units = 0;
  int32_t touches = 0;
  int32_t scratch_rows = 0;
  int64_t cost_total = 0;
  int64_t cost_max = 0;
};

/// What happens at a cut.
struct CutHere {
  int32_t parts = 0;  // 1: a part of a unit begins
  int32_t units = 0;  // 1: ... the first behind the unit's beginning
  int32_t rows = 0;   // of a partial of the unit

  /// Of those before a CTA, in a scan: parts and units have room beside each other.
  KVLOOM_HD Sum sum(int64_t load) const { return Sum::of(parts | units * parts << 16, parts * rows * (1 + units), load); }
  KVLOOM_HD static CutHere of(uint64_t counts) {
    const int32_t first = int32_t(uint32_t(counts));
    return {first & 0xffff, first >> 16, int32_t(counts >> 32)};
  }
  KVLOOM_HD static CutHere of(const Sum& s) { return of(s.counts); }
};
static_assert(plan::kMaxPlannedCtas < 1 << 15);

/// True if no part of the unit begins before cut `c`, which is inside it. Several cuts may lie at one place.
KVLOOM_HD bool is_first_inside(const CutMemory& m, int32_t c) {
  int32_t before = c - 1;
  while (m.cut[before].is(m.cut[c])) --before;  // cut 0 is not inside
  return m.cut[before].unit != m.cut[c].unit || !m.cut[before].inside();
}

/// What parts there are and where their partials go; cta_indptr.
template <class Block, class Step>
KVLOOM_HD Counts count_parts(Block& block, Step& s, const Totals& totals) {
  CutMemory& m = s.memory.cuts;
  const int32_t ctas = s.num_ctas();
  uint64_t most[1] = {0};
  const auto read = [&](int32_t c, CutHere& own) {
    const Cut from = m.cut[c], to = m.cut[c + 1];
    int64_t load = to.position - from.position;
    own = {};
    if (from.inside()) {
      const plan::PlannedTile& t = s.tiles[tile_of_unit(s, totals, from.unit)];
      const int32_t run = from.unit - t.first_unit;
      const bool begins = !from.is(to);
      if (begins) load += s.run_cost(t, run).fixed;
      own = {begins, is_first_inside(m, c), t.row_count * s.heads_of(t, run)};
    }
    most[0] = max_of(most[0], uint64_t(load));
    if constexpr (Step::kOneTileEach) return own.sum(0).counts;  // parts cost the same before their keys, all of them
    else return own.sum(load);
  };
  const auto write = [&](int32_t c, const CutHere& own, const auto& sum) {
    const Cut& from = m.cut[c];
    const CutHere before = CutHere::of(sum);
    const int32_t parts = before.parts + own.parts, units = before.units + own.units * own.parts;  // and its own
    m.item[c] = from.unit + before.parts + from.inside();
    if (block.writes(c)) s.cta_indptr()[c] = m.item[c];
    m.part[c] = {before.units + own.units - 1, before.parts + before.units + own.units, before.rows + own.rows * own.units};
    if (units > before.units) {
      m.unit_touch[before.units] = before.parts + before.units;
      m.unit_cut[before.units] = c;
    }
    if (c + 1 < ctas) return;
    m.item[ctas] = totals.units + parts;
    if (block.writes(c)) s.cta_indptr()[ctas] = m.item[ctas];
    m.unit_touch[units] = parts + units;
  };
  const auto sum = block.template scan_most<CutHere>(ctas, most, read, write);
  const CutHere all = CutHere::of(sum);
  int64_t cost;
  if constexpr (Step::kOneTileEach) cost = totals.cost + all.parts * s.args.one_tile_cost[0].fixed;
  else cost = sum.number;
  return {totals.units + all.parts, all.units, all.parts + all.units, all.rows, cost, int64_t(most[0])};
}

/// Cuts an item to the part of its unit between `from` and `to`, the cuts before and behind the CTA's items, and says where the partial goes.
template <class Step>
KVLOOM_HD void make_part(Step& s, int32_t c, bool begins_inside, bool ends_inside, const Cut& from, const Cut& to, WorkItem& item) {
  const int32_t first = item.kv_begin;
  if (begins_inside) item.kv_begin = first + from.tokens;
  if (ends_inside) item.kv_end = first + to.tokens;
  const Part& part = s.memory.cuts.part[begins_inside ? c : c + 1];
  item.touch_begin = begins_inside ? part.touch : part.touch - 1;
  item.partial_row = begins_inside ? part.row : part.row - item.row_count * item.kv_head_count;
  item.touch_count = 1;
  s.entries()[item.touch_begin] = {item.partial_row, item.row_count};
  s.touches()[item.touch_begin] = part.merge_unit;
}

/// Item `k` of CTA `c`.
template <class Block, class Step>
KVLOOM_HD void put_item(Block& block, Step& s, const Totals& totals, int32_t c, int32_t k) {
  const CutMemory& m = s.memory.cuts;
  const Cut from = m.cut[c], to = m.cut[c + 1];
  const int32_t unit = from.unit + k;
  const plan::PlannedTile t = s.tiles[tile_of_unit(s, totals, unit)];
  WorkItem item = s.whole_item(t, unit - t.first_unit);
  const bool begins_inside = k == 0 && from.inside(), ends_inside = to.inside() && unit == to.unit;
  if (begins_inside | ends_inside) make_part(s, c, begins_inside, ends_inside, from, to, item);
  block.put(&s.items()[m.item[c] + k], item);
}

/// Items of all CTAs. Where there are few, some threads share a CTA's; else CTAs may have very different numbers of them, and each is looked for.
template <class Block, class Step>
KVLOOM_HD void put_items(Block& block, Step& s, const Totals& totals, int32_t items) {
  const CutMemory& m = s.memory.cuts;
  const int32_t ctas = s.num_ctas();
  constexpr int32_t kShift = 4, kShare = 1 << kShift;
  if (items > kShare * ctas) {
    block.each_out(items, [&](int32_t i) {
      const int32_t c = last_of(ctas, [&](int32_t cta) { return m.item[cta] <= i; });
      put_item(block, s, totals, c, i - m.item[c]);
    });
    return;
  }
  block.each_out(ctas * kShare, [&](int32_t i) {
    const int32_t c = i >> kShift, count = m.item[c + 1] - m.item[c];
    for (int32_t k = i & (kShare - 1); k < count; k += kShare) put_item(block, s, totals, c, k);
  });
}

template <class Block, class Step>
KVLOOM_HD void put_unit(Block&, const Step& s, const Totals& totals, int32_t u) {
  const CutMemory& m = s.memory.cuts;
  const Cut& cut = m.cut[m.unit_cut[u]];
  const plan::PlannedTile& t = s.tiles[tile_of_unit(s, totals, cut.unit)];
  const int32_t run = cut.unit - t.first_unit;
  MergeUnit unit;
  unit.row_begin = s.groups[t.group].token_begin * s.args.group_size + t.row_begin;
  unit.row_count = t.row_count;
  unit.kv_head = s.kv_head_of(t, run);
  unit.kv_head_count = s.heads_of(t, run);
  unit.entry_begin = m.unit_touch[u];
  unit.entry_count = unit.arrivals = m.unit_touch[u + 1] - unit.entry_begin;
  s.units()[u] = unit;
  s.args.counters[u] = 0;
}

/// Items, merge units, entries and touches of a line that is cut.
template <class Block, class Step>
KVLOOM_HD Counts emit_cuts(Block& block, Step& s, const Totals& totals) {
  const Counts counts = count_parts(block, s, totals);
  put_items(block, s, totals, counts.items);
  block.each_out(counts.units, [&](int32_t u) { put_unit(block, s, totals, u); });
  return counts;
}

/// Units 0, 1, ... to CTAs 0, 1, ... and round again: at most one each, or units that all cost the same.
template <class Block, class Step>
KVLOOM_HD Counts emit_in_turn(Block& block, Step& s, const Totals& totals) {
  const int32_t ctas = s.num_ctas(), rounds = int32_t(uint32_t(totals.units) / uint32_t(ctas)), rest = totals.units - rounds * ctas;
  const auto first_item = [&](int32_t c) { return c * rounds + min_of(c, rest); };
  block.each_out(ctas + 1, [&](int32_t c) { s.cta_indptr()[c] = first_item(c); });
  block.each_out(totals.units, [&](int32_t u) {
    const int32_t round = int32_t(uint32_t(u) / uint32_t(ctas));
    const plan::PlannedTile& t = s.tiles[tile_of_unit(s, totals, u)];
    block.put(&s.items()[first_item(u - round * ctas) + round], s.whole_item(t, u - t.first_unit));
  });
  return {totals.units, 0, 0, 0, totals.cost, (rounds + (rest > 0)) * totals.max_unit_cost};
}

}  // namespace kvloom::device_plan
