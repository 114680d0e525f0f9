// The part of a group's KV list that a tile of rows can see: what a planner hands out and a kernel visits.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/contract/plan_format.h"

namespace kvloom {

/// List tokens [begin, end) of a group. Empty: begin == end.
struct TokenRange {
  int32_t begin;
  int32_t end;
};

/// The hull of list tokens that rows with positions in [q_pos_min, q_pos_max] and prefixes up to `prefix_max` can keep. With a prefix the
/// hull starts at the list's beginning. Lists whose positions are not linear are not narrowed (their positions may have gaps).
KVLOOM_HD TokenRange visible_tokens(const RowGroup& g, const KeyRange& r, int32_t q_pos_min, int32_t q_pos_max, int32_t prefix_max) {
  TokenRange t{g.kv_begin, g.kv_end};
  if (t.end <= t.begin) return {g.kv_begin, g.kv_begin};
  if (g.kv_position != KvPosition::linear) return t;
  const int64_t first = int64_t(g.kv_pos0) + g.kv_begin;  // position of the first token that counts
  const int64_t last = int64_t(g.kv_pos0) + g.kv_end;     // one past the last
  int64_t begin = max_of(kept_positions(r, q_pos_min).begin, first);
  int64_t end = min_of(kept_positions(r, q_pos_max).end, last);
  if (prefix_max > first) {
    begin = first;
    end = max_of(end, min_of<int64_t>(prefix_max, last));
  }
  if (end <= begin) return {g.kv_begin, g.kv_begin};
  return {int32_t(begin - g.kv_pos0), int32_t(end - g.kv_pos0)};
}

/// The packed rows of a tile are tokens [first, last] of the group.
KVLOOM_HD TokenRange tile_tokens(int32_t row_begin, int32_t row_count, int32_t group_size) {
  return {row_begin / group_size, (row_begin + row_count - 1) / group_size + 1};
}

}  // namespace kvloom
