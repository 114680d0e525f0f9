// The memory-bound kernel: a few packed rows of every KV head against a range of keys. Each K and V byte is read once for all rows that
// share it. Keys go by in tiles; a tile is scored for all heads, weighed for all heads, then its values are added for all heads, while the
// next tile's lines are fetched in the order of their addresses, one between every few products. Compiled once a target.
//
// Tiles are counted from list token 0 of the group: what is computed for a row depends on the row's own keys only.
#include "kvloom/attn/tile_range.h"
#include "kvloom/cpu/float_rows.inl"
#include "kvloom/cpu/live_keys.h"
#include "kvloom/cpu/score.h"
#include "kvloom/cpu/short_rows_blocks.inl"
#include "kvloom/cpu/softmax.inl"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

inline constexpr int32_t kTileKeys = 32;
inline constexpr int32_t kTileSlack = 8;          // keys that a block may reach beyond a tile
inline constexpr int32_t kTileReach = kTileKeys + kTileSlack;
inline constexpr int64_t kUnitBytes = 128 << 10;  // K and V of the heads that go together; two such units share a second-level cache

/// One tile of keys: list tokens [token, token + kTileKeys), of which columns [begin, end) are the chunk's.
struct KeyTile {
  int32_t token;
  int32_t begin;
  int32_t end;
  bool whole;                  // every row keeps every column
  bool any;                    // some row keeps some column
  int32_t key_pos[kTileKeys];  // where positions are not linear
  uint8_t live[kTileKeys];     // not set if whole
  KeySlot slot[kTileKeys];     // of live columns
  uint8_t from[kTileKeys];     // the column itself if it is live, else a live one that is read in its place
  const char* k[kTileReach];   // rows of the chunk's first KV head; behind the end the last one is repeated
  const char* v[kTileReach];
};

/// How K or V is read: in place, or through fp32 rows of one tile and head that are made first.
struct Side {
  const BlockKernels* kernels;
  int32_t (*dim_at)(int32_t i);  // dim of element i of a row of q or o
  int32_t dim;
  int32_t padded;  // floats of a row of q or o
  bool staged;
};

struct ShortWork {
  int32_t rows;        // packed rows of a head
  int32_t heads;       // KV heads of the chunk
  int32_t unit_heads;  // KV heads that go together
  Side k, v;
  int32_t value_batch;  // values that are summed before o goes back to memory
  PackedRow* row;     // [heads][rows]
  KeptTokens* kept;   // [rows]
  TokenRange common;  // list tokens that every row keeps; empty where positions are listed
  float* q;           // [heads][rows][k.padded]
  float* o;           // [heads][rows][v.padded]
  float* row_max;     // [heads][rows] base 2
  float* row_sum;
  float* rescale;
  float* s;       // [unit_heads][rows][kTileReach]
  float* staged;  // [kTileKeys][max(k.padded, v.padded)]
  const char** staged_row;  // [kTileReach]: rows of `staged`, as KeyTile has them
  KeyTile* tile;  // [2]: this and the next
  LineRun* runs;
  RopeTable rope;
};
inline constexpr int64_t kScoreRow = kTileReach;

template <DType kType>
Side direct_side(int32_t dim) {
  return {&block_kernels<kType>(), dim_in_pair_order<kType>, dim, dim, false};
}

/// `rotated`: the rows change between load and use.
Side side_of(DType type, int32_t dim, bool rotated) {
  if (dim % kPair == 0 && !rotated) {
    if (type == DType::f32) return direct_side<DType::f32>(dim);
    if (type == DType::f16) return direct_side<DType::f16>(dim);
    if (type == DType::bf16) return direct_side<DType::bf16>(dim);
  }
  return {&block_kernels<DType::f32>(), dim_in_pair_order<DType::f32>, dim, round_up(dim, kPair), true};
}

