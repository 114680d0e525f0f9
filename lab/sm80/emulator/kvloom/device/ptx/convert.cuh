#pragma once
#include "kvloom/base/dtype.h"
#include "simt.h"
namespace kvloom::ptx {
inline uint32_t permute_bytes(uint32_t a, uint32_t selector) {
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = selector >> (4 * i) & 7;
    r |= (s < 4 ? a >> (8 * s) & 0xff : 0u) << (8 * i);
  }
  return r;
}
template <DType kType>
inline void widen_16(uint32_t x, float& low, float& high) {
  low = kType == DType::bf16 ? bf16_to_float(uint16_t(x)) : f16_to_float(uint16_t(x));
  high = kType == DType::bf16 ? bf16_to_float(uint16_t(x >> 16)) : f16_to_float(uint16_t(x >> 16));
}
template <DType kFrom, DType kTo>
inline void widen_fp8x4(uint32_t bytes, uint32_t& low, uint32_t& high) {
  uint16_t h[4];
  for (int i = 0; i < 4; ++i) {
    const auto b = uint8_t(bytes >> (8 * i));
    const float x = kFrom == DType::e4m3 ? e4m3_to_float(b) : e5m2_to_float(b);
    h[i] = kTo == DType::bf16 ? float_to_bf16(x) : float_to_f16(x);
  }
  low = h[0] | uint32_t(h[1]) << 16, high = h[2] | uint32_t(h[3]) << 16;
}
}  // namespace kvloom::ptx
