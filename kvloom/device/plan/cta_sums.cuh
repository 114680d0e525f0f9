// Sums and largest numbers of a CTA's threads.
#pragma once

#include "kvloom/device/plan/shared.h"

namespace kvloom::device_plan {

/// What a CTA's threads have in front of a thread, and altogether. T: Sum, or uint64_t.
template <class T>
struct SumsOfCta {
  T before;
  T all;
};

__device__ __forceinline__ uint64_t shfl_up(uint64_t x, int lanes) { return __shfl_up_sync(0xffffffffu, static_cast<unsigned long long>(x), lanes); }
__device__ __forceinline__ Sum shfl_up(const Sum& x, int lanes) { return {shfl_up(x.counts, lanes), int64_t(shfl_up(uint64_t(x.number), lanes))}; }
__device__ __forceinline__ uint64_t lane_of(uint64_t x, int lane) { return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(x), lane); }
__device__ __forceinline__ Sum lane_of(const Sum& x, int lane) { return {lane_of(x.counts, lane), int64_t(lane_of(uint64_t(x.number), lane))}; }
/// Sum of this lane's and those below, of the first kLanes lanes.
template <int kLanes, class T>
__device__ __forceinline__ T warp_sums(T x, int lane) {
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) {
    const T below = shfl_up(x, lanes);
    if (lane >= lanes) x = below + x;
  }
  return x;
}
/// One copy a type in the code (Sum says why). `told`: of kWarps, not being read.
template <class T>
__device__ __noinline__ SumsOfCta<T> cta_sums(T* told, T own) {
  const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;
  const T up_to = warp_sums<32>(own, lane);
  if (lane == 31) told[warp] = up_to;
  __syncthreads();
  T of_warp{};
  if (lane < int(blockDim.x) / 32) of_warp = told[lane];
  const T sums = warp_sums<kWarps>(of_warp, lane);  // each warp by itself, what saves a second barrier
  return {lane_of(T(sums - of_warp), warp) + up_to - own, lane_of(sums, kWarps - 1)};
}

__device__ __forceinline__ uint32_t warp_most(uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }
__device__ __forceinline__ uint64_t warp_most(uint64_t x) {
  const uint32_t high = warp_most(uint32_t(x >> 32)), low = warp_most(uint32_t(x >> 32) == high ? uint32_t(x) : 0u);
  return uint64_t(high) << 32 | low;
}

}  // namespace kvloom::device_plan
