// Bounds, all proven from the capacity alone:
//   tiles    a group of n tokens has ceil(n / tokens a tile) row tiles (times the tiles of a token, where its heads do not fit one)
//   cuts     fewer than CTAs for every policy (pour.cc, policy_heap.cc), fewer than CTAs a class for fill
//   partials two a cut; with levels also every row of every tile that holds a row covered twice
//   units    of a cut tile: one, or one a token where gathered tokens or levels break it up
#include "kvloom/plan/layout.h"

#include "kvloom/base/math.h"
#include "kvloom/plan/tiles.h"
#include "kvloom/support/check.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

constexpr int64_t kSectionAlignment = 64;

struct Bounds {
  int64_t tokens;        // query tokens in groups, once a group that names them
  int64_t groups;        // of one KV head, with tokens
  int64_t units;         // (tile, head run), before cuts
  bool uses[2];          // classes that some step can have
  int64_t slot_rows[2];  // scratch rows of a partial of a class
  int64_t cuts[2];       // inside units, a class (a policy with one bound for both has it in the class of the larger slot)
  int64_t tile_tokens;   // most tokens of a tile
  int64_t segments;      // pieces that a token's rows may be broken into by tiles of different classes
  int64_t item_heads;    // most KV heads of an item
  int64_t level_tokens;  // tokens of tiles that hold a row covered twice, once a group
};

int64_t groups_per_head(const Capacity& c) { return c.max_groups > 0 ? c.max_groups : int64_t(c.max_requests) + c.max_level_rows + 1; }

/// Most row tiles of one KV head over all ways to spread `tokens` over `groups`.
int64_t max_tiles(const Bounds& b, const TileRules& rules, int64_t short_tokens) {
  const TileShape* s = rules.shape;
  int64_t tokens = b.uses[1] ? s[1].tokens : s[0].tokens;
  // Class 0 groups that fit one tile have one tile at least one token long, which the bound of class 1 already covers.
  if (b.uses[0] && b.uses[1] && short_tokens > s[0].tokens) tokens = min_of(s[0].tokens, s[1].tokens);
  const int64_t parts = max_of(b.uses[0] ? s[0].tiles_per_token : 1, b.uses[1] ? s[1].tiles_per_token : 1);
  return (b.groups + (b.tokens - b.groups) / tokens) * parts;
}

void bound_cuts(const SchedulerConfig& config, Bounds& b) {
  const int64_t most = config.policy == Policy::none ? 0 : config.num_ctas - 1;
  const bool each_class = config.policy == Policy::fill || config.policy == Policy::automatic;
  const int larger = b.slot_rows[1] > b.slot_rows[0] && config.policy != Policy::fixed_split ? 1 : 0;  // which cuts class 0 alone
  for (int c = 0; c < 2; ++c) b.cuts[c] = b.uses[c] && (each_class || c == larger) ? most : 0;
}

Bounds bounds_of(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config) {
  const TileRules rules(spec, config);
  const int64_t g = spec.group_size();
  Bounds b{};
  b.tokens = capacity.max_query_tokens + capacity.max_level_rows;
  b.groups = min_of(groups_per_head(capacity), b.tokens);
  const int64_t short_tokens = rules.pin_class0 ? b.tokens : config.compute_rows_above / g;  // longest class 0 group
  b.uses[0] = b.tokens > 0 && short_tokens > 0;
  b.uses[1] = b.tokens > 0 && !rules.pin_class0 && capacity.max_query_tokens * g > config.compute_rows_above;
  b.units = max_tiles(b, rules, short_tokens) * spec.num_kv_heads;
  bool split_token = false;
  for (int c = 0; c < 2; ++c) {
    if (!b.uses[c]) continue;
    const TileShape& s = rules.shape[c];
    const int64_t heads = min_of(config.classes[c].heads_per_item, spec.num_kv_heads);
    int64_t rows = min_of<int64_t>(s.rows, capacity.max_query_tokens * g);
    if (c == 0 && !rules.pin_class0) rows = min_of<int64_t>(rows, config.compute_rows_above);
    b.slot_rows[c] = rows * heads;
    b.item_heads = max_of(b.item_heads, heads);
    b.tile_tokens = max_of<int64_t>(b.tile_tokens, s.tokens);
    b.segments += s.tiles_per_token;
    split_token |= s.tiles_per_token > 1;
  }
  if (!split_token || capacity.max_level_rows == 0) b.segments = 1;
  bound_cuts(config, b);
  // A row covered twice or more counts once a cover, at most 2 x max_level_rows in all; each may bring a tile's other tokens along.
  if (capacity.max_level_rows > 0) b.level_tokens = min_of(b.tokens, 2 * capacity.max_level_rows * b.tile_tokens);
  return b;
}

