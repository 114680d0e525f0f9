// One tile of keys for one warp: scores, variant and masks, softmax, accumulate. Either all of the warp's keys at once, or slices in pairs
// whose exponentials hide behind the products of the other slice.
#pragma once

#include "kvloom/device/block/scores.cuh"
#include "kvloom/device/block/softmax.cuh"
#include "kvloom/device/sm80/turned_keys.cuh"

namespace kvloom::sm80 {

/// The state of a warp's rows, unnormalised.
template <AttendConfig C, int kDimTiles>
struct WarpState {
  float o[C.row_tiles()][kDimTiles][4];
  block::OnlineSoftmax<C.row_tiles()> softmax;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int mi = 0; mi < C.row_tiles(); ++mi) {
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) o[mi][d][0] = o[mi][d][1] = o[mi][d][2] = o[mi][d][3] = 0.0f;
    }
    softmax.clear();
  }
};

/// What turns scores into logits.
struct Scaling {
  float factor;  // hooks get factor * q.k
  float scale;   // of what warp_apply_variant leaves, to base 2
  float slack;   // block::kSlack / scale
  bool by_hand;  // `scale` is no good for folding into exponentials (zero, negative): scores are multiplied by `factor` first

  /// `score_factor`: what q.k is of the scores.
  template <class V>
  __device__ __forceinline__ static Scaling of(const VariantParams& p, int kv_head, float score_factor) {
    const float k_scale = p.scale.k_per_head ? p.scale.k_per_head[kv_head] : p.scale.k;
    const float factor = p.sm_scale * p.scale.q * k_scale * score_factor;
    if (block::has_weight<V>()) return {factor, 1.0f, block::kSlack, false};
    if (block::has_logit<V>()) return {factor, kLog2e, block::kSlack * kLn2, false};
    const float scale = factor * kLog2e;
    if (scale > 1e-30f) return {factor, scale, block::kSlack / scale, false};
    return {scale, 1.0f, block::kSlack, true};
  }
};

/// What a warp needs for a tile.
template <AttendConfig C>
struct TileView {
  uint32_t k, v;         // shared addresses
  block::WarpKeys keys;  // key0: the warp's first key
  block::Rows rows;
  int row0;
  bool cut;
  const uint64_t* turns;  // shared memory; nullptr: keys in shared memory are as they should be
};

template <AttendConfig C>
struct Slice {
  static constexpr int kTiles = C.row_tiles() * C.key_tiles();
  float s[C.row_tiles()][C.key_tiles()][4];
  uint32_t p[C.row_tiles()][C.key_tiles() / 2][4];  // weights, 16 bits, as mma's A operand
};

/// Weights of score tile i of a slice: 2^(scale s - shift), added to the row's sum, packed.
template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void weigh(Slice<C>& x, WarpState<C, kDimTiles>& state, float scale, int i) {
  const int mi = i / C.key_tiles(), n = i % C.key_tiles();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float a = x.s[mi][n][2 * h], b = x.s[mi][n][2 * h + 1];
    if constexpr (!block::has_weight<V>()) {
      const float shift = state.softmax.shift(mi, h, scale);
      a = ptx::ex2(a * scale - shift);
      b = ptx::ex2(b * scale - shift);
      state.softmax.sum[mi][h] += a + b;
    }
    x.p[mi][n / 2][(n % 2) * 2 + h] = ptx::pack_16<C.pv_dtype()>(a, b);
  }
}

template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void weigh_all(Slice<C>& x, WarpState<C, kDimTiles>& state, float scale) {
#pragma unroll
  for (int i = 0; i < Slice<C>::kTiles; ++i) weigh<C, V>(x, state, scale, i);
}

/// The part of a slice's exponentials that falls to step `step` of `steps`.
template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void weigh_part(Slice<C>& x, WarpState<C, kDimTiles>& state, float scale, int step, int steps) {
#pragma unroll
  for (int i = 0; i < Slice<C>::kTiles; ++i) {
    if (i * steps / Slice<C>::kTiles == step) weigh<C, V>(x, state, scale, i);
  }
}

/// Scores become logits: hooks and masks of the slice's keys.
template <AttendConfig C, class V>
__device__ __forceinline__ void apply_variant(Slice<C>& x, const AttendArgs& args, const TileView<C>& tile, const Scaling& scaling, int slice) {
  if (scaling.by_hand) {
#pragma unroll
    for (int i = 0; i < Slice<C>::kTiles * 4; ++i) x.s[i / 4 / C.key_tiles()][i / 4 % C.key_tiles()][i % 4] *= scaling.factor;
  }
  block::WarpKeys keys = tile.keys;
  keys.key0 += slice * C.key_tiles() * 8;
  block::warp_apply_variant<V>(x.s, args.params.variant, scaling.factor, tile.rows, tile.row0, keys, tile.cut);
}

