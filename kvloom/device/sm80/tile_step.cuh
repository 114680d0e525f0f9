// One tile of keys for one warp: scores, variant and masks, softmax, accumulate.
#pragma once

#include "kvloom/device/block/scaling.cuh"
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

/// What a warp needs for a tile.
template <AttendConfig C>
struct TileView {
  uint32_t k, v;         // shared addresses, the lane's
  typename Select<C.boxed, block::WarpKeys, block::LaneKeys>::Type keys;  // key0: the warp's first key
  block::Rows rows;
  int row0;
  bool cut;
  const uint64_t* turns;  // shared memory; nullptr: keys in shared memory are as they should be
};

/// A warp's scores of a tile, which become logits, and their weights: 16 bits, as mma's A operand.
template <AttendConfig C>
struct Scores {
  float s[C.row_tiles()][C.key_tiles()][4];
  uint32_t p[C.row_tiles()][C.key_tiles() / 2][4];
};

/// Weights 2^(scale s - shift), added to the rows' sums, packed.
template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void weigh(Scores<C>& x, WarpState<C, kDimTiles>& state, float scale) {
#pragma unroll
  for (int n = 0; n < C.key_tiles(); ++n) {
#pragma unroll
    for (int mi = 0; mi < C.row_tiles(); ++mi) {
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
  }
}

template <AttendConfig C, class V, bool kFp8K>
__device__ __forceinline__ void score(Scores<C>& x, const AttendArgs& args, const TileView<C>& tile, const Queries<C, kFp8K>& q, const block::Scaling& scaling) {
  if constexpr (block::form_of<V>(C.fixed_split) == block::Form::biased) {
    block::start_biased(x.s, tile.rows, tile.row0, tile.keys, 1.0f / scaling.by.hooks);
  } else {
    clear_scores(x.s);
  }
  if constexpr (can_turn_in_registers<C, V>()) {
    const VariantParams& p = args.params.variant;
    if (tile.turns && p.rope.mode == RopeMode::half_split) {
      return warp_turned_scores<C, V, true, C.key_tiles()>(x.s, q, tile.k, p, tile.turns, tile.keys);
    } else if (tile.turns) {
      return warp_turned_scores<C, V, false, C.key_tiles()>(x.s, q, tile.k, p, tile.turns, tile.keys);
    }
  }
  warp_scores<C, kFp8K, C.key_tiles()>(x.s, q, tile.k);
}

template <AttendConfig C, class V, bool kFp8K, int kDimTiles, class F>
__device__ __forceinline__ void warp_tile_step(const AttendArgs& args, const TileView<C>& tile, const Queries<C, kFp8K>& q,
                                               const block::Scaling& scaling, WarpState<C, kDimTiles>& state, F&& before_values) {
  Scores<C> x;
  score<C, V>(x, args, tile, q, scaling);
  block::warp_apply_variant<V, block::form_of<V>(C.fixed_split)>(x.s, args.params.variant, scaling.by, tile.rows, tile.row0, tile.keys, tile.cut);
  if constexpr (!block::has_weight<V>()) {
    const auto tops = state.softmax.tops(x.s);
    if (state.softmax.warp_must_raise(tops, scaling.slack)) state.softmax.raise(tops, scaling.scale, scaling.slack).apply(state.o);
  }
  weigh<C, V>(x, state, scaling.scale);
  before_values();
  warp_accumulate<C, C.key_tiles() / 2, kDimTiles>(state.o, x.p, tile.v);
}

}  // namespace kvloom::sm80
