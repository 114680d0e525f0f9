// What stands between q.k and the weights: the variant's hooks and the masks, on the score fragments of a warp.
#pragma once

#include "kvloom/device/block/masks.cuh"

namespace kvloom::block {

/// Keys of a warp's scores.
struct WarpKeys {
  static constexpr bool kByLane = false;
  const RowGroup* group;
  int32_t token0;          // list token of the tile's first key
  int32_t key0;            // of the warp's first key in the tile
  int32_t kv_head;
  int32_t pos0;            // position of the tile's first key, where positions are linear
  // What masks and positions that are not linear lie in: a part of the tile after the other, in shared memory.
  const int32_t* pos;    // of the first part; nullptr: linear from pos0 on
  const uint32_t* mask;  // nullptr: ranges say it all
  int32_t part_bytes;   // from one part to the next
  int32_t part_keys;
  int32_t words;        // of a row in a part

  /// Position of a key of the tile.
  __device__ __forceinline__ int32_t position(int32_t key) const { return pos ? part(pos, key)[key % part_keys] : pos0 + key; }
  /// Kept keys of a row from `key` on: at least as many as a warp's scores have until the next word.
  __device__ __forceinline__ uint32_t kept(int row, int32_t key) const { return word(row, key) >> (key % part_keys % 32); }

 protected:
  __device__ __forceinline__ uint32_t word(int row, int32_t key) const { return part(mask, key)[row * words + key % part_keys / 32]; }

 private:
  template <class T>
  __device__ __forceinline__ const T* part(const T* first, int32_t key) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + key / part_keys * part_bytes);
  }
};

/// The same with words by lane (masks.cuh).
struct LaneKeys : WarpKeys {
  static constexpr bool kByLane = true;
  /// From bit 1 on.
  __device__ __forceinline__ uint32_t kept_of_lane(int row, int32_t key, int quad) const { return rotate_right(word(row, key), 8 * quad + key % part_keys % 32 / 4 - 1); }
};

/// Of keys key0 + 32 w .. of a row those of the lane's scores that it keeps: of key 8 n + 2 quad + e bit 8 n + e, by lane 2 n + e + 1 (bit 0 takes two
/// instructions to become a predicate).
template <class Keys>
__device__ __forceinline__ uint32_t keep_bits(const Keys& keys, const KeptTokens& kept, int row, int w, int quad) {
  const int32_t key = keys.key0 + 32 * w;
  if constexpr (Keys::kByLane) {
    if (keys.mask) return keys.kept_of_lane(row, key, quad);
    return keys_of_lane(kept.word(keys.token0 + key), quad) << 1;
  } else {
    return (keys.mask ? keys.kept(row, key) : kept.word(keys.token0 + key)) >> (2 * quad);
  }
}

/// How scores become logits.
enum class Form {
  hooked,    // by the variant's hook, one by one; without one they are logits
  biased,    // they begin as the variant's bias, which is in proportion to the distance, and the products add to it: no hook is left to apply
  squashed,  // by the variant's squash, which has a cheaper form for tiles of small scores
};
/// Not squashed under fixed_split: whether the scores of a tile are small depends on all of its rows and keys, and the bits of a row must not.
template <class V>
KVLOOM_HD constexpr Form form_of(bool fixed_split) {
  if (has_weight<V>()) return Form::hooked;
  return has_slope<V>() ? Form::biased : has_squash<V>() && !fixed_split ? Form::squashed : Form::hooked;
}

/// What scores are multiplied by before anything else.
struct ScoreFactors {
  float hooks;   // where a hook gets them, or a squash: q.k becomes its score
  float others;  // where no hook does; 1, or the softmax's scale could not be folded into the exponentials
};

template <class V>
__device__ __forceinline__ float weight_of(float logit, const VariantParams& p) {
  if constexpr (has_weight<V>()) return V::weight(logit, p);
  return logit;
}

/// A hook's logit for one key of a row.
template <class V>
__device__ __forceinline__ float hooked_logit(float score, const VariantParams& p, const PackedRow& r, const WarpKeys& keys, int column) {
  if constexpr (has_logit<V>()) {
    score = V::logit(score, Coord{r.request, r.q_index, r.q_pos, keys.group->kv_index0 + keys.token0 + column, keys.position(column), r.q_head, keys.kv_head}, p);
  }
  return weight_of<V>(score, p);
}

/// How a row's logits come about.
enum class Logits { hooked, squashed, squashed_near, there };

/// Logits of the kept keys of one row of fragments; `h` picks row lane/4 or lane/4 + 8. In and out as warp_apply_variant.
template <class V, bool kCut, Logits kLogits, int kKeyTiles, class Keys>
__device__ __forceinline__ void apply_to_row(float (&s)[kKeyTiles][4], int h, const VariantParams& p, const ScoreFactors& by, const Rows& rows, int row,
                                             const Keys& keys) {
  constexpr float kMasked = has_weight<V>() ? 0.0f : neg_inf();
  const int quad = int(threadIdx.x) & 3;
  PackedRow r;
  if constexpr (kLogits == Logits::hooked && has_logit<V>()) r = rows.row[row];
#pragma unroll
  for (int w = 0; w < ceil_div(kKeyTiles, 4); ++w) {
    uint32_t kept = ~0u;
    if constexpr (kCut) kept = keep_bits(keys, rows.kept[row], row, w, quad);
#pragma unroll
    for (int n = 4 * w; n < min_of(4 * w + 4, kKeyTiles); ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * h + e];
        const bool keep = !kCut || (kept >> (Keys::kByLane ? (n & 3) * 2 + e + 1 : (n & 3) * 8 + e) & 1u);
        if constexpr (kLogits == Logits::squashed_near) {
          x = V::squash_near(x * by.hooks);
        } else if constexpr (kLogits == Logits::squashed) {
          x = V::squash(x * by.hooks);
        } else if constexpr (kLogits == Logits::hooked) {
          if (keep) x = hooked_logit<V>(x * by.hooks, p, r, keys, keys.key0 + n * 8 + 2 * quad + e);
        }
        if (kCut) x = keep ? x : kMasked;
      }
    }
  }
}

