// Masks that take more than a row's range: made ahead by the warp that copies the keys, a word of 32 keys a (row, word), so that every bit is
// asked for once, and keys that no row keeps are known before they would be read.
#pragma once

#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/block/variant.cuh"

namespace kvloom::block {

/// What is known of the keys that a warp copies of a tile, in shared memory.
template <int kRows, int kWords>
struct PartMask {
  int32_t pos[32 * kWords];       // positions
  uint32_t word[kRows * kWords];  // [row][word]: kept keys
  uint32_t live[kWords];          // keys that some row keeps
  uint32_t full;                  // 1: every row keeps every key
};

/// True if ranges alone don't say what a tile's rows keep together.
template <class V>
__device__ __forceinline__ bool needs_masks(const RowGroup& g, const KeyRange& range) {
  return has_keep<V>() || g.kv_position != KvPosition::linear || (g.row_list >= 0 && range.left >= 0);
}

/// What one row keeps of 32 keys. Where the variant can ask for its bits first, several words' may be on their way.
template <class V>
struct MaskWord {
  uint32_t word;
  Coord c;

  /// By position and range; `j`: list token of the first key, `pos`: positions from there on.
  __device__ __forceinline__ MaskWord(const VariantParams& p, const RowGroup& group, const PackedRow& row, const KeptTokens& kept, int kv_head, int32_t j,
                                      const int32_t* pos)
      : word(kept.word(j)), c{row.request, row.q_index, row.q_pos, group.kv_index0 + j, pos[0], row.q_head, kv_head} {
    if (group.kv_position == KvPosition::linear) return;
#pragma unroll 2
    for (int i = 0; i < 32; ++i) {
      if (!keeps(p.range, row.prefix, row.q_pos, pos[i])) word &= ~(1u << i);
    }
  }
  /// By a hook that sees one key at a time.
  __device__ __forceinline__ void keep_each(const VariantParams& p, const int32_t* pos) {
    const int32_t first = c.kv_index;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
      if (!(word >> i & 1)) continue;
      c.kv_index = first + i;
      c.kv_pos = pos[i];
      if (!V::keep(c, p)) word &= ~(1u << i);
    }
  }
};

/// Runs of packed rows that are kept alike: the heads of a token, unless a hook may tell them apart.
struct RowRuns {
  int rows;    // of the item
  int length;  // of a run
  int before;  // rows of the first run that lie before the item

  /// Of packed rows [row_begin, row_begin + row_count) of a group.
  template <class V>
  __device__ __forceinline__ static RowRuns of(const FastDivide& group_size, int row_begin, int row_count) {
    if constexpr (has_keep<V>() && !has_keep32<V>()) return {row_count, 1, 0};
    const int heads = int(group_size.divisor);
    return {row_count, heads, int(uint32_t(row_begin) - group_size.divide(uint32_t(row_begin)) * group_size.divisor)};
  }
  __device__ __forceinline__ int count() const { return (rows + before + length - 1) / length; }
  __device__ __forceinline__ int begin(int run) const { return max_of(0, run * length - before); }
  __device__ __forceinline__ int end(int run) const { return min_of(rows, (run + 1) * length - before); }
};

/// Fills `mask` for kKeys keys from list token `token0` on; its positions are there. Ends with a barrier of the warp.
template <class V, int kKeys, int kRows, int kWords>
__device__ __forceinline__ void warp_make_mask(const VariantParams& p, const RowGroup& group, const Rows& rows,
                                               const RowRuns& runs, int kv_head, int32_t token0, PartMask<kRows, kWords>& mask) {
  static_assert(32 % kWords == 0);
  constexpr uint32_t kAll = kKeys < 32 ? (1u << (kKeys & 31)) - 1u : ~0u;
  const int lane = int(threadIdx.x) & 31, w = lane % kWords;  // a lane keeps to one word of the rows
  uint32_t live = 0, full = kAll;
  const int count = runs.count() * kWords;
  const auto keep = [&](int i, const MaskWord<V>& made) {
    const uint32_t word = made.word & kAll;
    for (int r = runs.begin(i / kWords); r < runs.end(i / kWords); ++r) mask.word[r * kWords + w] = word;
    live |= word;
    full &= word;
  };
  const auto make = [&](int i) {
    const int first = runs.begin(i / kWords);
    MaskWord<V> made(p, group, rows.row[first], rows.kept[first], kv_head, token0 + 32 * w, mask.pos + 32 * w);
    made.word &= kAll;  // no hook is asked of keys behind them
    return made;
  };
  if constexpr (has_begin32<V>()) {
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int i0 = lane; i0 < count; i0 += 32 * kTogether) {
      decltype(V::begin32(Coord{}, p)) bits[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) bits[k] = V::begin32(make(min_of(i0 + 32 * k, count - 1)).c, p);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int i = i0 + 32 * k;
        if (i >= count) break;
        MaskWord<V> made = make(i);
        made.word &= V::end32(bits[k], made.c, p);
        keep(i, made);
      }
    }
  } else {
#pragma unroll 1
    for (int i = lane; i < count; i += 32) {
      MaskWord<V> made = make(i);
      if constexpr (has_keep32<V>()) {
        if (made.word) made.word &= V::keep32(made.c, p);
      } else if constexpr (has_keep<V>()) {
        made.keep_each(p, mask.pos + 32 * w);
      }
      keep(i, made);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const uint32_t some = __reduce_or_sync(0xffffffffu, i == w ? live : 0u);
    if (lane == i) mask.live[i] = some;
  }
  if constexpr (has_logit<V>()) {  // which is asked about what the words say, in rows past the last as well
    for (int i = runs.rows * kWords + lane; i < kRows * kWords; i += 32) mask.word[i] = 0;
  }
  const bool all = __all_sync(0xffffffffu, full == kAll);
  if (lane == 0) mask.full = all && runs.rows > 0;
  __syncwarp();
}

}  // namespace kvloom::block
