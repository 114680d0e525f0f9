// Two or four 8 x 8 matrices of 16-bit elements from shared memory into the layout that mma wants. Lane l gives the address of row l % 8
// of matrix l / 8 (x2: lanes 16 and up are not asked). Volatile: a load may not leave the barriers that it stands between.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

__device__ __forceinline__ void warp_ldmatrix_x4(uint32_t (&r)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address));
}

__device__ __forceinline__ void warp_ldmatrix_x2(uint32_t& r0, uint32_t& r1, uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(shared_address));
}

/// Each matrix transposed.
__device__ __forceinline__ void warp_ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address));
}

__device__ __forceinline__ void warp_ldmatrix_x2_trans(uint32_t& r0, uint32_t& r1, uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(shared_address));
}

/// Four 8 x 8 matrices to shared memory (sm_90), laid out over the lanes as warp_ldmatrix_x4 has them.
__device__ __forceinline__ void warp_stmatrix_x4(uint32_t shared_address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

/// Eight bytes of shared memory.
__device__ __forceinline__ void load_shared_8(uint32_t& r0, uint32_t& r1, uint32_t shared_address) {
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(shared_address));
}

/// Sixteen.
__device__ __forceinline__ uint4 load_shared_16(uint32_t shared_address) {
  uint4 r;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(shared_address) : "memory");
  return r;
}
__device__ __forceinline__ void store_shared_16(uint32_t shared_address, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(shared_address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

}  // namespace kvloom::ptx