template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void raise_if_needed(const Slice<C>& x, WarpState<C, kDimTiles>& state, const Scaling& scaling) {
  if constexpr (block::has_weight<V>()) return;
  if (state.softmax.warp_must_raise(x.s, scaling.slack)) state.softmax.raise(x.s, state.o, scaling.scale, scaling.slack);
}

/// One slice by itself: exponentials of 16 keys stand among the products of the 16 before.
template <AttendConfig C, class V, bool kFp8K, int kDimTiles>
__device__ __forceinline__ void warp_slice(const AttendArgs& args, const TileView<C>& tile, const Queries<C, kFp8K>& q,
                                                const Scaling& scaling, int slice, WarpState<C, kDimTiles>& state) {
  const int key0 = tile.keys.key0 + slice * C.key_tiles() * 8;
  Slice<C> x;
  bool turned = false;
  if constexpr (can_turn_in_registers<C, V>()) {
    const VariantParams& p = args.params.variant;
    turned = tile.turns != nullptr;
    if (turned && p.rope.mode == RopeMode::half_split) {
      warp_turned_scores<C, V, true, C.key_tiles()>(x.s, q, tile.k, p, tile.turns, tile.keys);
    } else if (turned) {
      warp_turned_scores<C, V, false, C.key_tiles()>(x.s, q, tile.k, p, tile.turns, tile.keys);
    }
  }
  if (!turned) warp_scores<C, kFp8K, C.key_tiles()>(x.s, q, tile.k, key0, Nothing());
  apply_variant<C, V>(x, args, tile, scaling, slice);
  raise_if_needed<C, V>(x, state, scaling);
  weigh_all<C, V>(x, state, scaling.scale);
  warp_accumulate<C, C.key_tiles() / 2, kDimTiles>(state.o, x.p, tile.v, key0, Nothing());
}

/// Slices 2 i and 2 i + 1: while the second's scores are formed, the first's exponentials are; while the first is accumulated, the second's.
template <AttendConfig C, class V, bool kFp8K, int kDimTiles>
__device__ __forceinline__ void warp_slice_pair(const AttendArgs& args, const TileView<C>& tile, const Queries<C, kFp8K>& q,
                                                const Scaling& scaling, int pair, WarpState<C, kDimTiles>& state) {
  constexpr int kKeys = C.key_tiles() * 8;
  const int key_a = tile.keys.key0 + 2 * pair * kKeys, key_b = key_a + kKeys;
  Slice<C> a, b;
  warp_scores<C, kFp8K, C.key_tiles()>(a.s, q, tile.k, key_a, Nothing());
  apply_variant<C, V>(a, args, tile, scaling, 2 * pair);
  raise_if_needed<C, V>(a, state, scaling);
  warp_scores<C, kFp8K, C.key_tiles()>(b.s, q, tile.k, key_b, [&](int step, int steps) { weigh_part<C, V>(a, state, scaling.scale, step, steps); });
  apply_variant<C, V>(b, args, tile, scaling, 2 * pair + 1);
  bool raise = false;
  if constexpr (!block::has_weight<V>()) raise = state.softmax.warp_must_raise(b.s, scaling.slack);
  if (raise) {  // what is accumulated so far must be complete before it is scaled
    warp_accumulate<C, C.key_tiles() / 2, kDimTiles>(state.o, a.p, tile.v, key_a, Nothing());
    state.softmax.raise(b.s, state.o, scaling.scale, scaling.slack);
    weigh_all<C, V>(b, state, scaling.scale);
  } else {
    warp_accumulate<C, C.key_tiles() / 2, kDimTiles>(state.o, a.p, tile.v, key_a,
                                                     [&](int step, int steps) { weigh_part<C, V>(b, state, scaling.scale, step, steps); });
  }
  warp_accumulate<C, C.key_tiles() / 2, kDimTiles>(state.o, b.p, tile.v, key_b, Nothing());
}

template <AttendConfig C, class V, bool kFp8K, int kDimTiles>
__device__ __forceinline__ void warp_tile_step(const AttendArgs& args, const TileView<C>& tile, const Queries<C, kFp8K>& q,
                                               const Scaling& scaling, WarpState<C, kDimTiles>& state) {
  if constexpr (C.slice_keys == 0 || C.slice_keys == C.warp_keys()) {
    warp_slice<C, V>(args, tile, q, scaling, 0, state);
  } else if constexpr (!C.overlap_slices) {
    static_assert(C.warp_keys() % C.slice_keys == 0);
#pragma unroll 1
    for (int slice = 0; slice < C.warp_keys() / C.slice_keys; ++slice) warp_slice<C, V>(args, tile, q, scaling, slice, state);
  } else {
    constexpr int kPairs = C.warp_keys() / (2 * C.slice_keys);
    static_assert(kPairs >= 1 && kPairs * 2 * C.slice_keys == C.warp_keys(), "slices come in pairs");
#pragma unroll 1
    for (int pair = 0; pair < kPairs; ++pair) warp_slice_pair<C, V>(args, tile, q, scaling, pair, state);
  }
}

}  // namespace kvloom::sm80