ShortWork take_short_work(Arena& arena, const AttentionSpec& spec, int32_t rows, int32_t heads) {
  ShortWork w;
  w.rows = rows;
  w.heads = heads;
  w.k = side_of(spec.kv_dtype, spec.head_dim_qk, spec.variant.rope.mode != RopeMode::none);
  w.v = side_of(spec.kv_dtype, spec.head_dim_vo, false);
  const int64_t head_bytes = int64_t(kTileKeys) * (spec.head_dim_qk + spec.head_dim_vo) * size_of(spec.kv_dtype);
  w.unit_heads = static_cast<int32_t>(clamp_to<int64_t>(kUnitBytes / head_bytes, 1, heads));
  const int64_t all = int64_t(heads) * rows;
  const int64_t widest = max_of(w.k.padded, w.v.padded);
  w.row = arena.take<PackedRow>(all);
  w.kept = arena.take<KeptTokens>(rows);
  w.q = arena.take<float>(all * w.k.padded);
  w.o = arena.take<float>(all * w.v.padded);
  w.row_max = arena.take<float>(all);
  w.row_sum = arena.take<float>(all);
  w.rescale = arena.take<float>(all);
  w.s = arena.take<float>(int64_t(w.unit_heads) * rows * kScoreRow);
  w.staged = arena.take<float>(kTileKeys * widest);
  w.staged_row = arena.take<const char*>(kTileReach);
  w.tile = arena.take<KeyTile>(2);
  w.runs = arena.take<LineRun>(2 * int64_t(kTileKeys) * w.unit_heads);
  w.rope = take_rope_table(arena, spec.variant.rope, spec.head_dim_qk);
  return w;
}

/// Row i of the chunk's Q for one head: fp32, rotated, scaled, in the order of K's rows.
void load_query(const Job& job, const PackedRow& r, float factor, ShortWork& w, float* q) {
  const AttendParams& p = *job.params;
  float* natural = w.staged;
  convert_row_of(job.spec->q_dtype)(p.q, r.token * p.q_token + r.q_head * p.q_head, w.k.dim, w.k.padded, natural);
  if (w.rope.mode != RopeMode::none) {
    set_rope_position(w.rope, r.q_pos);
    rotate_row(w.rope, natural);
  }
  for (int32_t i = 0; i < w.k.padded; ++i) q[i] = natural[w.k.dim_at(i)] * factor;
}

/// As many values of a head as surely stay in the first-level cache: neighbours, or rows of all heads apart that share few of its sets.
int32_t value_batch(const Job& job, const ShortWork& w) {
  constexpr int64_t kHalfCache = 16 << 10;
  const int64_t apart = w.v.staged ? w.v.padded * 4 : job.params->kv.v_token * size_of(job.spec->kv_dtype);
  return static_cast<int32_t>(clamp_to<int64_t>(kHalfCache / max_of<int64_t>(apart, 1), 8, kTileKeys));
}

void begin_rows(const Job& job, const Chunk& chunk, ShortWork& w) {
  w.value_batch = value_batch(job, w);
  const KeyRange& range = job.spec->variant.range;
  const bool listed = chunk.group->kv_position != KvPosition::linear;
  w.common = {0, listed ? 0 : chunk.kv_end};
  for (int32_t h = 0; h < w.heads; ++h) {
    PackedRow* row = w.row + h * w.rows;
    resolve_rows(job, *chunk.group, chunk.kv_head + h, chunk.row_begin, w.rows, row);
    const float factor = query_factor(job, chunk.kv_head + h);
    for (int32_t i = 0; i < w.rows; ++i) load_query(job, row[i], factor, w, w.q + (int64_t(h) * w.rows + i) * w.k.padded);
  }
  for (int32_t i = 0; i < w.rows; ++i) {
    const KeptTokens t = w.kept[i] = kept_tokens(*chunk.group, range, w.row[i].q_pos, w.row[i].prefix);
    const bool joined = t.prefix_end >= t.begin;  // what the prefix and the range keep is one run
    w.common.begin = max_of(w.common.begin, joined ? 0 : t.begin);
    w.common.end = min_of(w.common.end, joined ? max_of(t.prefix_end, t.end) : t.end);
  }
  const int64_t all = int64_t(w.heads) * w.rows;
  for (int64_t i = 0; i < all; ++i) {
    w.row_max[i] = neg_inf();
    w.row_sum[i] = 0.0f;
    w.rescale[i] = 1.0f;
  }
  __builtin_memset(w.o, 0, all * w.v.padded * sizeof(float));
}

