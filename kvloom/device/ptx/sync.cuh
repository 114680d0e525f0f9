// Order between CTAs, and between a kernel and the one before it in the stream.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

/// Adds 1 and returns the value before: what was written before by this CTA (and fenced into this thread by a barrier) is seen by whoever
/// reads the sum.
__device__ __forceinline__ uint32_t atomic_arrive(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

__device__ __forceinline__ void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Programmatic dependent launch: until here nothing that a predecessor may have written has been read.
__device__ __forceinline__ void grid_dependency_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void grid_dependency_launch() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace kvloom::ptx
