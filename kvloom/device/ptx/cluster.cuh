// CTAs of a cluster (sm_90): they run at the same time and reach each other's shared memory.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

/// This CTA's number in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// By all threads of all its CTAs.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Arrives at the barrier that CTA `rank` has where this CTA has `barrier`. Orders nothing of this thread's own: it says that wgmma, whose
/// end has been waited for, is done with a tile (a release would be a fence of the whole GPU).
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier), "r"(rank)
               : "memory");
}

}  // namespace kvloom::ptx
