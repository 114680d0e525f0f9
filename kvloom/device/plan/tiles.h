// Tiles: the rows of groups in pieces, each with the keys that some of them see, and where they begin on the line of cost.
#pragma once

#include "kvloom/device/plan/memory.h"

namespace kvloom::device_plan {

/// Tile number `i` of the line, but for where it begins. A group's tiles lie last rows first.
template <class Step>
KVLOOM_HD plan::PlannedTile tile_at(const Step& s, const Totals& totals, int32_t i) {
  const int32_t group = totals.tiles == totals.groups ? i : last_of(totals.groups, [&](int32_t g) { return s.groups[g].first_tile <= i; });
  const plan::PlannedGroup g = s.groups[group];
  const int32_t c = s.class_of(g.token_count);
  const plan::TileShape& shape = s.shape(c);
  const int32_t end = group + 1 < totals.groups ? s.groups[group + 1].first_tile : totals.tiles;
  const int32_t index = end - 1 - i, block = index / shape.tiles_per_token;
  const int32_t first = block * shape.tokens, last = min_of(first + shape.tokens, g.token_count);
  const plan::TileRows rows = plan::rows_of_tile(shape, s.args.group_size, first, last, index - block * shape.tiles_per_token);
  RowGroup keys{};
  keys.kv_end = g.kv_len;
  keys.kv_position = s.args.kv_position;
  const TokenRange seen = visible_tokens(keys, s.args.range, g.q_pos0 + first, g.q_pos0 + last - 1, g.prefix);
  return {group, rows.begin, seen.begin, seen.end, 0, 0, uint16_t(rows.count), uint16_t(c)};
}

/// The table of tiles, and what they add up to.
template <class Block, class Step>
KVLOOM_HD void make_tiles(Block& block, Step& s, Totals& totals) {
  enum { kDearest, kCheapest, kRows };  // kRows and the next: rows of a tile of class 0, 1
  uint64_t most[4] = {};
  const auto read = [&](int32_t i, plan::PlannedTile& t) -> Sum {  // units of class 0, of class 1, cost
    t = tile_at(s, totals, i);
    const int32_t c = t.kernel_class, runs = s.runs(c).runs;
    const int64_t full = s.run_cost(t, 0).unit, last = s.run_cost(t, runs - 1).unit;
    most[kDearest] = max_of(most[kDearest], uint64_t(full));
    most[kCheapest] = max_of(most[kCheapest], uint64_t(kNever - last));
    most[kRows] = max_of(most[kRows], uint64_t(c == 0 ? t.row_count : 0));
    most[kRows + 1] = max_of(most[kRows + 1], uint64_t(c == 1 ? t.row_count : 0));
    return Sum::of(c == 0 ? runs : 0, c == 1 ? runs : 0, (runs - 1) * full + last);
  };
  const auto write = [&](int32_t i, plan::PlannedTile t, const Sum& before) {
    t.position = before.number;
    t.first_unit = before.first() + before.second();
    s.tiles[i] = t;
  };
  const Sum sum = block.template scan_most<plan::PlannedTile>(totals.tiles, most, read, write);
  totals.cost = sum.number;
  totals.units = sum.first() + sum.second();
  totals.class_units[0] = sum.first();
  totals.class_units[1] = sum.second();
  totals.max_unit_cost = int64_t(most[kDearest]);
  totals.min_unit_cost = kNever - int64_t(most[kCheapest]);
  for (int c = 0; c < 2; ++c) totals.max_rows[c] = int32_t(most[kRows + c]);
}

/// The tile that holds unit `unit`.
template <class Step>
KVLOOM_HD int32_t tile_of_unit(const Step& s, const Totals& totals, int32_t unit) {
  if (Step::kOneTileEach || s.runs(0).runs == s.runs(1).runs) return int32_t(s.args.unit_runs.divide(uint32_t(unit)));
  return last_of(totals.tiles, [&](int32_t t) { return s.tiles[t].first_unit <= unit; });
}

/// Largest fixed cost of a unit of a class.
template <class Step>
KVLOOM_HD int64_t max_fixed_cost(const Step& s, const Totals& totals, int32_t c) {
  return plan::run_cost_of(s.kernel_class(c), totals.max_rows[c], 0, s.runs(c).heads).fixed;
}

}  // namespace kvloom::device_plan
