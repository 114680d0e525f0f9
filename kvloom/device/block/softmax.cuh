// The online softmax of a warp's rows, in base 2. A thread owns rows lane/4 and lane/4 + 8 of each m16 tile, shared by the four lanes of a
// quad. The running maximum starts at IEEE -inf and is guarded, so a row that has seen no key yet stays exactly empty.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/device/ptx/math.cuh"

namespace kvloom::block {

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <int kRowTiles>
struct OnlineSoftmax {
  float max[kRowTiles][2];  // of the logits, before `scale`
  float sum[kRowTiles][2];  // this lane's part of the denominator; quad_sum gives the row's

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
      for (int h = 0; h < 2; ++h) max[mi][h] = neg_inf(), sum[mi][h] = 0.0f;
    }
  }

  /// Turns logits into weights 2^(scale (s - max)), updates maximum and sum, and scales the accumulators by what the maximum moved.
  template <int kKeyTiles, int kDimTiles>
  __device__ __forceinline__ void step(float (&s)[kRowTiles][kKeyTiles][4], float (&o)[kRowTiles][kDimTiles][4], float scale) {
#pragma unroll
    for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = max[mi][h];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) top = fmaxf(top, fmaxf(s[mi][n][2 * h], s[mi][n][2 * h + 1]));
        top = quad_max(top);
        const float guarded = top == neg_inf() ? 0.0f : top;
        const float shift = guarded * scale;
        const float rescale = ptx::ex2(max[mi][h] * scale - shift);
        max[mi][h] = top;
        float part = 0.0f;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            s[mi][n][e] = ptx::ex2(s[mi][n][e] * scale - shift);
            part += s[mi][n][e];
          }
        }
        sum[mi][h] = sum[mi][h] * rescale + part;
#pragma unroll
        for (int d = 0; d < kDimTiles; ++d) o[mi][d][2 * h] *= rescale, o[mi][d][2 * h + 1] *= rescale;
      }
    }
  }
};

}  // namespace kvloom::block
