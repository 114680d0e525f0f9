#pragma once
#include "simt.h"
namespace kvloom::ptx {
template <int kRegisters>
inline void warpgroup_take_registers() {}
template <int kRegisters>
inline void warpgroup_give_registers() {}
inline void named_barrier_sync(int id, int threads) { simt::named_barrier(id, threads); }
inline void named_barrier_sync_anywhere(int id, int threads) { simt::named_barrier(id, threads); }
inline bool named_barrier_any(int id, int threads, bool value) {
  static bool any[8][16];  // of the CTAs of a cluster
  bool& mine = any[blockIdx.x % 8][id];
  simt::named_barrier(id, threads);
  mine = false;
  simt::named_barrier(id, threads);
  mine = mine || value;
  simt::named_barrier(id, threads);
  return mine;
}
inline bool elect_one() { return (threadIdx.x & 31) == 0; }
inline int uniform(int x) { return simt::from_lane<int>(simt::warp_share(&x, sizeof x), 0); }
inline void made_before(float, float, uint32_t) {}
}  // namespace kvloom::ptx
