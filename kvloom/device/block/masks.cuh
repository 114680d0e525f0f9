// Masks that take more than a row's range: made ahead by the warp that copies the keys, a word of 32 keys a (row, word), so that every bit is
// asked for once, and keys that no row keeps are known before they would be read.
#pragma once

#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/block/variant.cuh"

namespace kvloom::block {

/// 32 keys in the order of score fragments, from bit i for key i: of lanes with lane % 4 = q byte q is, bit 2 n + e of it key 8 n + 2 q + e. So a lane's
/// keys stand side by side, and the bits of seven become predicates at once.
__device__ __forceinline__ uint32_t keys_by_lane(uint32_t keys) {  // a matrix of 4 x 4 pairs of bits, transposed: its quarters, then within each
  uint32_t swapped = (keys >> 12 ^ keys) & 0x0000f0f0u;
  keys ^= swapped ^ swapped << 12;
  swapped = (keys >> 6 ^ keys) & 0x00cc00ccu;
  return keys ^ swapped ^ swapped << 6;
}
/// `bits` is no multiple of 32.
__device__ __forceinline__ uint32_t rotate_right(uint32_t x, int bits) { return x >> (bits & 31) | x << (32 - (bits & 31)); }
/// The byte of keys_by_lane() that is this lane's, in the lowest bits; what is above them is no key.
__device__ __forceinline__ uint32_t keys_of_lane(uint32_t keys, int quad) { return ((keys >> 2 * quad) & 0x03030303u) * 0x00041041u >> 18; }

/// What is known of the keys that a warp copies of a tile, in shared memory.
template <int kRows, int kWords>
struct PartMask {
  int32_t pos[32 * kWords];       // positions, where mask_needs_positions()
  uint32_t word[kRows * kWords];  // [row][word]: kept keys, by lane where warp_make_mask was told so
  uint32_t live[kWords];          // keys that some row keeps
  uint32_t full;                  // 1: every row keeps every key
};

/// True if ranges alone don't say what a tile's rows keep together.
template <class V>
__device__ __forceinline__ bool needs_masks(const RowGroup& g, const KeyRange& range) {
  return has_keep<V>() || g.kv_position != KvPosition::linear || (g.row_list >= 0 && range.left >= 0);
}

/// False where nobody asks for the positions of keys one by one: masks by bits, of lists whose positions are linear.
template <class V>
__device__ __forceinline__ bool mask_needs_positions(const RowGroup& g) {
  return !has_begin32<V>() || g.kv_position != KvPosition::linear;
}

/// 32 keys of a list, the first of which is token `j`, and the row that is asked about them.
__device__ __forceinline__ Coord first_of_32(const RowGroup& group, const PackedRow& row, int kv_head, int32_t j, int32_t pos) {
  return {row.request, row.q_index, row.q_pos, group.kv_index0 + j, pos, row.q_head, kv_head};
}

/// Of the keys of `word` those that the row keeps by position; `pos`: of the 32.
__device__ __forceinline__ uint32_t kept_by_position(const KeyRange& range, const PackedRow& row, const int32_t* pos, uint32_t word) {
#pragma unroll 2
  for (int i = 0; i < 32; ++i) {
    if (!keeps(range, row.prefix, row.q_pos, pos[i])) word &= ~(1u << i);
  }
  return word;
}

/// Of the keys of `word` those that the row keeps by the variant's hooks. `c`: of the first of the 32.
template <class V>
__device__ __forceinline__ uint32_t kept_by_hook(const VariantParams& p, Coord c, const int32_t* pos, uint32_t word) {
  if constexpr (has_keep32<V>()) {
    if (word) word &= V::keep32(c, p);
  } else if constexpr (has_keep<V>()) {
    const int32_t first = c.kv_index;
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
      if (!(word >> i & 1)) continue;
      c.kv_index = first + i;
      c.kv_pos = pos[i];
      if (!V::keep(c, p)) word &= ~(1u << i);
    }
  }
  return word;
}