/// Where the rows of the chunk's first KV head lie.
void point_at_rows(const Job& job, const Chunk& chunk, KeyTile& tile) {
  const KvView& kv = job.params->kv;
  const int64_t bytes = size_of(job.spec->kv_dtype);
  const char* k = static_cast<const char*>(kv.k) + chunk.kv_head * kv.k_head * bytes;
  const char* v = static_cast<const char*>(kv.v) + chunk.kv_head * kv.v_head * bytes;
  int32_t live = tile.begin;  // a live column: the last one seen, at first the first one
  while (!tile.whole && !tile.live[live]) ++live;
  for (int32_t j = tile.begin; j < tile.end; ++j) {
    if (tile.whole || tile.live[j]) live = j;
    tile.from[j] = uint8_t(live);
    tile.k[j] = k + tile.slot[live].k * bytes;
    tile.v[j] = v + tile.slot[live].v * bytes;
  }
  for (int32_t j = tile.end; j < tile.end + kTileSlack; ++j) tile.k[j] = tile.k[tile.end - 1], tile.v[j] = tile.v[tile.end - 1];
}

/// The tile that begins at `token`: which columns count, which keys are live, where those lie.
void find_tile(const Job& job, const Chunk& chunk, int32_t token, const ShortWork& w, KeyTile& tile) {
  const bool listed = chunk.group->kv_position != KvPosition::linear;
  tile.token = token;
  tile.begin = max_of(0, chunk.kv_begin - token);
  tile.end = min_of(kTileKeys, chunk.kv_end - token);
  tile.any = tile.begin < tile.end;
  tile.whole = tile.begin == 0 && tile.end == kTileKeys && token >= w.common.begin && token + kTileKeys <= w.common.end &&
               !masks_by_code(job.spec->variant);
  if (!tile.any) return;
  if (!tile.whole) {
    for (int32_t j = tile.begin; j < tile.end && listed; ++j) tile.key_pos[j] = key_slot(job, *chunk.group, token + j).pos;
    const KeyColumns columns{token, tile.begin, tile.end, listed ? tile.key_pos : nullptr};
    tile.any = mark_live_keys(job, *chunk.group, w.row, w.kept, w.rows, columns, kTileKeys, tile.live);
  }
  for (int32_t j = tile.begin; j < tile.end; ++j) {
    if (tile.whole || tile.live[j]) tile.slot[j] = key_slot(job, *chunk.group, token + j);
  }
  if (tile.any) point_at_rows(job, chunk, tile);
}

/// The first tile at or after `token` that has a live key; one with none if there is no such tile.
void find_next_tile(const Job& job, const Chunk& chunk, int32_t token, const ShortWork& w, KeyTile& tile) {
  do {
    find_tile(job, chunk, token, w, tile);
    token += kTileKeys;
  } while (!tile.any && token < chunk.kv_end);
}

/// Rows of K (or V) of head `h` of the chunk, in place.
template <bool kKeys>
Rows rows_of(const Job& job, const KeyTile& tile, int32_t h) {
  const KvView& kv = job.params->kv;
  return {kKeys ? tile.k : tile.v, h * (kKeys ? kv.k_head : kv.v_head) * size_of(job.spec->kv_dtype)};
}

/// Rows of K (or V) of head `h` of the chunk as fp32, rotated.
template <bool kKeys>
Rows stage_rows(const Job& job, const KeyTile& tile, int32_t h, ShortWork& w, LineCursor& lines) {
  const Side& side = kKeys ? w.k : w.v;
  const Rows rows = rows_of<kKeys>(job, tile, h);
  const ConvertRow convert = convert_row_of(job.spec->kv_dtype);
  const int64_t row_lines = side.dim * size_of(job.spec->kv_dtype) / kLineBytes;
  for (int32_t j = tile.begin; j < tile.end; ++j) {
    for (int64_t l = 0; l < row_lines; ++l) lines.fetch();
    if (j > tile.begin && tile.from[j] == tile.from[j - 1]) {  // a dead column
      w.staged_row[j] = w.staged_row[j - 1];
      continue;
    }
    float* staged = w.staged + int64_t(j) * side.padded;
    convert(rows.row[j] + rows.offset, 0, side.dim, side.padded, staged);
    if (kKeys && w.rope.mode != RopeMode::none) {
      set_rope_position(w.rope, tile.slot[tile.from[j]].pos);
      rotate_row(w.rope, staged);
    }
    w.staged_row[j] = reinterpret_cast<const char*>(staged);
  }
  for (int32_t j = tile.end; j < tile.end + kTileSlack; ++j) w.staged_row[j] = w.staged_row[tile.end - 1];
  return {w.staged_row, 0};
}

