// The states of an item's rows, from the warps' registers to where they belong: final rows to the output, partial rows to scratch, chunks of
// fixed_split to what has been folded so far.
#pragma once

#include "kvloom/device/block/arrive.cuh"
#include "kvloom/device/sm80/staged_rows.cuh"
#include "kvloom/device/sm80/tile_step.cuh"

namespace kvloom::sm80 {

/// Into how many parts of O's dims the warps share out their merge: as many as there are warps, if pairs of n8 tiles divide by it.
KVLOOM_HD constexpr int merging_warps(int warps, int dim_tiles) {
  while (dim_tiles / 2 % warps) --warps;
  return warps;
}

/// States of `warps_kv` warps that share rows, merged through shared memory (Q, K and V are done with): `out` is this warp's share of the dims,
/// from n8 tile first_tile on, of the whole. Reference points in base 2 and plain sums: O stays unnormalised. False: no share for this warp.
template <AttendConfig C, class V, int kDimTiles, int kShare>
__device__ __forceinline__ bool block_merge_warps(const WarpState<C, kDimTiles>& state, float scale, SharedMemory<C, V>& m,
                                                  WarpState<C, kShare>& out, int& first_tile) {
  static_assert(C.warps_rows == 1, "warps share rows only where one warp holds them all");
  constexpr int kRowTiles = C.row_tiles(), kMaxima = kRowTiles * kDimTiles * 128, kSums = kMaxima + C.tile_rows, kStride = C.merge_floats();
  static_assert(kStride == kSums + C.tile_rows);
  static_assert(kStride * 4 * C.warps_kv == C.merge_bytes() && C.merge_bytes() <= SharedMemory<C, V>::kTiles + int(sizeof m.turned));
  float* const all = reinterpret_cast<float*>(m.q);
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
  __syncthreads();
  float* const mine = all + warp * kStride;
#pragma unroll
  for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
    for (int d = 0; d < kDimTiles; ++d) {
      const float(&o)[4] = state.o[mi][d];
      *reinterpret_cast<float4*>(mine + ((mi * kDimTiles + d) * 32 + lane) * 4) = make_float4(o[0], o[1], o[2], o[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = mi * 16 + h * 8 + lane / 4;
      if ((lane & 3) == 0) mine[kMaxima + row] = state.softmax.max[mi][h];
      if ((lane & 3) == 0) mine[kSums + row] = state.softmax.sum[mi][h];
    }
  }
  __syncthreads();
  if (warp * kShare >= kDimTiles) return false;
  first_tile = warp * kShare;
  out.clear();
#pragma unroll
  for (int mi = 0; mi < kRowTiles; ++mi) {
    float weight[C.warps_kv][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = mi * 16 + h * 8 + lane / 4;
      float max[C.warps_kv], top = neg_inf();
#pragma unroll
      for (int w = 0; w < C.warps_kv; ++w) {
        max[w] = all[w * kStride + kMaxima + row];
        top = fmaxf(top, max[w]);
      }
      const float guarded = top == neg_inf() ? 0.0f : top;
      out.softmax.max[mi][h] = top;
#pragma unroll
      for (int w = 0; w < C.warps_kv; ++w) {
        weight[w][h] = block::has_weight<V>() ? 1.0f : ptx::ex2((max[w] - guarded) * scale);
        out.softmax.sum[mi][h] += all[w * kStride + kSums + row] * weight[w][h];
      }
    }
#pragma unroll
    for (int w = 0; w < C.warps_kv; ++w) {
#pragma unroll
      for (int d = 0; d < kShare; ++d) {
        const float4 x = *reinterpret_cast<const float4*>(all + w * kStride + ((mi * kDimTiles + first_tile + d) * 32 + lane) * 4);
        float(&o)[4] = out.o[mi][d];
        o[0] += x.x * weight[w][0], o[1] += x.y * weight[w][0], o[2] += x.z * weight[w][1], o[3] += x.w * weight[w][1];
      }
    }
  }
  return true;
}

/// Where a chunk of an item goes. Not fixed_split: an item is one chunk, `first` and `last`.
struct ChunkPlace {
  bool first;           // nothing has been folded before
  bool last;            // write it out
  int32_t partial_row;  // of the chunk's first row and the item's first head; -1: final
};

/// Normalised O of one row's fragments, folded into the chunks before it and written where it belongs. `h` as in the fragments.
template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void store_row(const AttendArgs& args, const ChunkPlace& place, int kv_head, int r, int h, int dim0, float lse,
                                          float (&o)[kDimTiles][4], SharedMemory<C, V>& m) {
  const int quad = int(threadIdx.x) & 3;
  // 16 dims at a time: this lane's four of them, and where they stand. fp8 V: consecutive (see mainloop.cuh); else two and two.
  const auto dim_of = [&](int d) { return dim0 + d * 8 + (C.fp8() ? 4 : 2) * quad; };
  constexpr int kSecond = C.fp8() ? 2 : 8;
  if constexpr (C.fixed_split) {
    float* const folded = m.fold_o + r * C.head_dim_vo;
    float* const folded_lse = m.fold_lse + (int(threadIdx.x) >> 5) % C.warps_kv * C.tile_rows + r;
    block::FoldWeights w{1.0f, 1.0f};
    if (!place.first) {
      float all = *folded_lse;
      if constexpr (!block::has_weight<V>()) w = block::fold_lse(all, lse);
      lse = block::has_weight<V>() ? lse : all;
    }
    __syncwarp(0xfu << (int(threadIdx.x) & 28));  // the quad's lanes have all read
    if (quad == 0) *folded_lse = lse;
#pragma unroll
    for (int d = 0; d < kDimTiles; d += 2) {
      float* at[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) at[i] = folded + dim_of(d) + (i / 2) * kSecond + i % 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = C.fp8() ? o[d + i % 2][2 * h + i / 2] : o[d + i / 2][2 * h + i % 2];
        if (!place.first) x = block::has_weight<V>() ? *at[i] + x : block::fold(*at[i], x, w);
        *at[i] = x;
      }
    }
  }
  if (!place.last) return;
  const bool final = place.partial_row < 0;
  const int64_t at = int64_t(place.partial_row) + int64_t(kv_head - m.item.kv_head) * m.item.row_count + r;
  block::RowOutput out{reinterpret_cast<char*>(args.scratch.partial_o + at * C.head_dim_vo), args.scratch.partial_lse + at, 1.0f, lse};
  if (final) out = block::row_output<V>(args, m.row[r].token, m.row[r].q_head, lse, size_of(C.o_dtype));
#pragma unroll
  for (int d = 0; d < kDimTiles; d += 2) {
    const float a = o[d][2 * h], b = o[d][2 * h + 1], c = o[d + 1][2 * h], e = o[d + 1][2 * h + 1];
    const float first[2] = {a, C.fp8() ? c : b}, second[2] = {C.fp8() ? b : c, e};
    if (final) {
      block::store_pair<C.o_dtype>(out.o, dim_of(d), first[0] * out.factor, first[1] * out.factor);
      block::store_pair<C.o_dtype>(out.o, dim_of(d) + kSecond, second[0] * out.factor, second[1] * out.factor);
    } else {
      block::store_pair<DType::f32>(out.o, dim_of(d), first[0], first[1]);
      block::store_pair<DType::f32>(out.o, dim_of(d) + kSecond, second[0], second[1]);
    }
  }
  if (out.lse && quad == 0 && dim0 == 0) *out.lse = out.lse_value;
}

/// The warp's rows, which no other warp has (dims from dim0 on), with sums complete over the quad.
template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void warp_store(const AttendArgs& args, const ChunkPlace& place, int kv_head, int row0, int dim0, float scale,
                                           WarpState<C, kDimTiles>& state, SharedMemory<C, V>& m) {
  const int lane = int(threadIdx.x) & 31;
  const ScaleParams& scales = args.params.variant.scale;
  const float v_scale = (scales.v_per_head ? scales.v_per_head[kv_head] : scales.v) * power_of_two(value_log2<C>());
#pragma unroll
  for (int mi = 0; mi < C.row_tiles(); ++mi) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row0 + mi * 16 + h * 8 + lane / 4;
      const float sum = state.softmax.sum[mi][h];
      float normalise = v_scale, lse = 0.0f;
      if constexpr (!block::has_weight<V>()) {
        normalise = sum == 0.0f ? 0.0f : v_scale / sum;  // NaN stays NaN
        lse = sum == 0.0f ? neg_inf() : (state.softmax.max[mi][h] * scale + ptx::lg2(sum)) * kLn2;
      }
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) state.o[mi][d][2 * h] *= normalise, state.o[mi][d][2 * h + 1] *= normalise;
      if (r >= m.item.row_count) continue;
      if constexpr (stores_through_q<C>()) {
        if (place.partial_row < 0) {
          stage_row<C, V>(args, r, h, lse, state.o[mi], m);
          continue;
        }
      }
      store_row<C, V>(args, place, kv_head, r, h, dim0, lse, state.o[mi], m);
    }
  }
  if constexpr (stores_through_q<C>()) {
    if (place.partial_row < 0) warp_store_staged<C, V>(args, row0, m);
  }
}

template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void block_store(const AttendArgs& args, const ChunkPlace& place, int kv_head, int row0, float scale,
                                            WarpState<C, kDimTiles>& state, SharedMemory<C, V>& m) {
#pragma unroll
  for (int mi = 0; mi < C.row_tiles(); ++mi) {
#pragma unroll
    for (int h = 0; h < 2; ++h) state.softmax.sum[mi][h] = block::quad_sum(state.softmax.sum[mi][h]);
  }
  if constexpr (C.warps_kv > 1) {
    constexpr int kShare = kDimTiles / merging_warps(C.warps_kv, kDimTiles);
    WarpState<C, kShare> whole;
    int first_tile = 0;
    if (block_merge_warps<C, V>(state, scale, m, whole, first_tile)) {
      warp_store<C, V>(args, place, kv_head, row0, first_tile * 8, scale, whole, m);
    }
  } else {
    warp_store<C, V>(args, place, kv_head, row0, 0, scale, state, m);
  }
}

}  // namespace kvloom::sm80
