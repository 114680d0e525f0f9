// The states of an item's rows, from the warps' registers to where they belong: final rows to the output, partial rows to scratch.
#pragma once

#include "kvloom/device/block/finish.cuh"
#include "kvloom/device/block/softmax.cuh"
#include "kvloom/device/sm80/config.h"

namespace kvloom::sm80 {

template <AttendConfig C>
struct SharedMemory;

/// States of `warps_kv` warps that share rows, merged into the first of them through shared memory (K and V are done with). Base-2
/// maxima and plain sums: O stays unnormalised.
template <AttendConfig C>
__device__ __forceinline__ void block_merge_warps(float (&o)[C.row_tiles()][C.head_dim_vo / 8][4], block::OnlineSoftmax<C.row_tiles()>& softmax,
                                                  float scale, SharedMemory<C>& m) {
  static_assert(C.warps_rows == 1 && C.row_tiles() == 1, "warps share rows only where one warp holds them all");
  constexpr int kStride = C.head_dim_vo * 16 + 64;  // floats a warp: O fragments, then maxima and sums
  static_assert(kStride * 4 * (C.warps_kv - 1) <= int(sizeof(SharedMemory<C>::k) + sizeof(SharedMemory<C>::v)));
  float* const all = reinterpret_cast<float*>(m.k[0]);
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
  __syncthreads();
  if (warp > 0) {
    float* mine = all + (warp - 1) * kStride;
#pragma unroll
    for (int d = 0; d < C.head_dim_vo / 8; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) mine[(d * 4 + e) * 32 + lane] = o[0][d][e];
    }
    for (int h = 0; h < 2; ++h) {
      if ((lane & 3) == 0) mine[C.head_dim_vo * 16 + h * 8 + lane / 4] = softmax.max[0][h];
      if ((lane & 3) == 0) mine[C.head_dim_vo * 16 + 16 + h * 8 + lane / 4] = softmax.sum[0][h];
    }
  }
  __syncthreads();
  if (warp > 0) return;
  for (int w = 0; w < C.warps_kv - 1; ++w) {
    const float* other = all + w * kStride;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float other_max = other[C.head_dim_vo * 16 + h * 8 + lane / 4], other_sum = other[C.head_dim_vo * 16 + 16 + h * 8 + lane / 4];
      const float top = fmaxf(softmax.max[0][h], other_max), guarded = top == neg_inf() ? 0.0f : top;
      const float a = ptx::ex2((softmax.max[0][h] - guarded) * scale), b = ptx::ex2((other_max - guarded) * scale);
      softmax.max[0][h] = top;
      softmax.sum[0][h] = softmax.sum[0][h] * a + other_sum * b;
#pragma unroll
      for (int d = 0; d < C.head_dim_vo / 8; ++d) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) o[0][d][e] = o[0][d][e] * a + other[(d * 4 + e) * 32 + lane] * b;
      }
    }
  }
}

template <AttendConfig C>
__device__ __forceinline__ void block_store(const AttendArgs& args, const WorkItem& item, int kv_head,
                                            float (&o)[C.row_tiles()][C.head_dim_vo / 8][4], block::OnlineSoftmax<C.row_tiles()>& softmax,
                                            float scale, int row0, SharedMemory<C>& m) {
#pragma unroll
  for (int mi = 0; mi < C.row_tiles(); ++mi) {
#pragma unroll
    for (int h = 0; h < 2; ++h) softmax.sum[mi][h] = block::quad_sum(softmax.sum[mi][h]);
  }
  if constexpr (C.warps_kv > 1) {
    block_merge_warps<C>(o, softmax, scale, m);
    if (int(threadIdx.x) >= 32) return;
  }
  const int lane = int(threadIdx.x) & 31;
  const ScaleParams& scales = args.params.variant.scale;
  const float v_scale = scales.v_per_head ? scales.v_per_head[kv_head] : scales.v;
#pragma unroll
  for (int mi = 0; mi < C.row_tiles(); ++mi) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row0 + mi * 16 + h * 8 + lane / 4;
      if (r >= item.row_count) continue;
      const float sum = softmax.sum[mi][h];
      const float normalise = sum > 0.0f ? v_scale / sum : 0.0f;
      const float lse = sum > 0.0f ? (softmax.max[mi][h] * scale + ptx::lg2(sum)) * kLn2 : neg_inf();
      if (item.partial_row >= 0) {
        const int64_t at = int64_t(item.partial_row) + int64_t(kv_head - item.kv_head) * item.row_count + r;
        char* row = reinterpret_cast<char*>(args.scratch.partial_o + at * C.head_dim_vo);
#pragma unroll
        for (int d = 0; d < C.head_dim_vo / 8; ++d) {
          block::store_pair<DType::f32>(row, d * 8 + 2 * (lane & 3), o[mi][d][2 * h] * normalise, o[mi][d][2 * h + 1] * normalise);
        }
        if ((lane & 3) == 0) args.scratch.partial_lse[at] = lse;
      } else {
        const block::RowOutput out = block::row_output(args, m.row[r].token, m.row[r].q_head, lse, size_of(C.o_dtype));
        const float factor = normalise * out.factor;
#pragma unroll
        for (int d = 0; d < C.head_dim_vo / 8; ++d) {
          block::store_pair<C.o_dtype>(out.o, d * 8 + 2 * (lane & 3), o[mi][d][2 * h] * factor, o[mi][d][2 * h + 1] * factor);
        }
        if (out.lse && (lane & 3) == 0) *out.lse = out.lse_value;
      }
    }
  }
}

}  // namespace kvloom::sm80
