// Head dims whose O no warp can hold (MLA: 576 and 512): the warps share the keys of a tile for the scores, hand each other their weights
// through shared memory, and share the dims for the accumulation. Sixteen rows, one state, seen by all warps alike.
#pragma once

#include "kvloom/device/sm80/store.cuh"
#include "kvloom/device/sm80/tile_step.cuh"

namespace kvloom::sm80 {

/// This row's largest logit of the tile, over all warps: `exchange` is [warps][rows]. Two barriers.
template <AttendConfig C>
__device__ __forceinline__ void block_row_max(const float (&s)[1][C.key_tiles()][4], float (&top)[2], float* exchange) {
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float mine = neg_inf();
#pragma unroll
    for (int n = 0; n < C.key_tiles(); ++n) mine = fmaxf(mine, fmaxf(s[0][n][2 * h], s[0][n][2 * h + 1]));
    mine = block::quad_max(mine);
    if ((lane & 3) == 0) exchange[warp * C.tile_rows + h * 8 + lane / 4] = mine;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = neg_inf();
#pragma unroll
    for (int w = 0; w < C.warps_kv; ++w) top[h] = fmaxf(top[h], exchange[w * C.tile_rows + h * 8 + lane / 4]);
  }
}

template <AttendConfig C, class V, bool kFp8K, int kDimTiles>
__device__ __forceinline__ void warp_wide_tile_step(const AttendArgs& args, const TileView<C>& tile, const Queries<C, kFp8K>& q,
                                                    const block::Scaling& scaling, WarpState<C, kDimTiles>& state, SharedMemory<C, V>& m) {
  static_assert(C.warps_rows == 1 && C.row_tiles() == 1);
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
  struct {
    float s[1][C.key_tiles()][4];
  } x;
  clear_scores(x.s);
  warp_scores<C, kFp8K, C.key_tiles()>(x.s, q, tile.k);
  block::warp_apply_variant<V, block::Form::hooked>(x.s, args.params.variant, scaling.by, tile.rows, tile.row0, tile.keys, tile.cut);
  if constexpr (!block::has_weight<V>()) {
    float top[2];
    block_row_max<C>(x.s, top, m.exchange);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& max = state.softmax.max[0][h];
      const bool raised = top[h] > max + scaling.slack;
      const float rescale = raised ? ptx::ex2((max - top[h]) * scaling.scale) : 1.0f;
      max = raised ? top[h] : max;
      state.softmax.sum[0][h] *= rescale;
      if (__any_sync(0xffffffffu, raised)) {
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) state.o[0][d][2 * h] *= rescale, state.o[0][d][2 * h + 1] *= rescale;
      }
    }
  }
  using Rows = PRows<C>;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = h * 8 + lane / 4;
    const float shift = state.softmax.shift(0, h, scaling.scale);
#pragma unroll
    for (int n = 0; n < C.key_tiles(); ++n) {
      float a = x.s[0][n][2 * h], b = x.s[0][n][2 * h + 1];
      if constexpr (!block::has_weight<V>()) {
        a = ptx::ex2(a * scaling.scale - shift), b = ptx::ex2(b * scaling.scale - shift);
        state.softmax.sum[0][h] += a + b;
      }
      const int key = tile.keys.key0 + n * 8 + 2 * (lane & 3);
      *reinterpret_cast<uint32_t*>(m.weights + Rows::offset(row, key / 8) + key % 8 * 2) = ptx::pack_16<C.pv_dtype()>(a, b);
    }
  }
  __syncthreads();
  const tile::LaneRows<Rows> lane_rows{ptx::shared_address(m.weights) + tile::LaneRows<Rows>::offset(0, lane & 15, lane >> 4)};
  uint32_t p[1][C.tile_kv / 16][4];
#pragma unroll
  for (int kk = 0; kk < C.tile_kv / 16; ++kk) ptx::warp_ldmatrix_x4(p[0][kk], lane_rows.at(0, 2 * kk));
  constexpr int kSliceBytes = kDimTiles * 8 * size_of(C.kv_dtype);
  static_assert(kSliceBytes % 128 == 0, "a warp's dims are whole lines of V");
  warp_accumulate<C, C.tile_kv / 16, kDimTiles>(state.o, p, tile.v + uint32_t(warp * kSliceBytes));
}

template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void block_store_wide(const AttendArgs& args, const ChunkPlace& place, int kv_head, float scale,
                                                 WarpState<C, kDimTiles>& state, SharedMemory<C, V>& m) {
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float mine = block::quad_sum(state.softmax.sum[0][h]);
    if ((lane & 3) == 0) m.exchange[warp * C.tile_rows + h * 8 + lane / 4] = mine;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < C.warps_kv; ++w) sum += m.exchange[w * C.tile_rows + h * 8 + lane / 4];
    state.softmax.sum[0][h] = sum;
  }
  warp_store<C, V>(args, place, kv_head, 0, warp * kDimTiles * 8, scale, state, m);
}

}  // namespace kvloom::sm80
