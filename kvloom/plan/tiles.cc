#include "kvloom/plan/tiles.h"

#include "kvloom/attn/tile_range.h"
#include "kvloom/base/math.h"
#include "kvloom/support/check.h"

namespace kvloom::plan {

TileRules::TileRules(const AttentionSpec& spec, const SchedulerConfig& config)
    : group_size(spec.group_size()),
      num_kv_heads(spec.num_kv_heads),
      range(spec.variant.range),
      compute_rows_above(config.compute_rows_above),
      fixed_split(config.policy == Policy::fixed_split),
      pin_class0(fixed_split && !config.classes_agree),
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
  const HeadRuns heads = head_runs(k, rules.num_kv_heads);
  Tile t{};
  t.partial_row = -1;
  t.kv_head_count = uint8_t(heads.heads);
  t.kernel_class = uint8_t(c);
  t.runs = uint16_t(heads.runs);
  t.last_heads = uint8_t(heads.last_heads);
  t.item_cost = k.cost_per_item;
  t.token_cost = k.cost_per_token;
  return t;
}

/// Sums over the tiles of a class.
struct Totals {
  int64_t cost = 0;
  int64_t max_unit_cost = 0;
  int64_t min_unit_cost = INT64_MAX;
  int64_t max_fixed_cost = 0;
  int32_t units = 0;
  int32_t max_heads = 0;
};

[[noreturn]] void refuse_cost() {
  fail(ErrorCode::over_capacity, "plan: cost of the step: got more than {}, wanted at most that; use smaller costs in SchedulerConfig",
       kMaxStepCost);
}

/// Appends the tiles of a step's groups.
class TileMaker {
 public:
  TileMaker(const TileRules& rules, const GroupList& list, Work& work)
      : rules_(rules), list_(list), work_(work), of_class_{tile_of_class(rules, 0), tile_of_class(rules, 1)} {}

  /// All tiles of a group. Last rows first: under a causal mask they have the most keys, and the longest work should start first.
  void add_group(int32_t group);
  /// Tiles of the groups from `group` on that are like it: short, each one tile over every KV head. Returns the first that is not.
  int32_t add_alike(int32_t group);
  void finish();
  /// True if add_alike() knows what to do with it.
  bool is_short(const RowGroup& g) const {
    const TileShape& s = rules_.shape[rules_.class_of(g)];
    return g.row_list < 0 && g.kv_head < 0 && g.token_count > 0 && g.token_count <= s.tokens && s.tiles_per_token == 1;
  }

 private:
  void add_tiles(int32_t c, int32_t group, int32_t first, int32_t last);
  void count(const Tile& t);

  const TileRules& rules_;
  const GroupList& list_;
  Work& work_;
  const Tile of_class_[2];
  Totals totals_[2];
};

void set_cost(Tile& t) {
  const int64_t heads = int64_t(t.runs - 1) * t.kv_head_count + t.last_heads;
  const int64_t head_cost = t.rows_cost + t.token_cost * (int64_t(t.kv_end) - t.kv_begin);
  t.unit_cost = t.item_cost + head_cost * t.kv_head_count;
  t.cost = t.runs * t.item_cost + head_cost * heads;
}

void TileMaker::count(const Tile& t) {
  Totals& totals = totals_[t.kernel_class];
  totals.cost += t.cost;
  totals.units += t.runs;
  totals.max_unit_cost = max_of(totals.max_unit_cost, t.unit_cost);
  totals.min_unit_cost = min_of(totals.min_unit_cost, unit_cost(t, t.runs - 1));
  totals.max_fixed_cost = max_of(totals.max_fixed_cost, fixed_cost(t, 0));
  totals.max_heads = max_of(totals.max_heads, int32_t(t.kv_head_count));
  if (totals_[0].cost + totals_[1].cost > kMaxStepCost) [[unlikely]]
    refuse_cost();
}

/// Tokens [first, last) of a group, which fit one tile or are one token. Tiles are written in their place: a copy of something just put
/// together waits for the stores that made it.
void TileMaker::add_tiles(int32_t c, int32_t group, int32_t first, int32_t last) {
  const RowGroup& g = list_.groups[group];
  const bool shared = g.level < list_.num_levels - 1;
  work_.shared |= shared;
  const TileShape& s = rules_.shape[c];
  const TokenSpan span = span_of(list_, g, first, last);
  const TokenRange keys = visible_tokens(g, rules_.range, span.q_pos_min, span.q_pos_max, span.prefix_max);
  for (int32_t part = s.tiles_per_token - 1; part >= 0; --part) {
    const TileRows rows = rows_of_tile(s, rules_.group_size, first, last, part);
    Tile& t = work_.tiles.emplace_back(of_class_[c]);
    t.group = group;
    t.row_begin = rows.begin;
    t.row_count = uint16_t(rows.count);
    t.kv_begin = keys.begin;
    t.kv_end = keys.end;
    t.shared = shared;
    if (g.kv_head >= 0) {
      t.kv_head = uint16_t(g.kv_head);
      t.runs = 1;
      t.kv_head_count = t.last_heads = 1;
    }
    t.rows_cost = int64_t(rules_.classes[c].cost_per_tile_row) * rows.count;
    t.first_unit = work_.num_units;
    work_.num_units += t.runs;
    set_cost(t);
    count(t);
  }
}

