// Asynchronous copies from global to shared memory (sm_80 and up).
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

/// A generic pointer to shared memory as the 32-bit address that PTX takes.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// 16 bytes, not kept in L1: `bytes` of them (0 or 16) are read, the others are zeros.
__device__ __forceinline__ void cp_async_16(uint32_t shared_address, const void* global, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `kPending` of this thread's groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace kvloom::ptx