int32_t narrow(const char* what, int64_t value) {
  if (value > INT32_MAX) {
    fail(ErrorCode::over_capacity, "plan: {}: got up to {} for this capacity, wanted at most {}; use a smaller Capacity", what, value,
         INT32_MAX);
  }
  return int32_t(value);
}

}  // namespace

int64_t max_group_heads(const AttentionSpec& spec, const Capacity& capacity) { return groups_per_head(capacity) * spec.num_kv_heads; }

int64_t max_chunk_partials(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config) {
  const Bounds b = bounds_of(spec, capacity, config);
  return (capacity.max_kv_tokens / config.split_tokens + 2 * b.groups) * spec.num_kv_heads;
}

PlanLayout plan_layout(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config) {
  check_config(spec, capacity, config);
  const Bounds b = bounds_of(spec, capacity, config);
  const int64_t heads = spec.num_kv_heads;
  const int64_t cuts = b.cuts[0] + b.cuts[1];
  const int64_t tile_units = b.tile_tokens * b.segments * b.item_heads;  // merge units of one item
  const int64_t level_pieces = b.level_tokens * b.segments * heads;

  int64_t scratch = b.level_tokens * spec.group_size() * heads;
  int64_t entries = level_pieces;
  if (config.policy == Policy::fixed_split) {
    const int64_t partials = b.cuts[0] > 0 ? max_chunk_partials(spec, capacity, config) : 0;
    scratch += partials * TileRules(spec, config).shape[0].rows;
    entries += partials * b.tile_tokens * b.segments;
  } else {
    for (int c = 0; c < 2; ++c) {
      const int64_t pieces = min_of(2 * b.cuts[c], b.units + b.cuts[c]);
      scratch += pieces * b.slot_rows[c];
      entries += pieces * tile_units;
    }
  }
  const int64_t derived_groups =
      max_of(int64_t(capacity.max_requests) * heads, int64_t(capacity.max_requests) + capacity.max_level_rows) + 1;

  PlanLayout l;
  l.max_groups = narrow("row groups", capacity.max_groups > 0 ? capacity.max_groups : derived_groups);
  l.max_row_entries = narrow("row entries", b.tokens);
  l.max_items = narrow("work items", b.units + cuts);
  l.max_units = narrow("merge units", level_pieces + min_of(cuts, b.units) * tile_units);
  l.max_entries = narrow("merge entries", entries);
  l.max_touches = narrow("touches", entries);
  l.max_scratch_rows = narrow("scratch rows", scratch);
  l.partial_o_bytes = l.max_scratch_rows * spec.head_dim_vo * int64_t(sizeof(float));
  l.partial_lse_bytes = l.max_scratch_rows * int64_t(sizeof(float)) * (config.policy == Policy::fixed_split ? 2 : 1);
  l.counter_bytes = l.max_units * int64_t(sizeof(uint32_t));
  l.start_bytes = int64_t(config.num_ctas) * int64_t(sizeof(CtaStart));
  PlanHeader header{};
  place_sections(l, config.num_ctas, header);
  l.plan_bytes = header.total_bytes;
  return l;
}

void place_sections(const PlanLayout& l, int32_t num_ctas, PlanHeader& h) {
  int64_t at = round_up<int64_t>(sizeof(PlanHeader), kSectionAlignment);
  auto place = [&](int64_t count, int64_t size) {
    const int64_t begin = at;
    at = round_up(at + count * size, kSectionAlignment);
    return begin;
  };
  h.groups_offset = place(l.max_groups, sizeof(RowGroup));
  h.row_entries_offset = place(l.max_row_entries, sizeof(RowEntry));
  h.cta_indptr_offset = place(int64_t(num_ctas) + 1, sizeof(int32_t));
  h.items_offset = place(l.max_items, sizeof(WorkItem));
  h.units_offset = place(l.max_units, sizeof(MergeUnit));
  h.entries_offset = place(l.max_entries, sizeof(MergeEntry));
  h.touches_offset = place(l.max_touches, sizeof(int32_t));
  h.total_bytes = at;
}

}  // namespace kvloom::plan
