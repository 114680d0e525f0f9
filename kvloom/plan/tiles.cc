#include "kvloom/plan/tiles.h"

#include "kvloom/attn/tile_range.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

namespace kvloom::plan {

TileShape TileShape::of(int32_t group_size, int32_t tile_rows) {
  TileShape s;
  if (group_size <= tile_rows) {
    s.tokens = tile_rows / group_size;
    s.rows = s.tokens * group_size;
  } else {
    s.tiles_per_token = ceil_div(group_size, tile_rows);
    s.rows = ceil_div(group_size, s.tiles_per_token);
  }
  return s;
}

TileRules::TileRules(const AttentionSpec& spec, const SchedulerConfig& config)
    : group_size(spec.group_size()),
      num_kv_heads(spec.num_kv_heads),
      range(spec.variant.range),
      compute_rows_above(config.compute_rows_above),
      pin_class0(config.policy == Policy::fixed_split),
      classes(config.classes) {
  for (int c = 0; c < 2; ++c) shape[c] = TileShape::of(group_size, config.classes[c].tile_rows);
}

namespace {

/// Positions that the tokens [first, last) of a group span.
struct TokenSpan {
  int32_t q_pos_min;
  int32_t q_pos_max;
  int32_t prefix_max;
};

TokenSpan span_of(const GroupList& list, const RowGroup& g, int32_t first, int32_t last) {
  if (g.row_list < 0) return {g.q_pos0 + first, g.q_pos0 + last - 1, g.prefix};
  const RowEntry* rows = list.row_entries.data() + g.row_list;
  TokenSpan s{rows[first].q_pos, rows[first].q_pos, rows[first].prefix};
  for (int32_t i = first + 1; i < last; ++i) {
    s.q_pos_min = min_of(s.q_pos_min, rows[i].q_pos);
    s.q_pos_max = max_of(s.q_pos_max, rows[i].q_pos);
    s.prefix_max = max_of(s.prefix_max, rows[i].prefix);
  }
  return s;
}

bool is_scattered(const GroupList& list, const RowGroup& g) {
  if (g.row_list < 0) return false;
  const RowEntry* rows = list.row_entries.data() + g.row_list;
  for (int32_t i = 1; i < g.token_count; ++i) {
    if (rows[i].token != rows[0].token + i) return true;
  }
  return false;
}

/// What all tiles of a group have in common.
Tile blank_tile(const TileRules& rules, const GroupList& list, int32_t group) {
  const RowGroup& g = list.groups[group];
  const int32_t c = rules.class_of(g);
  const KernelClass& k = rules.classes[c];
  Tile t{};
  t.group = group;
  t.kernel_class = uint8_t(c);
  t.shared = g.level < list.num_levels - 1;
  t.kv_head = g.kv_head < 0 ? 0 : g.kv_head;
  const int32_t heads = g.kv_head < 0 ? rules.num_kv_heads : 1;
  const int32_t per_run = min_of(k.heads_per_item, heads);
  t.runs = uint16_t(ceil_div(heads, per_run));
  t.heads = uint8_t(per_run);
  t.last_heads = uint8_t(heads - (t.runs - 1) * per_run);
  t.item_cost = k.cost_per_item;
  t.token_cost = k.cost_per_token;
  return t;
}

void count_tile(Work& work, const Tile& t) {
  const int c = t.kernel_class;
  work.cost[c] += tile_cost(t);
  work.units[c] += t.runs;
  work.max_unit_cost[c] = max_of(work.max_unit_cost[c], unit_cost(t, 0));
  work.max_fixed_cost[c] = max_of(work.max_fixed_cost[c], fixed_cost(t, 0));
  work.max_heads[c] = max_of(work.max_heads[c], int32_t(t.heads));
  if (work.total_cost() > kMaxStepCost) {
    fail(ErrorCode::over_capacity, "plan: cost of the step: got more than {}, wanted at most that; use smaller costs in SchedulerConfig",
         kMaxStepCost);
  }
}

}  // namespace

void make_tiles(const TileRules& rules, const GroupList& list, Work& work) {
  work.tiles.clear();
  work.group_tile.clear();
  work.num_units = 0;
  for (int c = 0; c < 2; ++c) {
    work.cost[c] = work.max_unit_cost[c] = work.max_fixed_cost[c] = 0;
    work.units[c] = work.max_heads[c] = 0;
  }
  work.scattered = work.levels = false;
  const int32_t n = int32_t(list.groups.size());
  for (int32_t group = 0; group < n; ++group) {
    const RowGroup& g = list.groups[group];
    work.group_tile.push_back(int32_t(work.tiles.size()));
    work.scattered |= is_scattered(list, g);
    if (g.token_count == 0) continue;
    Tile t = blank_tile(rules, list, group);
    const KernelClass& k = rules.classes[t.kernel_class];
    const TileShape& s = rules.shape[t.kernel_class];
    // Last rows first: under a causal mask they have the most keys, and the longest work should start first.
    for (int32_t block = (g.token_count - 1) / s.tokens; block >= 0; --block) {
      const int32_t first = block * s.tokens;
      const int32_t last = min_of(first + s.tokens, g.token_count);
      const TokenSpan span = span_of(list, g, first, last);
      const TokenRange keys = visible_tokens(g, rules.range, span.q_pos_min, span.q_pos_max, span.prefix_max);
      t.kv_begin = keys.begin;
      t.kv_end = keys.end;
      for (int32_t part = s.tiles_per_token - 1; part >= 0; --part) {
        t.row_begin = first * rules.group_size + part * s.rows;
        t.row_count = s.tiles_per_token == 1 ? (last - first) * rules.group_size : min_of(s.rows, rules.group_size - part * s.rows);
        t.rows_cost = int64_t(k.cost_per_tile_row) * t.row_count;
        t.first_unit = work.num_units;
        work.num_units += t.runs;
        count_tile(work, t);
        work.tiles.push_back(t);
      }
    }
  }
  work.group_tile.push_back(int32_t(work.tiles.size()));
}

}  // namespace kvloom::plan
