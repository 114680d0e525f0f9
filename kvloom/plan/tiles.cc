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

/// What all tiles of a class over every KV head have in common.
Tile tile_of_class(const TileRules& rules, int c) {
  const KernelClass& k = rules.classes[c];
  const int32_t heads = min_of(k.heads_per_item, rules.num_kv_heads);
  Tile t{};
  t.partial_row = -1;
  t.kv_head_count = uint8_t(heads);
  t.kernel_class = uint8_t(c);
  t.runs = uint16_t(ceil_div(rules.num_kv_heads, heads));
  t.last_heads = uint8_t(rules.num_kv_heads - (t.runs - 1) * heads);
  t.item_cost = k.cost_per_item;
  t.token_cost = k.cost_per_token;
  return t;
}

/// Works out the costs of a tile and adds them to its class's totals.
void count_tile(Work& work, Tile& t) {
  const int c = t.kernel_class;
  const int64_t heads = int64_t(t.runs - 1) * t.kv_head_count + t.last_heads;
  const int64_t head_cost = t.rows_cost + t.token_cost * (int64_t(t.kv_end) - t.kv_begin);
  t.unit_cost = t.item_cost + head_cost * t.kv_head_count;
  t.cost = t.runs * t.item_cost + head_cost * heads;
  work.cost[c] += t.cost;
  work.units[c] += t.runs;
  work.max_unit_cost[c] = max_of(work.max_unit_cost[c], t.unit_cost);
  work.max_fixed_cost[c] = max_of(work.max_fixed_cost[c], fixed_cost(t, 0));
  work.max_heads[c] = max_of(work.max_heads[c], int32_t(t.kv_head_count));
  if (work.total_cost() > kMaxStepCost) [[unlikely]] {
    fail(ErrorCode::over_capacity, "plan: cost of the step: got more than {}, wanted at most that; use smaller costs in SchedulerConfig",
         kMaxStepCost);
  }
}

/// Appends the tiles of tokens [first, last) of a group, which fit one tile or are one token. They are written in their place: a copy of
/// something just put together waits for the stores that made it.
void add_tiles(const TileRules& rules, const Tile& of_class, const GroupList& list, int32_t group, int32_t first, int32_t last,
               Work& work) {
  const RowGroup& g = list.groups[group];
  const KernelClass& k = rules.classes[of_class.kernel_class];
  const TileShape& s = rules.shape[of_class.kernel_class];
  const TokenSpan span = span_of(list, g, first, last);
  const TokenRange keys = visible_tokens(g, rules.range, span.q_pos_min, span.q_pos_max, span.prefix_max);
  for (int32_t part = s.tiles_per_token - 1; part >= 0; --part) {
    const int32_t rows = s.tiles_per_token == 1 ? (last - first) * rules.group_size : min_of(s.rows, rules.group_size - part * s.rows);
    Tile& t = work.tiles.emplace_back(of_class);
    t.group = group;
    t.row_begin = first * rules.group_size + part * s.rows;
    t.row_count = uint16_t(rows);
    t.kv_begin = keys.begin;
    t.kv_end = keys.end;
    t.shared = g.level < list.num_levels - 1;
    if (g.kv_head >= 0) {
      t.kv_head = uint16_t(g.kv_head);
      t.runs = 1;
      t.kv_head_count = t.last_heads = 1;
    }
    t.rows_cost = int64_t(k.cost_per_tile_row) * rows;
    t.first_unit = work.num_units;
    work.num_units += t.runs;
    count_tile(work, t);
  }
}

void reset(Work& work) {
  work.tiles.clear();
  work.group_tile.clear();
  work.num_units = 0;
  for (int c = 0; c < 2; ++c) {
    work.cost[c] = work.max_unit_cost[c] = work.max_fixed_cost[c] = 0;
    work.units[c] = work.max_heads[c] = 0;
  }
  work.scattered = work.shared = work.levels = false;
}

}  // namespace

void make_tiles(const TileRules& rules, const GroupList& list, Work& work) {
  reset(work);
  const Tile of_class[2] = {tile_of_class(rules, 0), tile_of_class(rules, 1)};
  for (int32_t group = 0; group < int32_t(list.groups.size()); ++group) {
    const RowGroup& g = list.groups[group];
    work.group_tile.push_back(int32_t(work.tiles.size()));
    if (g.token_count == 0) continue;
    work.shared |= g.level < list.num_levels - 1;
    work.scattered |= is_scattered(list, g);
    const int32_t c = rules.class_of(g);
    const int32_t tokens = rules.shape[c].tokens;
    // Last rows first: under a causal mask they have the most keys, and the longest work should start first.
    for (int32_t block = g.token_count <= tokens ? 0 : (g.token_count - 1) / tokens; block >= 0; --block) {
      const int32_t first = block * tokens;
      add_tiles(rules, of_class[c], list, group, first, min_of(first + tokens, g.token_count), work);
    }
  }
  work.group_tile.push_back(int32_t(work.tiles.size()));
}

}  // namespace kvloom::plan
