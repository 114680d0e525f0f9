#pragma once
#include "lab/sm80/emulator/kvloom/device/ptx/ldmatrix.cuh"
namespace kvloom::ptx {
inline void warp_stmatrix_x4(uint32_t a, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  const auto* all = simt::warp_share(&a, 4);
  const uint32_t r[4] = {r0, r1, r2, r3};
  const int lane = int(threadIdx.x & 31);
  for (int i = 0; i < 4; ++i) std::memcpy(simt::shared(simt::from_lane<uint32_t>(all, 8 * i + lane / 4)) + 4 * (lane % 4), &r[i], 4);
}
inline uint4 load_shared_16(uint32_t a) {
  uint4 x;
  std::memcpy(&x, simt::shared(a), 16);
  return x;
}
inline void store_shared_16(uint32_t a, const uint4& x) { std::memcpy(simt::shared(a), &x, 16); }
}  // namespace kvloom::ptx
