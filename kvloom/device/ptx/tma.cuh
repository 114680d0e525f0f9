// The tensor memory accelerator (sm_90): boxes of a tensor, as a tensor map describes it, into shared memory and out of it. By one thread; a
// barrier counts the bytes as they land. Also the fences between what threads and what the accelerator and wgmma do in shared memory.
#pragma once

#include "kvloom/base/platform.h"

namespace kvloom::ptx {

/// Arrives, and lets the phase wait for `bytes` more.
__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Barriers that were just initialised are known to the accelerator and to the cluster. By the thread that did it.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// What this thread wrote into shared memory, or has seen written there, comes before what wgmma and the accelerator do after it.
__device__ __forceinline__ void fence_shared_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A box of tensor map `map` to `shared`, here and, with kCtas > 1, at the same place in the first kCtas CTAs of the cluster; each CTA's own barrier counts.
template <int kCtas>
__device__ __forceinline__ void load_box(uint32_t shared, const void* map, uint32_t barrier, int x0, int x1, int x2, int x3, int x4) {
  if constexpr (kCtas == 1) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3,%4,%5,%6,%7}], [%2];" ::"r"(shared),
                 "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
                 : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3,%4,%5,%6,%7}], [%2], "
        "%8;" ::"r"(shared),
        "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "h"(uint16_t((1 << kCtas) - 1))
        : "memory");
  }
}

/// What is read once: the L2 cache gives its lines away before others.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// A box, under a policy of the L2 cache.
__device__ __forceinline__ void load_box(uint32_t shared, const void* map, uint32_t barrier, int x0, int x1, int x2, int x3, int x4, uint64_t policy) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8;" ::"r"(shared),
               "l"(map), "r"(barrier), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "l"(policy)
               : "memory");
}

/// What a box has on its way to the L2 cache; nobody is told. Writes of others that come later are seen there as ever.
__device__ __forceinline__ void prefetch_box(const void* map, int x0, int x1, int x2, int x3, int x4) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1,%2,%3,%4,%5}];" ::"l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
}

/// A box of tensor map `map` from `shared`; this thread's stores are a group (store_wait).
__device__ __forceinline__ void store_box(const void* map, uint32_t shared, int x0, int x1, int x2, int x3, int x4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2,%3,%4,%5,%6}], [%1];" ::"l"(map), "r"(shared), "r"(x0), "r"(x1), "r"(x2),
               "r"(x3), "r"(x4)
               : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// This thread's boxes have been read: shared memory may be written again.
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// The map will be needed soon.
__device__ __forceinline__ void prefetch_map(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

}  // namespace kvloom::ptx
