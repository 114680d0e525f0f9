// From row groups to row tiles: what the policies place on CTAs. A tile is some packed rows of a group and the keys that they can see; it
// stands for one unit of work a run of neighbouring KV heads, and all of those are alike, so planning is mostly arithmetic on tiles.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/plan/cost.h"
#include "kvloom/plan/levels.h"
#include "kvloom/plan/scheduler_config.h"
#include "kvloom/plan/tile_shape.h"

#include <vector>

namespace kvloom::plan {

/// The item of a tile's first head run with all of its keys, final, and what planning needs besides: the items of a plan are copies.
struct Tile : WorkItem {
  int32_t first_unit;  // of run 0; run r is unit first_unit + r
  uint16_t runs;       // head runs of kv_head_count heads; 0: dropped, nothing to do
  uint8_t last_heads;  // KV heads of the last run, which may have fewer
  bool shared;         // of a shared level: goes first in its CTA
  bool several;        // some row of it is covered by another tile as well: never final
  bool pinned;         // must not be cut (fixed_split: rows that an earlier level began)
  bool needed;         // while overlaps are resolved: some row of it has keys nowhere
  int32_t token_cost;  // plan/cost.h, taken apart: of one key for one head, ...
  int64_t item_cost;   // ... of an item, ...
  int64_t rows_cost;   // ... and of its rows for one head
  int64_t unit_cost;   // of run 0
  int64_t cost;        // of all runs
};

/// KV heads of a run.
inline int32_t run_heads(const Tile& t, int32_t run) { return run + 1 == t.runs ? t.last_heads : t.kv_head_count; }
/// Runs that have kv_head_count heads: all, or all but the last.
inline int32_t full_runs(const Tile& t) { return t.last_heads == t.kv_head_count ? t.runs : t.runs - 1; }

/// What an item of a run costs whatever its keys.
inline int64_t fixed_cost(const Tile& t, int32_t run) { return t.item_cost + t.rows_cost * run_heads(t, run); }
/// Cost of `tokens` keys of a run.
inline int64_t run_cost(const Tile& t, int32_t run, int64_t tokens) {
  return t.item_cost + (t.rows_cost + t.token_cost * tokens) * run_heads(t, run);
}
inline int64_t unit_cost(const Tile& t, int32_t run) {
  return run + 1 < t.runs ? t.unit_cost : run_cost(t, run, int64_t(t.kv_end) - t.kv_begin);
}

/// The work of one step.
struct Work {
  std::vector<Tile> tiles;
  std::vector<int32_t> group_tile;  // [groups + 1] first tile of a group; a group's tiles lie last rows first (see tile_of)
  int32_t num_units = 0;
  int64_t cost[2] = {0, 0};  // of a class
  int32_t units[2] = {0, 0};
  int64_t max_unit_cost[2] = {0, 0};
  int64_t min_unit_cost = 0;  // no unit costs less
  int64_t max_fixed_cost[2] = {0, 0};
  int32_t max_heads[2] = {0, 0};  // of a run
  bool scattered = false;         // some group's tokens are not consecutive
  bool shared = false;            // some tile is of a shared level
  bool levels = false;            // some row is covered by several tiles

  int64_t total_cost() const { return cost[0] + cost[1]; }
};

/// What turning groups into tiles needs to know.
struct TileRules {
  int32_t group_size;
  int32_t num_kv_heads;
  KeyRange range;
  int32_t compute_rows_above;
  bool fixed_split;
  bool pin_class0;  // fixed_split: one kernel for every query length, where those of the classes don't agree
  const KernelClass* classes;
  TileShape shape[2];

  TileRules(const AttentionSpec& spec, const SchedulerConfig& config);
  int32_t class_of(const RowGroup& g) const { return pin_class0 ? 0 : class_of_tokens(g.token_count, group_size, compute_rows_above); }
};

/// Fills `work` with every tile of `list`. Where rows are in several groups, resolve_overlaps() comes next. Throws over_capacity if costs
/// add up to more than kMaxStepCost.
void make_tiles(const TileRules& rules, const GroupList& list, Work& work);

/// Index of the tile that holds packed row `row` of group `g`.
inline int32_t tile_of(const TileRules& rules, const Work& work, const RowGroup& g, int32_t group, int32_t row) {
  const TileShape& s = rules.shape[rules.class_of(g)];
  const int32_t token = row / rules.group_size;
  const int32_t part = s.tiles_per_token == 1 ? 0 : (row % rules.group_size) / s.rows;
  const int32_t index = token / s.tokens * s.tiles_per_token + part;
  return work.group_tile[group + 1] - 1 - index;
}

}  // namespace kvloom::plan