template <class V, bool kCut, Logits kLogits, int kRowTiles, int kKeyTiles, class Keys>
__device__ __forceinline__ void apply_to_rows(float (&s)[kRowTiles][kKeyTiles][4], const VariantParams& p, const ScoreFactors& by, const Rows& rows, int row0,
                                              const Keys& keys) {
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r) {
    apply_to_row<V, kCut, kLogits>(s[r / 2], r % 2, p, by, rows, row0 + (r / 2) * 16 + (r % 2) * 8 + (int(threadIdx.x) & 31) / 4, keys);
  }
}

/// True, for the whole warp, if no |score| * |factor| is above `bound`.
template <int kRowTiles, int kKeyTiles>
__device__ __forceinline__ bool warp_all_near(const float (&s)[kRowTiles][kKeyTiles][4], float factor, float bound) {
  float top[4] = {};  // chains
#pragma unroll
  for (int i = 0; i < kRowTiles * kKeyTiles * 4; ++i) top[i % 4] = fmaxf(top[i % 4], fabsf(s[i / 4 / kKeyTiles][i / 4 % kKeyTiles][i % 4]));
  return __all_sync(0xffffffffu, fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3])) * fabsf(factor) <= bound);
}

/// Scores of Form::biased as the products should find them. `unit`: what a logit of 1 is in scores.
template <int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void start_biased(float (&s)[kRowTiles][kKeyTiles][4], const Rows& rows, int row0, const WarpKeys& keys, float unit) {
  const int lane = int(threadIdx.x) & 31;
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const PackedRow& r = rows.row[row0 + i * 8 + lane / 4];
    const int32_t first = keys.key0 + 2 * (lane & 3);  // this lane's first key
    const float slope = r.slope * unit;
    if (keys.pos == nullptr) {
      const float bias = slope * float(keys.pos0 + first - r.q_pos);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) s[i / 2][n][i % 2 * 2 + e] = __fmaf_rn(slope, float(8 * n + e), bias);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) s[i / 2][n][i % 2 * 2 + e] = slope * float(keys.position(first + 8 * n + e) - r.q_pos);
      }
    }
  }
}

/// Applies hooks and masks to s[row tile][key tile][4] (mma layout) of rows row0 and up. In: q.k. Out, kept keys: q.k (to be multiplied by
/// the scale as the softmax goes) if the variant has no hook or is a bias; shares of the bound if it squashes; final logits if it has another
/// hook; weights for reduction sum. Masked keys: -inf, or 0 for sum. `cut`: some row may not keep some key of the tile.
/// `kStale`: scores of keys that no row keeps are whatever was there, so whether a tile's are small must not hang on an edge's.
template <class V, Form kForm, bool kStale = false, int kRowTiles, int kKeyTiles, class Keys>
__device__ __forceinline__ void warp_apply_variant(float (&s)[kRowTiles][kKeyTiles][4], const VariantParams& p, const ScoreFactors& by, const Rows& rows,
                                                   int row0, const Keys& keys, bool cut) {
  if constexpr (kForm == Form::squashed) {
    if (kStale && cut) return apply_to_rows<V, true, Logits::squashed>(s, p, by, rows, row0, keys);
    const bool near = warp_all_near(s, by.hooks, V::kNear);
    if (near && !cut) apply_to_rows<V, false, Logits::squashed_near>(s, p, by, rows, row0, keys);
    else if (near) apply_to_rows<V, true, Logits::squashed_near>(s, p, by, rows, row0, keys);
    else apply_to_rows<V, true, Logits::squashed>(s, p, by, rows, row0, keys);
  } else if constexpr (kForm == Form::hooked && (has_logit<V>() || has_weight<V>())) {
    if (cut) apply_to_rows<V, true, Logits::hooked>(s, p, by, rows, row0, keys);
    else apply_to_rows<V, false, Logits::hooked>(s, p, by, rows, row0, keys);
  } else {
    if (by.others != 1.0f) {
#pragma unroll
      for (int i = 0; i < kRowTiles * kKeyTiles * 4; ++i) s[i / 4 / kKeyTiles][i / 4 % kKeyTiles][i % 4] *= by.others;
    }
    if (cut) apply_to_rows<V, true, Logits::there>(s, p, by, rows, row0, keys);
  }
}

/// Masks the keys after the last one that a row keeps, for tiles whose keys before it are all kept: one comparison a score.
template <class V, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void mask_after_ends(float (&s)[kRowTiles][kKeyTiles][4], const Rows& rows, int row0, const WarpKeys& keys) {
  constexpr float kMasked = has_weight<V>() ? 0.0f : neg_inf();
  const int lane = int(threadIdx.x) & 31;
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r) {
    const int32_t left = rows.kept[row0 + r * 8 + lane / 4].joined_end() - (keys.token0 + keys.key0 + 2 * (lane & 3));
#pragma unroll
    for (int i = 0; i < 2 * kKeyTiles; ++i) {
      float& x = s[r / 2][i / 2][r % 2 * 2 + i % 2];
      x = i / 2 * 8 + i % 2 < left ? x : kMasked;
    }
  }
}

}  // namespace kvloom::block