void TileMaker::add_group(int32_t group) {
  const RowGroup& g = list_.groups[group];
  work_.group_tile.push_back(int32_t(work_.tiles.size()));
  if (g.token_count == 0) return;
  work_.scattered |= is_scattered(list_, g);
  const int32_t c = rules_.class_of(g);
  const int32_t tokens = rules_.shape[c].tokens;
  for (int32_t block = g.token_count <= tokens ? 0 : (g.token_count - 1) / tokens; block >= 0; --block) {
    const int32_t first = block * tokens;
    add_tiles(c, group, first, min_of(first + tokens, g.token_count));
  }
}

/// A decode step is nothing but such groups. What they have in common is out of the loop: a tile is a copy of the first one, made in its
/// place, and a few stores.
int32_t TileMaker::add_alike(int32_t group) {
  const RowGroup& like = list_.groups[group];
  const int32_t c = rules_.class_of(like);
  const size_t first_tile = work_.tiles.size();
  add_tiles(c, group, 0, like.token_count);
  work_.group_tile.push_back(int32_t(first_tile));
  const Tile& model = work_.tiles[first_tile];
  const int64_t unit_token_cost = int64_t(model.token_cost) * model.kv_head_count;
  const int64_t tile_token_cost = int64_t(model.token_cost) * rules_.num_kv_heads;
  const int64_t unit_fixed_cost = model.unit_cost - unit_token_cost * (model.kv_end - model.kv_begin);
  const int64_t tile_fixed_cost = model.cost - tile_token_cost * (model.kv_end - model.kv_begin);
  const int32_t runs = model.runs;
  const int64_t max_cost = kMaxStepCost - totals_[0].cost - totals_[1].cost;  // of those that follow
  const int32_t groups = int32_t(list_.groups.size());
  const KeyRange range = rules_.range;

  int64_t cost = 0;
  int64_t max_unit_cost = 0, min_tokens = INT64_MAX;
  int32_t unit = work_.num_units;
  int32_t i = group + 1;
  for (const RowGroup* g = &like + 1; i < groups; ++i, ++g) {
    if (g->token_count != like.token_count || g->level != like.level || (g->row_list & g->kv_head) >= 0) break;
    const TokenRange keys = visible_tokens(*g, range, g->q_pos0, g->q_pos0 + g->token_count - 1, g->prefix);
    const int64_t tokens = keys.end - keys.begin;
    work_.group_tile.push_back(int32_t(first_tile) + i - group);
    Tile& t = work_.tiles.emplace_back(work_.tiles[first_tile]);
    t.group = i;
    t.kv_begin = keys.begin;
    t.kv_end = keys.end;
    t.first_unit = unit;
    t.unit_cost = unit_fixed_cost + unit_token_cost * tokens;
    t.cost = tile_fixed_cost + tile_token_cost * tokens;
    unit += runs;
    cost += t.cost;
    max_unit_cost = max_of(max_unit_cost, t.unit_cost);
    min_tokens = min_of(min_tokens, tokens);
    if (cost > max_cost) [[unlikely]]
      refuse_cost();
  }
  work_.num_units = unit;
  totals_[c].cost += cost;
  totals_[c].units += (i - group - 1) * runs;
  totals_[c].max_unit_cost = max_of(totals_[c].max_unit_cost, max_unit_cost);
  if (i > group + 1) totals_[c].min_unit_cost = min_of(totals_[c].min_unit_cost, run_cost(work_.tiles[first_tile], runs - 1, min_tokens));
  return i;
}

void TileMaker::finish() {
  work_.group_tile.push_back(int32_t(work_.tiles.size()));
  work_.min_unit_cost = min_of(totals_[0].min_unit_cost, totals_[1].min_unit_cost);
  for (int c = 0; c < 2; ++c) {
    work_.cost[c] = totals_[c].cost;
    work_.units[c] = totals_[c].units;
    work_.max_unit_cost[c] = totals_[c].max_unit_cost;
    work_.max_fixed_cost[c] = totals_[c].max_fixed_cost;
    work_.max_heads[c] = totals_[c].max_heads;
  }
}

}  // namespace

void make_tiles(const TileRules& rules, const GroupList& list, Work& work) {
  work.tiles.clear();
  work.group_tile.clear();
  work.num_units = 0;
  work.scattered = work.shared = work.levels = false;
  TileMaker maker(rules, list, work);
  const int32_t groups = int32_t(list.groups.size());
  for (int32_t group = 0; group < groups;) {
    if (maker.is_short(list.groups[group])) {
      group = maker.add_alike(group);
    } else {
      maker.add_group(group++);
    }
  }
  maker.finish();
}

}  // namespace kvloom::plan
