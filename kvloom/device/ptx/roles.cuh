// What warps with different tasks in one CTA need (sm_90): registers moved between warpgroups, barriers of some of the threads, one thread of a
// warp.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

/// This warpgroup's registers a thread, from what the kernel was launched with up or down; by all its threads.
template <int kRegisters>
__device__ __forceinline__ void warpgroup_take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void warpgroup_give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Barrier `id` (1 .. 15; 0 is __syncthreads) of `threads` threads, whole warps.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/// The same by warps that come from different places in the code: `bar.sync` is the aligned form, for which all of them must be at one instruction.
__device__ __forceinline__ void named_barrier_sync_anywhere(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// named_barrier_sync, and what it returns is true if `value` is for any of them.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool value) {
  uint32_t any;
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(uint32_t(value))
               : "memory");
  return any != 0;
}

/// True in one lane of a converged warp, always the same.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
  return elected != 0;
}

/// x, the same in all lanes, as the compiler can't know.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

/// Nothing that makes `a` and `b` is put behind what follows: a store that never happens, since both are sums of weights and not negative.
/// (Arithmetic is free to cross the waits of wgmma, and the compiler would move those up between the exponentials.)
__device__ __forceinline__ void made_before(float a, float b, uint32_t shared) {
  asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0; }" ::"f"(fminf(a, b)), "r"(shared) : "memory");
}

}  // namespace kvloom::ptx
