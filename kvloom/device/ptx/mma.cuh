// Tensor-core products of one warp (sm_80 and up), one instruction a function. Fragment layouts: PTX ISA, "mma.m16n8k16".
#pragma once

#include "kvloom/base/dtype.h"

namespace kvloom::ptx {

/// d[4] += A[16 x 16] * B[16 x 8], fp32 accumulators. Lane l holds of d: rows l/4 and l/4 + 8, columns 2 (l % 4) and + 1.
/// Volatile so that products and the arithmetic written between them stay interleaved.
template <DType kType>
__device__ __forceinline__ void warp_mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kType == DType::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(kType == DType::f16, "mma m16n8k16 takes bf16 or f16 operands");
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace kvloom::ptx