/// Calls f(first row, rows) for blocks of at most kMaxBlockRows rows of like size.
template <class F>
KVLOOM_SIMD void for_row_blocks(int32_t rows, F&& f) {
  const int32_t blocks = ceil_div(rows, kMaxBlockRows);
  for (int32_t b = 0, first = 0; b < blocks; ++b) {
    const int32_t n = (rows - first + blocks - b - 1) / (blocks - b);
    f(first, n);
    first += n;
  }
}

/// Scores of a tile for head `h` of the chunk, then weights.
void score_head(const Job& job, const Chunk& chunk, const KeyTile& tile, int32_t h, float* s, ShortWork& w, LineCursor& lines) {
  const Rows k = w.k.staged ? stage_rows<true>(job, tile, h, w, lines) : rows_of<true>(job, tile, h);
  const float* q = w.q + int64_t(h) * w.rows * w.k.padded;
  for_row_blocks(w.rows, [&](int32_t first, int32_t n) {
    const bool fetch = first == 0 && !w.k.staged;
    w.k.kernels->score[n - 1][fetch](k, tile.begin, tile.end, w.k.padded, q + int64_t(first) * w.k.padded, w.k.padded,
                                     s + first * kScoreRow, kScoreRow, lines);
  });
}

void weigh_head(const Job& job, const Chunk& chunk, const KeyTile& tile, int32_t h, float* s, ShortWork& w) {
  const VariantSpec& variant = job.spec->variant;
  const bool listed = chunk.group->kv_position != KvPosition::linear;
  if (!tile.whole || !stage_only_masks(variant)) {
    ScoreTile t;
    t.s = s;
    t.stride = kScoreRow;
    t.rows = w.row + int64_t(h) * w.rows;
    t.row_count = w.rows;
    t.columns = kTileKeys;
    t.live_begin = tile.begin;
    t.live_end = tile.end;
    t.token_begin = tile.token;
    t.kv_head = chunk.kv_head + h;
    t.group = chunk.group;
    t.key_pos = listed ? tile.key_pos : nullptr;
    job.score(job, t);
  }
  if (variant.reduction == Reduction::sum) return;
  const int64_t r = int64_t(h) * w.rows;
  softmax_all_rows(s, kScoreRow, w.rows, kTileKeys, w.row_max + r, w.row_sum + r, w.rescale + r);
}

void add_head(const Job& job, const Chunk& chunk, const KeyTile& tile, int32_t h, const float* s, ShortWork& w, LineCursor& lines) {
  const Rows v = w.v.staged ? stage_rows<false>(job, tile, h, w, lines) : rows_of<false>(job, tile, h);
  const int64_t r = int64_t(h) * w.rows;
  for_row_blocks(w.rows, [&](int32_t first, int32_t n) {
    const bool fetch = first == 0 && !w.v.staged;
    bool same = true;
    for (int32_t i = first; i < first + n; ++i) same &= w.rescale[r + i] == 1.0f;
    w.v.kernels->values[n - 1][fetch](v, tile.begin, tile.end, w.value_batch, w.v.padded, s + first * kScoreRow, kScoreRow,
                                      same ? nullptr : w.rescale + r + first, w.o + (r + first) * w.v.padded, w.v.padded, lines);
  });
}

/// Appends the lines of one side of a tile for heads [first, first + count) of the chunk.
template <bool kKeys>
void append_side(const Job& job, const Chunk& chunk, const KeyTile& tile, int32_t first, int32_t count, LineRun* runs, int32_t& n) {
  const KvView& kv = job.params->kv;
  const int64_t bytes = size_of(job.spec->kv_dtype);
  const int64_t token = kKeys ? kv.k_token : kv.v_token, head = kKeys ? kv.k_head : kv.v_head;
  const int64_t dim = kKeys ? job.spec->head_dim_qk : job.spec->head_dim_vo;
  const char* base = static_cast<const char*>(kKeys ? kv.k : kv.v) + (chunk.kv_head + first) * head * bytes;
  const auto live = [&](int32_t j) { return tile.whole || tile.live[j]; };
  const auto at = [&](int32_t j) { return kKeys ? tile.slot[j].k : tile.slot[j].v; };
  for (int32_t j = tile.begin; j < tile.end;) {
    int32_t next = j + 1;
    if (live(j)) {
      while (next < tile.end && live(next) && at(next) - at(next - 1) == token) ++next;  // one page, as a rule
      const char* p = base + at(j) * bytes;
      const int64_t tokens = next - j, row = dim * bytes;
      if (head < token) {
        for (int64_t t = 0; t < tokens; ++t) append_rows(runs, n, p + t * token * bytes, count, head * bytes, row);
      } else {
        for (int64_t h = 0; h < count; ++h) append_rows(runs, n, p + h * head * bytes, tokens, token * bytes, row);
      }
    }
    j = next;
  }
}

