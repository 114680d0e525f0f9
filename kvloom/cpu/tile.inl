// The compute-bound kernel: many packed rows of one KV head against a range of keys. K and V of a block of keys are packed once (K
// transposed into panels of kPanel keys, V into panels of kPanel dims), then every block of rows goes through score product, score stage,
// softmax step and value product while its scores are in cache. Compiled once a target.
//
// Blocks and panels are counted from list token 0 of the group, not from the chunk: what is computed for a row depends on the row's own
// keys only, never on the rows beside it or on where a tile happened to begin.
#include "kvloom/cpu/tile_work.inl"

namespace kvloom::cpu::KVLOOM_TARGET {
namespace {

inline constexpr int32_t kSumDims = 128;  // dims of Q and K that are added up in one go

/// Where K and V of the KV head at hand come from.
struct Source {
  const char* k;
  const char* v;
  int64_t element;  // bytes
  int32_t k_bytes;  // of one key's row
  int32_t v_bytes;
  ConvertRow convert;
};

Source source_of(const Job& job, int32_t kv_head) {
  const AttentionSpec& spec = *job.spec;
  const KvView& kv = job.params->kv;
  Source s;
  s.element = size_of(spec.kv_dtype);
  s.k = static_cast<const char*>(kv.k) + kv_head * kv.k_head * s.element;
  s.v = static_cast<const char*>(kv.v) + kv_head * kv.v_head * s.element;
  s.k_bytes = static_cast<int32_t>(spec.head_dim_qk * s.element);
  s.v_bytes = static_cast<int32_t>(spec.head_dim_vo * s.element);
  s.convert = convert_row_of(spec.kv_dtype);
  return s;
}

/// Asks for the next block's rows, a few at every register tile, so that they are in the second-level cache when it is packed.
struct FetchAhead {
  const Source* src;
  const KeyBlock* next;
  int32_t at;      // column of the next key to ask for
  int32_t end;     // 0: no next block
  int32_t rate;    // keys a register tile, in 1/64
  int32_t credit;  // in 1/64
};
KVLOOM_SIMD void fetch_ahead(FetchAhead& f) {
  f.credit += f.rate;
  for (; f.credit >= 64 && f.at < f.end; f.credit -= 64, ++f.at) {
    if (!f.next->live[f.at]) continue;
    fetch_row<2>(f.src->k + f.next->slot[f.at].k * f.src->element, f.src->k_bytes);
    fetch_row<2>(f.src->v + f.next->slot[f.at].v * f.src->element, f.src->v_bytes);
  }
}
FetchAhead plan_fetch(const Source& src, const KeyBlock* next, const TileWork& w) {
  if (!next) return {&src, nullptr, 0, 0, 0, 0};
  const int32_t register_tiles = w.rows / kMicroRows * (w.block_keys + w.vo) / kPanel;
  return {&src, next, next->begin, next->end, ceil_div(64 * (next->end - next->begin), max_of(1, register_tiles * 7 / 8)), 0};
}

/// Packs columns [first, first + kPanel) of the block; dead keys become zeros. Meanwhile the next panel's rows are on their way.
void pack_panel(const Job& job, const Source& src, const KeyBlock& b, int32_t first, TileWork& w) {
  const AttentionSpec& spec = *job.spec;
  const bool next = first + kPanel < w.block_keys;
  const bool in_place = spec.kv_dtype == DType::f32 && spec.head_dim_qk == w.qk && w.rope.mode == RopeMode::none;
  const float* rows[kPanel];
  for (int32_t i = 0; i < kPanel; ++i) {
    const int32_t j = first + i;
    rows[i] = w.zeros;
    if (next && b.live[j + kPanel]) fetch_row<3>(src.k + b.slot[j + kPanel].k * src.element, src.k_bytes);
    if (!b.live[j]) continue;
    if (in_place) {
      rows[i] = reinterpret_cast<const float*>(src.k) + b.slot[j].k;
      continue;
    }
    float* staged = w.staged + int64_t(i) * w.qk;
    src.convert(src.k, b.slot[j].k, spec.head_dim_qk, w.qk, staged);
    if (w.rope.mode != RopeMode::none) {
      set_rope_position(w.rope, b.slot[j].pos);
      rotate_row(w.rope, staged);
    }
    rows[i] = staged;
  }
  transpose_panel(rows, w.qk, w.k + int64_t(first) * w.qk);
  const bool v_in_place = spec.kv_dtype == DType::f32 && spec.head_dim_vo == w.vo;
  for (int32_t i = 0; i < kPanel; ++i) {
    const int32_t j = first + i;
    if (next && b.live[j + kPanel]) fetch_row<3>(src.v + b.slot[j + kPanel].v * src.element, src.v_bytes);
    const float* row = w.zeros;
    if (b.live[j] && v_in_place) {
      row = reinterpret_cast<const float*>(src.v) + b.slot[j].v;
    } else if (b.live[j]) {
      src.convert(src.v, b.slot[j].v, spec.head_dim_vo, w.vo, w.staged);
      row = w.staged;
    }
    store_panels(row, w.vo, w.v, w.panel_stride, j);
  }
}

void pack_block(const Job& job, const Source& src, const KeyBlock& b, TileWork& w) {
  for (int32_t p = b.begin / kPanel * kPanel; p < b.end; p += kPanel) pack_panel(job, src, b, p, w);
}

/// Scores of a row block to weights: variant and masks, then the softmax step.
void weigh(const Job& job, const Chunk& chunk, int32_t kv_head, const KeyBlock& b, const RowBlock& rb, int32_t first, float* s,
           TileWork& w) {
  const int32_t real = min_of(kMicroRows, w.real_rows - first);
  const VariantSpec& variant = job.spec->variant;
  if (rb.masked || !stage_only_masks(variant)) {
    ScoreTile t;
    t.s = s + rb.begin;
    t.stride = w.score_stride;
    t.rows = w.row + first;
    t.row_count = real;
    t.columns = rb.end - rb.begin;
    t.live_begin = max_of(b.begin, rb.begin) - rb.begin;
    t.live_end = min_of(b.end, rb.end) - rb.begin;
    t.token_begin = b.token + rb.begin;
    t.kv_head = kv_head;
    t.group = chunk.group;
    t.key_pos = b.listed ? b.key_pos + rb.begin : nullptr;
    job.score(job, t);
  }
  if (variant.reduction == Reduction::sum) return;
  softmax_all_rows(s + rb.begin, w.score_stride, real, rb.end - rb.begin, w.row_max + first, w.row_sum + first, w.rescale + first);
}

/// s = Q K^T of rows [row, row + kMicroRows) and the panel of keys at column `panel`. Heads of more than kSumDims are summed in parts: one
/// chain of 512 additions rounds too often for an fp32 result.
KVLOOM_SIMD void score_product(const TileWork& w, int32_t row, int32_t panel, float* s) {
  const float* const q = w.q + int64_t(row) * w.qk;
  const float* const k = w.k + int64_t(panel) * w.qk;
  product<Into::fresh>(min_of(kSumDims, w.qk), q, w.qk, k, s, w.score_stride, nullptr);
  for (int32_t d = kSumDims; d < w.qk; d += kSumDims) {
    product<Into::sum>(min_of(kSumDims, w.qk - d), q + d, w.qk, k + int64_t(d) * kPanel, s, w.score_stride, nullptr);
  }
}

/// Rows [first, last) against the packed block.
void attend_rows(const Job& job, const Chunk& chunk, int32_t kv_head, const KeyBlock& b, int32_t first, int32_t last, TileWork& w,
                 FetchAhead& ahead) {
  RowBlock blocks[kStrideOfRows / kMicroRows];
  int32_t begin = b.end, end = 0;
  const int32_t count = (last - first) / kMicroRows;
  for (int32_t i = 0; i < count; ++i) {
    blocks[i] = hull_of(b, w, first + i * kMicroRows);
    if (blocks[i].end > 0) begin = min_of(begin, blocks[i].begin);
    end = max_of(end, blocks[i].end);
  }
  for (int32_t p = begin / kPanel * kPanel; p < end; p += kPanel) {
    for (int32_t i = 0; i < count; ++i) {
      if (p < blocks[i].begin || p >= blocks[i].end) continue;
      score_product(w, first + i * kMicroRows, p, w.s + i * kMicroRows * w.score_stride + p);
      fetch_ahead(ahead);
    }
  }
  for (int32_t i = 0; i < count; ++i) {
    if (blocks[i].end > 0) weigh(job, chunk, kv_head, b, blocks[i], first + i * kMicroRows, w.s + i * kMicroRows * w.score_stride, w);
  }
  for (int32_t c = 0; c < w.vo; c += kPanel) {
    const float* panel = w.v + c / kPanel * w.panel_stride;
    for (int32_t i = 0; i < count; ++i) {
      if (blocks[i].end == 0) continue;
      const int32_t r = first + i * kMicroRows;
      product<Into::rescale>(blocks[i].end - blocks[i].begin, w.s + i * kMicroRows * w.score_stride + blocks[i].begin, w.score_stride,
                             panel + int64_t(blocks[i].begin) * kPanel, w.o + int64_t(r) * w.vo + c, w.vo, w.rescale + r);
      fetch_ahead(ahead);
    }
  }
}

/// o [real_rows][head_dim_vo], lse [real_rows] from the running state.
void finish_tile(const Job& job, int32_t kv_head, const TileWork& w, float* o, float* lse) {
  const int32_t vo = job.spec->head_dim_vo;
  const float factor = value_factor(job, kv_head);
  const bool sum = job.spec->variant.reduction == Reduction::sum;
  for (int32_t i = 0; i < w.real_rows; ++i) {
    const float l = w.row_sum[i];
    const float scale = sum ? factor : (l == 0.0f ? 0.0f : factor / l);
    for (int32_t d = 0; d < vo; ++d) o[int64_t(i) * vo + d] = w.o[int64_t(i) * w.vo + d] * scale;
    lse[i] = sum ? 0.0f : (l == 0.0f ? neg_inf() : (w.row_max[i] + __builtin_log2f(l)) * kLn2);
  }
}

void tile_head(const Job& job, const Chunk& chunk, int32_t kv_head, void* memory, float* o, float* lse) {
  Arena arena(memory);
  TileWork w = take_tile_work(arena, *job.spec, chunk.row_count);
  if (w.rope.mode != RopeMode::none) begin_rope(w.rope, job.spec->variant.rope, job.spec->head_dim_qk);
  load_queries(job, chunk, kv_head, w);
  const Source src = source_of(job, kv_head);
  KeyBlock block = take_key_block(arena, w), next = take_key_block(arena, w);
  bool more = find_block(job, chunk, w, chunk.kv_begin, block);
  while (more) {
    pack_block(job, src, block, w);
    more = find_block(job, chunk, w, block.token + w.block_keys, next);
    FetchAhead ahead = plan_fetch(src, more ? &next : nullptr, w);
    for (int32_t r = 0; r < w.rows; r += kStrideOfRows) {
      attend_rows(job, chunk, kv_head, block, r, min_of(w.rows, r + kStrideOfRows), w, ahead);
    }
    const KeyBlock done = block;
    block = next;
    next = done;
  }
  finish_tile(job, kv_head, w, o, lse);
}

}  // namespace

int64_t tile_arena_bytes(const AttentionSpec& spec, int32_t tile_rows) {
  Arena arena(nullptr);
  const TileWork w = take_tile_work(arena, spec, tile_rows);
  take_key_block(arena, w);
  take_key_block(arena, w);
  return arena.bytes();
}

void tile(const Job& job, const Chunk& chunk, void* arena, float* o, float* lse) {
  const int64_t rows = chunk.row_count;
  for (int32_t h = 0; h < chunk.kv_head_count; ++h) {
    tile_head(job, chunk, chunk.kv_head + h, arena, o + h * rows * job.spec->head_dim_vo, lse + h * rows);
  }
}

}  // namespace kvloom::cpu::KVLOOM_TARGET
