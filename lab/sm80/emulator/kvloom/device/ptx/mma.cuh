#pragma once
#include "kvloom/base/dtype.h"
#include "simt.h"
namespace kvloom::ptx {
template <DType kType>
inline float half_of(uint32_t w, int i) {
  const auto h = uint16_t(i ? w >> 16 : w);
  return kType == DType::bf16 ? bf16_to_float(h) : f16_to_float(h);
}
template <DType kType>
inline void warp_mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct In {
    float a[8], b[4];
  } in;
  for (int i = 0; i < 8; ++i) in.a[i] = half_of<kType>(a[i / 2], i % 2);
  for (int i = 0; i < 4; ++i) in.b[i] = half_of<kType>(i < 2 ? b0 : b1, i % 2);
  const auto* all = simt::warp_share(&in, sizeof in);
  const int lane = int(threadIdx.x & 31), row = lane / 4, col = 2 * (lane % 4);
  for (int e = 0; e < 4; ++e) {
    float sum = 0.0f;
    for (int t = 0; t < 4; ++t) {
      const float* x = reinterpret_cast<const In*>(all[row * 4 + t].bytes)->a;
      const float* y = reinterpret_cast<const In*>(all[(col + e % 2) * 4 + t].bytes)->b;
      const int h = e / 2;  // a0: row, k 2t..; a1: row + 8; a2: row, k + 8; a3: row + 8, k + 8
      sum += x[2 * h] * y[0] + x[2 * h + 1] * y[1] + x[4 + 2 * h] * y[2] + x[5 + 2 * h] * y[3];
    }
    d[e] += sum;
  }
}
}  // namespace kvloom::ptx
