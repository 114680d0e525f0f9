// What is asked of the L2 cache alone: all of the device sees the same there, whenever it was fetched.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

/// The line of `at` will be needed soon.
__device__ __forceinline__ void prefetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/// A word as it is in the L2 cache; the SM's own keeps nothing of it.
__device__ __forceinline__ int32_t load_l2(const int32_t* at) {
  int32_t x;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
__device__ __forceinline__ int64_t load_l2(const int64_t* at) {
  int64_t x;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
  return x;
}

}  // namespace kvloom::ptx
