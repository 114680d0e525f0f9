// What stands between q.k and the weights: the variant's hooks and the masks, on the score fragments of a warp.
#pragma once

#include "kvloom/device/block/masks.cuh"

namespace kvloom::block {

/// Keys of a warp's scores.
struct WarpKeys {
  const RowGroup* group;
  int32_t token0;          // list token of the tile's first key
  int32_t key0;            // of the warp's first key in the tile
  int32_t kv_head;
  const int32_t* pos;      // shared memory: positions of the tile's keys; read by logit hooks only
  const uint32_t* mask;    // shared memory [tile rows][words], or nullptr: ranges say it all
  int32_t words;           // a row of `mask`
};

/// Keys key0 + 32 w .. of a row, bit i for key i; the lane's own are the bits 8 n + 2 (lane % 4) and the next.
__device__ __forceinline__ uint32_t keep_word(const WarpKeys& keys, const KeptTokens& kept, int row, int w) {
  const int32_t key = keys.key0 + 32 * w;
  if (keys.mask) return keys.mask[row * keys.words + (key >> 5)] >> (key & 31);
  return kept.word(keys.token0 + key);
}

template <class V>
__device__ __forceinline__ float weight_of(float logit, const VariantParams& p) {
  if constexpr (has_weight<V>()) return V::weight(logit, p);
  return logit;
}

/// Logits of the kept keys of one row of fragments; `h` picks row lane/4 or lane/4 + 8. In and out as warp_apply_variant.
template <class V, bool kCut, int kKeyTiles>
__device__ __forceinline__ void apply_to_row(float (&s)[kKeyTiles][4], int h, const VariantParams& p, float factor, const Rows& rows, int row,
                                             const WarpKeys& keys) {
  constexpr float kMasked = has_weight<V>() ? 0.0f : neg_inf();
  const int quad = int(threadIdx.x) & 3;
  PackedRow r;
  if constexpr (has_logit<V>()) r = rows.row[row];
#pragma unroll
  for (int w = 0; w < ceil_div(kKeyTiles, 4); ++w) {
    uint32_t word = ~0u;
    if constexpr (kCut) word = keep_word(keys, rows.kept[row], row, w) >> (2 * quad);
#pragma unroll
    for (int n = 4 * w; n < min_of(4 * w + 4, kKeyTiles); ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * h + e];
        const bool keep = !kCut || (word >> ((n & 3) * 8 + e) & 1u);
        if constexpr (has_logit<V>() || has_weight<V>()) {
          if (keep) {
            x *= factor;
            if constexpr (has_logit<V>()) {
              const int column = keys.key0 + n * 8 + 2 * quad + e;
              x = V::logit(x, Coord{r.request, r.q_index, r.q_pos, keys.group->kv_index0 + keys.token0 + column, keys.pos[column], r.q_head,
                                    keys.kv_head}, p);
            }
            x = has_weight<V>() ? weight_of<V>(x, p) : x * kLog2e;
          }
        }
        if (kCut) x = keep ? x : kMasked;
      }
    }
  }
}

/// Applies hooks and masks to s[row tile][key tile][4] (mma layout) of rows row0 and up. In: q.k. Out, kept keys: q.k (to be multiplied by
/// the factor as the softmax goes) if the variant has no hook; final base-2 logits if it has; weights for reduction sum. Masked keys: -inf, or
/// 0 for sum. `cut`: some row may not keep some key of the tile.
template <class V, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void warp_apply_variant(float (&s)[kRowTiles][kKeyTiles][4], const VariantParams& p, float factor, const Rows& rows,
                                                   int row0, const WarpKeys& keys, bool cut) {
  const int lane = int(threadIdx.x) & 31;
  if (cut) {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      apply_to_row<V, true>(s[r / 2], r % 2, p, factor, rows, row0 + (r / 2) * 16 + (r % 2) * 8 + lane / 4, keys);
    }
  } else if constexpr (has_logit<V>() || has_weight<V>()) {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      apply_to_row<V, false>(s[r / 2], r % 2, p, factor, rows, row0 + (r / 2) * 16 + (r % 2) * 8 + lane / 4, keys);
    }
  }
}

}  // namespace kvloom::block
