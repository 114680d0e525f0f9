// What a kernel can tell of the SM that it runs on.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

__device__ __forceinline__ uint32_t sm_id() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}
/// Of the SM, since it was started.
__device__ __forceinline__ uint64_t sm_cycles() {
  uint64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
  return cycles;
}
/// The same for all SMs; steps of up to a microsecond.
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace kvloom::ptx
