// Barriers in shared memory (mbarrier, sm_80 and up): threads arrive and go on; whoever waits, waits for a phase to complete.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

/// A phase is complete after `count` arrivals. By one thread, before a barrier that all users pass.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Before its memory is used for anything else, another barrier too. By one thread, when nobody uses it any more.
__device__ __forceinline__ void barrier_end(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
/// Arrives once all of this thread's cp.async so far have landed.
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
/// True if the phase of this parity (0 for the first) is complete. A barrier nobody has arrived at is past parity 1.
__device__ __forceinline__ bool barrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done != 0;
}
/// Waits until it is.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  uint32_t done = 0;
  while (!done) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  }
#else
  while (!barrier_test(barrier, parity)) {
  }
#endif
}

}  // namespace kvloom::ptx
