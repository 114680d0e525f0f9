// Tiles: the rows of groups in pieces, each with the keys that some of them see, and where they begin on the line of cost.
#pragma once

#include "kvloom/device/plan/memory.h"

namespace kvloom::device_plan {

/// Tile number `i` of the line, but for where it begins. A group's tiles lie last rows first.
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

struct LineSum {
  int64_t cost = 0;
  int32_t units = 0;

  KVLOOM_HD LineSum operator+(const LineSum& o) const { return {cost + o.cost, units + o.units}; }
  KVLOOM_HD LineSum operator-(const LineSum& o) const { return {cost - o.cost, units - o.units}; }
};

struct Extremes {
  int64_t max_unit_cost = 0;
  int64_t min_unit_cost = kNever;
  int32_t max_rows[2] = {0, 0};
  int32_t compute_units = 0;

  KVLOOM_HD static Extremes join(const Extremes& a, const Extremes& b) {
    return {max_of(a.max_unit_cost, b.max_unit_cost), min_of(a.min_unit_cost, b.min_unit_cost),
            {max_of(a.max_rows[0], b.max_rows[0]), max_of(a.max_rows[1], b.max_rows[1])}, a.compute_units + b.compute_units};
  }
};

/// The table of tiles, and what they add up to.
template <class Block>
KVLOOM_HD void make_tiles(Block& block, Step& s, Totals& totals) {
  Extremes mine;
  const auto read = [&](int32_t i, plan::PlannedTile& t) -> LineSum {
    t = tile_at(s, totals, i);
    const int32_t runs = s.runs(t.kernel_class).runs;
    mine.max_unit_cost = max_of(mine.max_unit_cost, s.run_cost(t, 0).unit);
    mine.min_unit_cost = min_of(mine.min_unit_cost, s.run_cost(t, runs - 1).unit);
    for (int c = 0; c < 2; ++c) mine.max_rows[c] = max_of(mine.max_rows[c], t.kernel_class == c ? int32_t(t.row_count) : 0);
    mine.compute_units += t.kernel_class == 1 ? runs : 0;
    return {s.tile_cost(t), runs};
  };
  const auto write = [&](int32_t i, plan::PlannedTile t, const LineSum& before) {
    t.position = before.cost;
    t.first_unit = before.units;
    s.tiles[i] = t;
  };
  const LineSum sum = block.template scan<plan::PlannedTile, LineSum>(totals.tiles, read, write);
  const Extremes all = block.reduce(mine);
  totals.cost = sum.cost;
  totals.units = sum.units;
  totals.class_units[0] = sum.units - all.compute_units;
  totals.class_units[1] = all.compute_units;
  totals.max_unit_cost = all.max_unit_cost;
  totals.min_unit_cost = all.min_unit_cost;
  for (int c = 0; c < 2; ++c) totals.max_rows[c] = all.max_rows[c];
}

/// The tile that holds unit `unit`.
KVLOOM_HD int32_t tile_of_unit(const Step& s, const Totals& totals, int32_t unit) {
  if (s.runs(0).runs == s.runs(1).runs) return int32_t(s.args.unit_runs.divide(uint32_t(unit)));
  return last_of(totals.tiles, [&](int32_t t) { return s.tiles[t].first_unit <= unit; });
}

/// Largest fixed cost of a unit of a class.
KVLOOM_HD int64_t max_fixed_cost(const Step& s, const Totals& totals, int32_t c) {
  return plan::run_cost_of(s.kernel_class(c), totals.max_rows[c], 0, s.runs(c).heads).fixed;
}

}  // namespace kvloom::device_plan
