// Masks that take more than a row's range: made by the whole CTA some tiles ahead, a word of 32 keys a (row, word), so that every bit is
// asked for once, and keys that no row keeps are known before they would be read.
#pragma once

#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/block/variant.cuh"

namespace kvloom::block {

/// The masks of one tile, in shared memory.
struct TileMask {
  uint32_t* word;      // [tile rows][kWords]
  uint32_t* live;      // [kWords] keys that some row keeps; zero on entry
  uint32_t* full;      // stays 1 if every row keeps every key; one on entry
  const int32_t* pos;  // [32 kWords] positions of the keys
};

/// True if ranges alone don't say what a tile's rows keep together.
template <class V>
__device__ __forceinline__ bool needs_masks(const RowGroup& g, const KeyRange& range) {
  return has_keep<V>() || g.kv_position != KvPosition::linear || (g.row_list >= 0 && range.left >= 0);
}

template <class V>
__device__ __forceinline__ uint32_t mask_word(const VariantParams& p, const RowGroup& group, const KeySpan& keys, const PackedRow& row,
                                              const KeptTokens& kept, int kv_head, int32_t j, const int32_t* pos) {
  uint32_t word = kept.word(j);
  Coord c{row.request, row.q_index, row.q_pos, group.kv_index0 + j, 0, row.q_head, kv_head};
  if (group.kv_position != KvPosition::linear) {
    for (int i = 0; i < 32; ++i) {
      if (!keeps(p.range, row.prefix, row.q_pos, pos[i])) word &= ~(1u << i);
    }
  }
  if constexpr (has_keep32<V>()) {
    c.kv_pos = pos[0];
    if (word) word &= V::keep32(c, p);
  } else if constexpr (has_keep<V>()) {
    for (int i = 0; i < 32; ++i) {
      if (!(word >> i & 1)) continue;
      c.kv_index = group.kv_index0 + j + i;
      c.kv_pos = pos[i];
      if (!V::keep(c, p)) word &= ~(1u << i);
    }
  }
  return word;
}

/// Fills `mask` for the tile that begins at list token `token0`.
template <class V, int kTileRows, int kWords, int kThreads>
__device__ __forceinline__ void block_make_masks(const VariantParams& p, const RowGroup& group, const KeySpan& keys, const Rows& rows,
                                                 int kv_head, int32_t token0, const TileMask& mask) {
#pragma unroll 2
  for (int i = int(threadIdx.x); i < kTileRows * kWords; i += kThreads) {
    const int r = i / kWords, w = i % kWords;
    const PackedRow row = rows.row[r];
    if (row.token < 0) continue;  // nobody looks
    const uint32_t word = mask_word<V>(p, group, keys, row, rows.kept[r], kv_head, token0 + 32 * w, mask.pos + 32 * w);
    mask.word[i] = word;
    if (word) atomicOr(&mask.live[w], word);
    if (~word) *mask.full = 0;
  }
}

}  // namespace kvloom::block
