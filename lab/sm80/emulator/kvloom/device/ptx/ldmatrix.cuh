#pragma once
#include "simt.h"
namespace kvloom::ptx {
inline uint32_t matrix_word(const simt::Buffer* all, int i, bool trans) {
  const int lane = int(threadIdx.x & 31), a = lane / 4, b = 2 * (lane % 4);
  uint16_t w[2];
  for (int e = 0; e < 2; ++e) {
    const int row = trans ? b + e : a, column = trans ? a : b + e;
    std::memcpy(&w[e], simt::shared(simt::from_lane<uint32_t>(all, 8 * i + row)) + 2 * column, 2);
  }
  return w[0] | uint32_t(w[1]) << 16;
}
inline void warp_ldmatrix_x4(uint32_t (&r)[4], uint32_t a) {
  const auto* all = simt::warp_share(&a, 4);
  for (int i = 0; i < 4; ++i) r[i] = matrix_word(all, i, false);
}
inline void warp_ldmatrix_x2(uint32_t& r0, uint32_t& r1, uint32_t a) {
  const auto* all = simt::warp_share(&a, 4);
  r0 = matrix_word(all, 0, false), r1 = matrix_word(all, 1, false);
}
inline void warp_ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t a) {
  const auto* all = simt::warp_share(&a, 4);
  for (int i = 0; i < 4; ++i) r[i] = matrix_word(all, i, true);
}
inline void warp_ldmatrix_x2_trans(uint32_t& r0, uint32_t& r1, uint32_t a) {
  const auto* all = simt::warp_share(&a, 4);
  r0 = matrix_word(all, 0, true), r1 = matrix_word(all, 1, true);
}
inline void load_shared_8(uint32_t& r0, uint32_t& r1, uint32_t a) {
  std::memcpy(&r0, simt::shared(a), 4);
  std::memcpy(&r1, simt::shared(a + 4), 4);
}
}  // namespace kvloom::ptx
