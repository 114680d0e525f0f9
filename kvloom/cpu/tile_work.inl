// The memory of the tile kernel for one chunk and KV head, its query side, and which keys of a block which rows need. Compiled once a
// target, as a part of tile.inl.
#include "kvloom/cpu/live_keys.h"
#include "kvloom/cpu/pack.inl"
#include "kvloom/cpu/score.h"
#include "kvloom/cpu/softmax.inl"
#include "kvloom/cpu/tile_shape.h"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

inline constexpr int32_t kStrideOfRows = 96;  // rows that share one pass over a block's panels

/// Fixed sizes and the arrays of one chunk and KV head.
struct TileWork {
  int32_t rows;          // of the chunk, up to a multiple of kMicroRows
  int32_t real_rows;     // of the chunk
  int32_t qk, vo;        // head dims: up to a multiple of kLanes; of kPanel
  int32_t block_keys;    // keys of a KV block, a multiple of kPanel
  int64_t score_stride;  // floats
  int64_t panel_stride;  // floats from one V panel to the next
  PackedRow* row;        // [rows], the last one repeated
  KeptTokens* kept;      // [rows]
  float* q;              // [rows][qk]
  float* o;              // [rows][vo]
  float* row_max;        // [rows] base 2
  float* row_sum;        // [rows]
  float* rescale;        // [rows]
  float* s;              // [kStrideOfRows][score_stride]
  float* k;              // [block_keys / kPanel][qk][kPanel]
  float* v;              // [vo / kPanel][panel_stride]
  float* staged;         // [kPanel][max(qk, vo)]
  float* zeros;          // [max(qk, vo)]
  RopeTable rope;
};

/// One block of keys: list tokens [token, token + block_keys), of which columns [begin, end) are the chunk's.
struct KeyBlock {
  int32_t token;
  int32_t begin;
  int32_t end;
  bool listed;       // positions are not linear: they are in key_pos
  int32_t* key_pos;  // [block_keys]
  uint8_t* live;     // [block_keys] 1: some row keeps the key
  KeySlot* slot;     // [block_keys] of live keys
};

/// Columns of a block that kMicroRows rows need, as whole panels. `masked`: some of them must be masked.
struct RowBlock {
  int32_t begin;
  int32_t end;
  bool masked;
};

TileWork take_tile_work(Arena& arena, const AttentionSpec& spec, int32_t row_count) {
  TileWork w;
  w.real_rows = row_count;
  w.rows = round_up(row_count, kMicroRows);
  w.qk = round_up(spec.head_dim_qk, kLanes);
  w.vo = round_up(spec.head_dim_vo, kPanel);
  w.block_keys = tile_block_keys(spec);
  w.score_stride = w.block_keys + kPanel;
  w.panel_stride = int64_t(w.block_keys) * kPanel + kPanel;
  const int32_t widest = max_of(w.qk, w.vo);
  w.row = arena.take<PackedRow>(w.rows);
  w.kept = arena.take<KeptTokens>(w.rows);
  w.q = arena.take<float>(int64_t(w.rows) * w.qk);
  w.o = arena.take<float>(int64_t(w.rows) * w.vo);
  w.row_max = arena.take<float>(w.rows);
  w.row_sum = arena.take<float>(w.rows);
  w.rescale = arena.take<float>(w.rows);
  w.s = arena.take<float>(kStrideOfRows * w.score_stride);
  w.k = arena.take<float>(int64_t(w.block_keys) * w.qk);
  w.v = arena.take<float>(w.vo / kPanel * w.panel_stride);
  w.staged = arena.take<float>(int64_t(kPanel) * widest);
  w.zeros = arena.take<float>(widest);
  w.rope = take_rope_table(arena, spec.variant.rope, spec.head_dim_qk);
  return w;
}

KeyBlock take_key_block(Arena& arena, const TileWork& w) {
  KeyBlock b{};
  b.key_pos = arena.take<int32_t>(w.block_keys);
  b.live = arena.take<uint8_t>(w.block_keys);
  b.slot = arena.take<KeySlot>(w.block_keys);
  return b;
}

