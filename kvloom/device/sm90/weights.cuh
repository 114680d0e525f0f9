// Logits of a warpgroup's tile to weights: their maxima, exponentials and sums, laid out so that few instructions wait for each other.
#pragma once

#include "kvloom/device/block/softmax.cuh"
#include "kvloom/device/ptx/math.cuh"

namespace kvloom::sm90 {

/// Largest logits of the lane's rows: as eight chains in turn, which need no registers but their own.
template <int kKeyTiles>
__device__ __forceinline__ block::OnlineSoftmax<1>::Tops lane_tops(const float (&s)[kKeyTiles][4]) {
  float top[4][2];
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) top[i][n % 2] = n < 2 ? s[n][i] : fmaxf(top[i][n % 2], s[n][i]);
  }
  block::OnlineSoftmax<1>::Tops tops;
#pragma unroll
  for (int h = 0; h < 2; ++h) tops.row[0][h] = fmaxf(fmaxf(top[2 * h][0], top[2 * h + 1][0]), fmaxf(top[2 * h][1], top[2 * h + 1][1]));
  return tops;
}

/// The same where it matters, as integers, three at a time: negative logits compare the other way round, but where no reference is negative
/// those raise nothing.
template <int kKeyTiles>
__device__ __forceinline__ block::OnlineSoftmax<1>::Tops lane_tops_above_zero(const float (&s)[kKeyTiles][4]) {
  int32_t top[4][2];
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t a = __float_as_int(s[n][i]), b = __float_as_int(s[n + 1][i]);
      int32_t& t = top[i][n / 2 % 2];
      t = n < 4 ? max_of(a, b) : max_of(max_of(a, b), t);
    }
  }
  block::OnlineSoftmax<1>::Tops tops;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    tops.row[0][h] = __int_as_float(max_of(max_of(top[2 * h][0], top[2 * h + 1][0]), max_of(top[2 * h][1], top[2 * h + 1][1])));
  }
  return tops;
}

/// Logits to weights, n8 tiles [kBegin, kEnd), added to the rows' sums: as several chains, since each sum would wait for the one before.
template <int kBegin, int kEnd, int kKeyTiles>
__device__ __forceinline__ void weigh(float (&s)[kKeyTiles][4], block::OnlineSoftmax<1>& softmax, float scale) {
  const float shift[2] = {softmax.shift(0, 0, scale), softmax.shift(0, 1, scale)};
  float sum[2][2] = {};
#pragma unroll
  for (int n = kBegin; n < kEnd; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& x = s[n][i];
      x = ptx::ex2(x * scale - shift[i / 2]);
      sum[i / 2][i % 2] = n == kBegin ? x : sum[i / 2][i % 2] + x;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) softmax.sum[0][h] += sum[h][0] + sum[h][1];
}

/// Weights as fragments of the second product.
template <DType kDType, int kKeyTiles>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[kKeyTiles / 2][4], const float (&s)[kKeyTiles][4]) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) p[n / 2][n % 2 * 2 + h] = ptx::pack_16<kDType>(s[n][2 * h], s[n][2 * h + 1]);
  }
}

}  // namespace kvloom::sm90
