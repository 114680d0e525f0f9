// Four 8 x 8 matrices of 16-bit elements from shared memory into the layout that mma wants. Lane l gives the address of row l % 8 of
// matrix l / 8.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

__device__ __forceinline__ void warp_ldmatrix_x4(uint32_t (&r)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address));
}

/// Each matrix transposed.
__device__ __forceinline__ void warp_ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address));
}

}  // namespace kvloom::ptx
