// What stands between q.k and the weights: the variant's hooks and the masks, on the score fragments of a warp.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/base/math.h"
#include "kvloom/device/block/rows.cuh"

namespace kvloom::block {

template <class V>
KVLOOM_HD constexpr bool has_logit() {
  return requires(float s, const Coord& c, const VariantParams& p) { V::logit(s, c, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_keep() {
  return requires(const Coord& c, const VariantParams& p) { V::keep(c, p); };
}
template <class V>
KVLOOM_HD constexpr bool has_weight() {
  return requires(float s, const VariantParams& p) { V::weight(s, p); };
}

/// The keys of a warp's scores: list tokens from `token0` on; positions from shared memory where the list's are not linear.
struct WarpKeys {
  const RowGroup* group;
  int32_t token0;
  int32_t kv_head;
  int32_t begin;         // the item's keys: hooks see only these
  int32_t end;
  const int32_t* pos;    // [keys of the warp], shared memory; nullptr: linear
};

/// Applies hooks and masks to s[row tile][key tile][4] (mma layout) of rows row0 and up. In: q.k. Out: -inf where the key is masked, else
/// final base-2 logits if the variant has a logit hook and q.k if not (the softmax multiplies by the scale). Without hooks, only a tile
/// that is cut somewhere is touched.
template <class V, bool kListedPositions, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void warp_apply_variant(float (&s)[kRowTiles][kKeyTiles][4], const VariantParams& p, const Rows& rows, int row0,
                                                   const WarpKeys& keys, bool cut) {
  constexpr bool kHooks = has_logit<V>() || has_keep<V>();
  if (!kHooks && !cut && !kListedPositions) return;
  const int lane = int(threadIdx.x) & 31;
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r) {
    const int i = row0 + (r / 2) * 16 + (r % 2) * 8 + lane / 4;
    const KeptTokens kept = rows.kept[i];
    PackedRow row;
    if constexpr (kHooks || kListedPositions) row = rows.row[i];
#pragma unroll
    for (int n = 0; n < 2 * kKeyTiles; ++n) {
      const int column = (n / 2) * 8 + 2 * (lane & 3) + (n % 2);
      const int32_t j = keys.token0 + column;
      float& x = s[r / 2][n / 2][(r % 2) * 2 + n % 2];
      bool keep = kept.keeps(j);
      if constexpr (kHooks || kListedPositions) {
        const int32_t pos = kListedPositions ? keys.pos[column] : keys.group->kv_pos0 + j;
        if constexpr (kListedPositions) keep = keep && keeps(p.range, row.prefix, row.q_pos, pos);
        const Coord c{row.request, row.q_index, row.q_pos, keys.group->kv_index0 + j, pos, row.q_head, keys.kv_head};
        if constexpr (has_logit<V>()) x = V::logit(x * p.sm_scale, c, p) * kLog2e;
        if constexpr (has_keep<V>()) keep = keep && V::keep(c, p);
      }
      x = keep ? x : neg_inf();
    }
  }
}

}  // namespace kvloom::block
