// The online softmax of a warp's rows, in base 2. A thread owns rows lane/4 and lane/4 + 8 of each m16 tile, shared by the four lanes of a
// quad. The reference point of a row is its maximum of some tile ago: it is raised only when a logit passes it by more than kSlack, so most
// tiles need no exchange between lanes and no rescaling; weights stay below 2^kSlack. Each row decides by its own keys alone, so its bits
// don't depend on its neighbours. It starts at IEEE -inf and is guarded: a row that has seen no key stays exactly empty.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/device/ptx/math.cuh"

namespace kvloom::block {

inline constexpr float kSlack = 8.0f;  // in base-2 logits

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
  float max[kRowTiles][2];  // reference point of the logits, before `scale`
  float sum[kRowTiles][2];  // this lane's part of the denominator; quad_sum gives the row's

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
      for (int h = 0; h < 2; ++h) max[mi][h] = neg_inf(), sum[mi][h] = 0.0f;
    }
  }

  /// Largest logits of this lane's rows in a tile.
  struct Tops {
    float row[kRowTiles][2];
  };
  template <int kKeyTiles>
  __device__ __forceinline__ static Tops tops(const float (&s)[kRowTiles][kKeyTiles][4]) {
    Tops t;
#pragma unroll
    for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top[4];  // chains: in a single one every maximum waits for the one before
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          const float pair = fmaxf(s[mi][n][2 * h], s[mi][n][2 * h + 1]);
          top[n % 4] = n < 4 ? pair : fmaxf(top[n % 4], pair);
        }
#pragma unroll
        for (int n = 1; n < min_of(4, kKeyTiles); ++n) top[0] = fmaxf(top[0], top[n]);
        t.row[mi][h] = top[0];
      }
    }
    return t;
  }

  /// True, for the whole warp, if some row must be raised before weights are formed.
  __device__ __forceinline__ bool warp_must_raise(const Tops& tops, float slack) const {
    bool must = false;
#pragma unroll
    for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
      for (int h = 0; h < 2; ++h) must = must || tops.row[mi][h] > max[mi][h] + slack;
    }
    return __any_sync(0xffffffffu, must);
  }

  /// What everything that was added up before has to be multiplied by.
  struct Rescale {
    float row[kRowTiles][2];
    template <int kDimTiles>
    __device__ __forceinline__ void apply(float (&o)[kRowTiles][kDimTiles][4]) const {
#pragma unroll
      for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int d = 0; d < kDimTiles; ++d) o[mi][d][2 * h] *= row[mi][h], o[mi][d][2 * h + 1] *= row[mi][h];
        }
      }
    }
  };
  /// Raises the rows that must be, to their maximum, and scales their sums. O is left to the caller.
  __device__ __forceinline__ Rescale raise(const Tops& tops, float scale, float slack) {
    Rescale by;
#pragma unroll
    for (int mi = 0; mi < kRowTiles; ++mi) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float top = quad_max(tops.row[mi][h]);
        const bool raised = top > max[mi][h] + slack;
        by.row[mi][h] = raised ? ptx::ex2((max[mi][h] - top) * scale) : 1.0f;  // from -inf: 0
        max[mi][h] = raised ? top : max[mi][h];
        sum[mi][h] *= by.row[mi][h];
      }
    }
    return by;
  }

  /// What is taken from a row's scaled logits.
  __device__ __forceinline__ float shift(int mi, int h, float scale) const {
    return max[mi][h] == neg_inf() ? 0.0f : max[mi][h] * scale;
  }
};

}  // namespace kvloom::block
