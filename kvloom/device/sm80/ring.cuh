// The tiles of K and V in shared memory: who copies what, and who waits for whom.
//   Warps that share rows of queries (decode): every warp copies the very keys that it works on. It waits for its own copies alone, and no
//   barrier stands between the warps from the first tile to the last.
//   Else all warps read all keys, and copy whole tiles in turn: what comes with a tile's copies costs a warp something in one tile of many. A
//   stage has a barrier for "all copies have landed" and one for "all warps are done with it", so a fast warp may be ahead of a slow one by
//   the stages that `ahead` leaves free, and exponentials of one warp meet products of another.
#pragma once

#include "kvloom/device/block/arriving.cuh"
#include "kvloom/device/ptx/barrier.cuh"
#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/sm80/shared.cuh"

namespace kvloom::sm80 {

using block::kArrivingLanes;

/// By all threads, before the barrier that makes shared memory known to all.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_init_ring(SharedMemory<C, V>& m) {
  if constexpr (C.own_keys()) return;
  if (threadIdx.x != 0) return;
  m.ring = {0, 0};
#pragma unroll
  for (int s = 0; s < C.stages; ++s) {
    ptx::barrier_init(ptx::shared_address(&m.landed[s]), 32 + kArrivingLanes);
    ptx::barrier_init(ptx::shared_address(&m.left[s]), uint32_t(C.warps() * kArrivingLanes));
  }
}

/// By all threads, when the last pass is over and before the memory is another layout's.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_end_ring(SharedMemory<C, V>& m) {
  if constexpr (C.own_keys()) return;
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int s = 0; s < C.stages; ++s) {
    ptx::barrier_end(ptx::shared_address(&m.landed[s]));
    ptx::barrier_end(ptx::shared_address(&m.left[s]));
  }
}

template <AttendConfig C, class V>
struct TileRing {
  SharedMemory<C, V>& m;
  RingPlace reading;  // of the tile that is worked on

  __device__ __forceinline__ explicit TileRing(SharedMemory<C, V>& memory) : m(memory), reading{0, 0} {
    if constexpr (!C.own_keys()) reading = m.ring;
  }

  /// Where the tile `ahead` of the one that is worked on goes.
  __device__ __forceinline__ RingPlace place(int ahead) const {
    const int stage = reading.stage + ahead;
    return stage < C.stages ? RingPlace{stage, reading.parity} : RingPlace{stage - C.stages, reading.parity ^ 1};
  }
  /// All warps are done with what stood there before.
  __device__ __forceinline__ void warp_wait_free(const RingPlace& to) const { ptx::barrier_wait(ptx::shared_address(&m.left[to.stage]), to.parity ^ 1); }
  /// This warp's copies are all the tile has, and what it wrote about the tile itself goes with them.
  __device__ __forceinline__ void warp_arrive_landed(const RingPlace& to) const {
    ptx::cp_async_arrive(ptx::shared_address(&m.landed[to.stage]));
    if (int(threadIdx.x & 31) < kArrivingLanes) ptx::barrier_arrive(ptx::shared_address(&m.landed[to.stage]));
  }
  /// True if the tile after `reading` is already there: asked some time before it is needed, since the answer takes its time.
  __device__ __forceinline__ bool warp_sees_next() const {
    if constexpr (C.own_keys()) return false;
    const RingPlace next = place(1);
    return ptx::barrier_test(ptx::shared_address(&m.landed[next.stage]), next.parity);
  }
  /// The tile `reading` is there for this warp. `seen`: what warp_sees_next said.
  __device__ __forceinline__ void warp_wait(bool seen) const {
    if constexpr (C.own_keys()) {
      ptx::cp_async_wait<C.tiles_ahead() - 1>();
      __syncwarp();
    } else {
      if (!seen) ptx::barrier_wait(ptx::shared_address(&m.landed[reading.stage]), reading.parity);
    }
  }
  /// This warp is done with it.
  __device__ __forceinline__ void warp_leave() {
    if constexpr (!C.own_keys()) {
      __syncwarp();
      if (int(threadIdx.x & 31) < kArrivingLanes) ptx::barrier_arrive(ptx::shared_address(&m.left[reading.stage]));
    }
    reading = place(1);
  }
  /// After the last tile: every tile that was copied has been left.
  __device__ __forceinline__ void end() const {
    if constexpr (C.own_keys()) {
      ptx::cp_async_wait<0>();
    } else {
      if (threadIdx.x == 0) m.ring = reading;
    }
  }
};

}  // namespace kvloom::sm80
