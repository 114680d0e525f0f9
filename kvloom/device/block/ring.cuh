// Places in shared memory that are filled by some warps and used by others, in turn: a barrier a place for "it is there", and one for "all are
// done with it".
#pragma once

#include "kvloom/device/block/arriving.cuh"
#include "kvloom/device/ptx/cp_async.cuh"

namespace kvloom::block {

/// A place in a ring, and how often the ring has gone round, as parity.
template <int kPlaces>
struct RingPlace {
  int at = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++at == kPlaces) at = 0, parity ^= 1;
  }
};

/// Shared memory that is left to another kernel's items.
template <int kBytes>
struct Apart {
  char bytes[kBytes];
};
template <>
struct Apart<0> {};

/// Somebody fills, others use what is there and leave it.
template <int kPlaces>
struct Ring {
  uint64_t full[kPlaces], left[kPlaces];

  /// `users`: warps, of any CTA. `fillers`: arrivals.
  __device__ __forceinline__ void init(uint32_t fillers, uint32_t users) { init_some<kPlaces>(0, fillers, users); }
  /// Of kSome places from `first` on.
  template <int kSome>
  __device__ __forceinline__ void init_some(int first, uint32_t fillers, uint32_t users) {
#pragma unroll
    for (int i = 0; i < kSome; ++i) {
      ptx::barrier_init(ptx::shared_address(&full[first + i]), fillers);
      ptx::barrier_init(ptx::shared_address(&left[first + i]), users * kArrivingLanes);
    }
  }
  __device__ __forceinline__ void wait_full(const RingPlace<kPlaces>& p) { ptx::barrier_wait(ptx::shared_address(&full[p.at]), p.parity); }
  __device__ __forceinline__ bool is_full(const RingPlace<kPlaces>& p) { return ptx::barrier_test(ptx::shared_address(&full[p.at]), p.parity); }
  /// This warp is done with a place.
  __device__ __forceinline__ void warp_leave(const RingPlace<kPlaces>& p) {
    __syncwarp();
    if (lane_arrives(int(threadIdx.x) & 31)) ptx::barrier_arrive(ptx::shared_address(&left[p.at]));
  }
  __device__ __forceinline__ bool is_left(const RingPlace<kPlaces>& p) { return ptx::barrier_test(ptx::shared_address(&left[p.at]), p.parity ^ 1); }
  __device__ __forceinline__ void wait_left(const RingPlace<kPlaces>& p) { ptx::barrier_wait(ptx::shared_address(&left[p.at]), p.parity ^ 1); }
};

/// A warp's way through passes, from `at` on to the next end: what `loader` fetches of each, which is left then. `at` comes back as the place of the end.
template <class Memory, int kPlaces, class Loader>
__device__ __forceinline__ void each_pass(Memory& m, RingPlace<kPlaces>& at, Loader& loader) {
#pragma unroll 1
  for (;; at.next()) {
    loader.known().wait_full(at);
    const auto& pass = m.pass[at.at];
    if (pass.end) return;
    loader.warp_fetch_pass(pass);
    m.passes.warp_leave(at);
  }
}

}  // namespace kvloom::block
