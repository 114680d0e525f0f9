#pragma once
#include "simt.h"
namespace kvloom::ptx {
template <int kRegisters>
inline void warpgroup_take_registers() {}
template <int kRegisters>
inline void warpgroup_give_registers() {}
inline void named_barrier_sync(int id, int threads) { simt::named_barrier(id, threads); }
inline bool elect_one() { return (threadIdx.x & 31) == 0; }
inline int uniform(int x) { return simt::from_lane<int>(simt::warp_share(&x, sizeof x), 0); }
inline void made_before(float, float, uint32_t) {}
}  // namespace kvloom::ptx