/// Runs of packed rows that are kept alike: the heads of a token, unless a hook may tell them apart.
struct RowRuns {
  int rows;    // of the item
  int length;  // of a run
  int before;  // rows of the first run that lie before the item
  int count;

  /// Of packed rows [row_begin, row_begin + row_count) of a group.
  template <class V>
  __device__ __forceinline__ static RowRuns of(const FastDivide& group_size, int row_begin, int row_count) {
    if constexpr (has_keep<V>() && !has_keep32<V>()) return {row_count, 1, 0, row_count};
    const int heads = int(group_size.divisor);
    const int before = int(uint32_t(row_begin) - group_size.divide(uint32_t(row_begin)) * group_size.divisor);
    return {row_count, heads, before, int(group_size.divide(uint32_t(row_count + before + heads - 1)))};
  }
  __device__ __forceinline__ int begin(int run) const { return max_of(0, run * length - before); }
  __device__ __forceinline__ int end(int run) const { return min_of(rows, (run + 1) * length - before); }
};

/// Fills `mask` for kKeys keys from list token `token0` on, words by lane if kByLane; its positions are there if they are needed. Ends with a barrier of
/// the warp.
template <class V, int kKeys, bool kByLane, int kRows, int kWords>
__device__ __forceinline__ void warp_make_mask(const VariantParams& p, const RowGroup& group, const Rows& rows,
                                               const RowRuns& runs, int kv_head, int32_t token0, PartMask<kRows, kWords>& mask) {
  static_assert(32 % kWords == 0);
  constexpr uint32_t kAll = kKeys < 32 ? (1u << (kKeys & 31)) - 1u : ~0u;
  const int lane = int(threadIdx.x) & 31, w = lane % kWords;  // a lane keeps to one word of the rows
  uint32_t live = 0, full = kAll;
  const int count = runs.count * kWords;
  const auto keep = [&](int i, uint32_t word) {
    live |= word;
    full &= word;
    if constexpr (kByLane) word = keys_by_lane(word);
    const int end = runs.end(i / kWords);
#pragma unroll 1
    for (int r = runs.begin(i / kWords); r < end; r += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (r + j < end) mask.word[(r + j) * kWords + w] = word;
      }
    }
  };
  const int32_t token = token0 + 32 * w, *const pos = mask.pos + 32 * w;
  const bool linear = group.kv_position == KvPosition::linear;
  static_assert(kRows * kWords <= 1024);
  uint32_t rest = ~0u;  // of the lane's words: those that are made one by one
  if constexpr (has_begin32<V>()) {
    constexpr int kTogether = clamp_to(kRows * kWords / 64, 1, 4);  // what there is for a lane, of rows in pairs
    const bool inside = token0 >= rows.hull->all_begin && token0 + 32 * kWords <= rows.hull->all_end;
    if (linear) rest = 0;
#pragma unroll 1
    for (int i0 = lane, n = 0; linear && i0 < count; i0 += 32 * kTogether, n += kTogether) {
      decltype(V::begin32(Coord{}, p)) bits[kTogether];
      uint32_t word[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {  // asked for together, and no branch between
        const int first = runs.begin(min_of(i0 + 32 * k, count - 1) / kWords);
        bits[k] = V::begin32(first_of_32(group, rows.row[first], kv_head, token, 0), p);
        word[k] = kAll;
        if (!inside) word[k] &= rows.kept[first].word(token);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (i0 + 32 * k >= count) break;
        if (bits[k].partial) rest |= 1u << (n + k);
        else keep(i0 + 32 * k, word[k] & bits[k].word());
      }
    }
  }
#pragma unroll 1
  for (int i = lane; rest != 0 && i < count; i += 32, rest >>= 1) {
    if (!(rest & 1)) continue;
    const int first = runs.begin(i / kWords);
    uint32_t word = rows.kept[first].word(token) & kAll;  // no hook is asked of keys behind them
    if (!linear) word = kept_by_position(p.range, rows.row[first], pos, word);
    keep(i, kept_by_hook<V>(p, first_of_32(group, rows.row[first], kv_head, token, linear ? group.kv_pos0 + token : pos[0]), pos, word));
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
