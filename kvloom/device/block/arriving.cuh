// Who arrives at a barrier for a warp.
#pragma once

#include "kvloom/device/ptx/barrier.cuh"

namespace kvloom::block {

/// Lanes that arrive for a warp that has gone through __syncwarp. Where a warp is converged that becomes a branch around nothing, so
/// compute-sanitizer's racecheck does not know of it and takes other lanes' accesses for unordered: under KVLOOM_RACECHECK every lane arrives.
#if defined(KVLOOM_RACECHECK)
inline constexpr int kArrivingLanes = 32;
#else
inline constexpr int kArrivingLanes = 1;
#endif

__device__ __forceinline__ bool lane_arrives(int lane) { return kArrivingLanes == 32 || lane == 0; }

}  // namespace kvloom::block
