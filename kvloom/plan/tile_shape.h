// How the packed rows of a group are cut into tiles, and its KV heads into runs. Read by the host's planner and the device's.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/plan_format.h"

namespace kvloom::plan {

/// How the packed rows of one class are cut: whole tokens where the GQA group fits the tile, else each token's heads in equal parts.
struct TileShape {
  int32_t tokens = 1;           // of a tile
  int32_t tiles_per_token = 1;  // > 1 only where the group does not fit
  int32_t rows = 1;             // packed rows of a full tile

  KVLOOM_HD static constexpr TileShape of(int32_t group_size, int32_t tile_rows) {
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
  /// Row tiles of `count` tokens.
  KVLOOM_HD constexpr int64_t tiles(int64_t count) const { return count <= 0 ? 0 : (count + tokens - 1) / tokens * tiles_per_token; }
};

/// 0: memory-bound, 1: compute-bound.
KVLOOM_HD constexpr int32_t class_of_tokens(int64_t tokens, int32_t group_size, int32_t compute_rows_above) {
  return tokens * group_size > compute_rows_above ? 1 : 0;
}

/// Rows of a tile within its group: part `part` of the heads of tokens [first, last), which fit one tile or are one token.
struct TileRows {
  int32_t begin;
  int32_t count;
};
KVLOOM_HD constexpr TileRows rows_of_tile(const TileShape& s, int32_t group_size, int32_t first, int32_t last, int32_t part) {
  return {first * group_size + part * s.rows,
          s.tiles_per_token == 1 ? (last - first) * group_size : min_of(s.rows, group_size - part * s.rows)};
}

/// KV heads that items of a class take together, where a group stands for all of them.
struct HeadRuns {
  int32_t heads;
  int32_t runs;
  int32_t last_heads;  // of the last run, which may have fewer
};
KVLOOM_HD constexpr HeadRuns head_runs(const KernelClass& k, int32_t num_kv_heads) {
  const int32_t heads = min_of(k.heads_per_item, num_kv_heads), runs = ceil_div(num_kv_heads, heads);
  return {heads, runs, num_kv_heads - (runs - 1) * heads};
}

}  // namespace kvloom::plan