/// Rows, their kept tokens, and Q as fp32, rotated and scaled.
void load_queries(const Job& job, const Chunk& chunk, int32_t kv_head, TileWork& w) {
  const AttentionSpec& spec = *job.spec;
  const AttendParams& p = *job.params;
  const float factor = query_factor(job, kv_head);
  const ConvertRow convert = convert_row_of(spec.q_dtype);
  resolve_rows(job, *chunk.group, kv_head, chunk.row_begin, chunk.row_count, w.row);
  for (int32_t i = chunk.row_count; i < w.rows; ++i) w.row[i] = w.row[chunk.row_count - 1];
  for (int32_t i = 0; i < w.rows; ++i) {
    const PackedRow& r = w.row[i];
    float* q = w.q + int64_t(i) * w.qk;
    w.kept[i] = kept_tokens(*chunk.group, spec.variant.range, r.q_pos, r.prefix);
    w.row_max[i] = neg_inf();
    w.row_sum[i] = 0.0f;
    w.rescale[i] = 1.0f;
    if (i >= chunk.row_count) {
      __builtin_memset(q, 0, w.qk * sizeof(float));
      continue;
    }
    const PackedRow& later = w.row[min_of(i + 8, chunk.row_count - 1)];
    const int64_t element = size_of(spec.q_dtype);
    fetch_row<3>(static_cast<const char*>(p.q) + (later.token * p.q_token + later.q_head * p.q_head) * element,
                 int32_t(spec.head_dim_qk * element));
    convert(p.q, r.token * p.q_token + r.q_head * p.q_head, spec.head_dim_qk, w.qk, q);
    if (w.rope.mode != RopeMode::none) {
      set_rope_position(w.rope, r.q_pos);
      rotate_row(w.rope, q);
    }
    for (int32_t d = 0; d < w.qk; ++d) q[d] *= factor;
  }
  __builtin_memset(w.o, 0, int64_t(w.rows) * w.vo * sizeof(float));
  __builtin_memset(w.zeros, 0, max_of(w.qk, w.vo) * sizeof(float));
}

/// Sets `b` to the first block at or after the one of list token `from` that has a live key, slots resolved. False: there is none.
bool find_block(const Job& job, const Chunk& chunk, const TileWork& w, int32_t from, KeyBlock& b) {
  b.listed = chunk.group->kv_position != KvPosition::linear;
  for (b.token = from / w.block_keys * w.block_keys; b.token < chunk.kv_end; b.token += w.block_keys) {
    b.begin = max_of(0, chunk.kv_begin - b.token);
    b.end = min_of(w.block_keys, chunk.kv_end - b.token);
    for (int32_t j = b.begin; j < b.end && b.listed; ++j) b.key_pos[j] = key_slot(job, *chunk.group, b.token + j).pos;
    const KeyColumns columns{b.token, b.begin, b.end, b.listed ? b.key_pos : nullptr};
    if (!mark_live_keys(job, *chunk.group, w.row, w.kept, w.real_rows, columns, w.block_keys, b.live)) continue;
    for (int32_t j = b.begin; j < b.end; ++j) {
      if (b.live[j]) b.slot[j] = key_slot(job, *chunk.group, b.token + j);
    }
    return true;
  }
  return false;
}

/// The columns of a block that one row keeps lie within [begin, end); `gap`: some between them are not kept (prefix and window apart).
struct RowColumns {
  int32_t begin;
  int32_t end;
  bool gap;
};
KVLOOM_SIMD RowColumns columns_of(const KeyBlock& b, const KeptTokens& t) {
  const int32_t prefix_end = clamp_to(t.prefix_end - b.token, b.begin, b.end);
  const int32_t begin = clamp_to(t.begin - b.token, b.begin, b.end), end = clamp_to(t.end - b.token, begin, b.end);
  if (prefix_end == b.begin) return {begin, end, false};
  if (begin == end) return {b.begin, prefix_end, false};
  return {b.begin, max_of(prefix_end, end), prefix_end < begin};
}

/// The hull of the columns that rows [first, first + kMicroRows) keep, as whole panels.
RowBlock hull_of(const KeyBlock& b, const TileWork& w, int32_t first) {
  RowBlock hull{b.end, b.begin, b.listed};
  if (b.listed) {
    hull = {b.begin, b.end, true};
  } else {
    for (int32_t i = first; i < first + kMicroRows; ++i) {
      const RowColumns c = columns_of(b, w.kept[i]);
      if (c.end > c.begin) hull = {min_of(hull.begin, c.begin), max_of(hull.end, c.end), hull.masked};
    }
  }
  if (hull.end <= hull.begin) return {0, 0, false};
  hull.begin = hull.begin / kPanel * kPanel;
  hull.end = round_up(hull.end, kPanel);
  for (int32_t i = first; i < first + kMicroRows && !hull.masked; ++i) {
    const RowColumns c = columns_of(b, w.kept[i]);
    hull.masked = c.gap || c.begin > hull.begin || c.end < hull.end;
  }
  return hull;
}

}  // namespace
}  // namespace kvloom::cpu::KVLOOM_TARGET