LineCursor lines_of(const Job& job, const Chunk& chunk, const KeyTile& tile, int32_t first, int32_t count, ShortWork& w) {
  int32_t n = 0;
  if (tile.any) {
    append_side<true>(job, chunk, tile, first, count, w.runs, n);
    append_side<false>(job, chunk, tile, first, count, w.runs, n);
  }
  return LineCursor(w.runs, n);
}

/// o [heads][rows][head_dim_vo], lse [heads][rows] from the running states.
void finish_rows(const Job& job, const Chunk& chunk, const ShortWork& w, float* o, float* lse) {
  const bool sum = job.spec->variant.reduction == Reduction::sum;
  for (int32_t h = 0; h < w.heads; ++h) {
    const float factor = value_factor(job, chunk.kv_head + h);
    for (int64_t r = int64_t(h) * w.rows; r < int64_t(h + 1) * w.rows; ++r) {
      const float l = w.row_sum[r];
      const float scale = sum ? factor : (l == 0.0f ? 0.0f : factor / l);
      for (int32_t i = 0; i < w.v.padded; ++i) {
        const int32_t d = w.v.dim_at(i);
        if (d < w.v.dim) o[r * w.v.dim + d] = w.o[r * w.v.padded + i] * scale;
      }
      lse[r] = sum ? 0.0f : (l == 0.0f ? neg_inf() : (w.row_max[r] + __builtin_log2f(l)) * kLn2);
    }
  }
}

}  // namespace

int64_t short_rows_arena_bytes(const AttentionSpec& spec, int32_t tile_rows, int32_t heads) {
  Arena arena(nullptr);
  take_short_work(arena, spec, tile_rows, heads);
  return arena.bytes();
}

void short_rows(const Job& job, const Chunk& chunk, void* memory, float* o, float* lse) {
  Arena arena(memory);
  ShortWork w = take_short_work(arena, *job.spec, chunk.row_count, chunk.kv_head_count);
  if (w.rope.mode != RopeMode::none) begin_rope(w.rope, job.spec->variant.rope, job.spec->head_dim_qk);
  begin_rows(job, chunk, w);
  KeyTile *tile = &w.tile[0], *next = &w.tile[1];
  find_next_tile(job, chunk, chunk.kv_begin / kTileKeys * kTileKeys, w, *tile);
  while (tile->any) {
    find_next_tile(job, chunk, tile->token + kTileKeys, w, *next);
    for (int32_t h0 = 0; h0 < w.heads; h0 += w.unit_heads) {
      const int32_t h1 = min_of(w.heads, h0 + w.unit_heads), h2 = min_of(w.heads, h1 + w.unit_heads);
      LineCursor lines = h1 < w.heads ? lines_of(job, chunk, *tile, h1, h2 - h1, w) : lines_of(job, chunk, *next, 0, w.unit_heads, w);
      for (int32_t h = h0; h < h1; ++h) score_head(job, chunk, *tile, h, w.s + (h - h0) * w.rows * kScoreRow, w, lines);
      for (int32_t h = h0; h < h1; ++h) weigh_head(job, chunk, *tile, h, w.s + (h - h0) * w.rows * kScoreRow, w);
      for (int32_t h = h0; h < h1; ++h) add_head(job, chunk, *tile, h, w.s + (h - h0) * w.rows * kScoreRow, w, lines);
    }
    KeyTile* const done = tile;
    tile = next;
    next = done;
  }
  finish_rows(job, chunk, w, o, lse);
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
