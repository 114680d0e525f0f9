// What a kernel does with a plan that its planner, on the device, could not make: every row becomes NaN.
#pragma once

#include "kvloom/device/block/finish.cuh"

namespace kvloom::block {

/// O and LSE of the plan's rows become NaN if its status is not ok: by warp `warp` of the `warps` of every CTA that come here.
template <DType kType>
__device__ __forceinline__ void warp_refuse_rows(const AttendArgs& args, int dims, int warp, int warps) {
  const auto& header = *static_cast<const PlanHeader*>(args.plan);
  if (header.status == PlanStatus::ok) return;
  const float nan = __builtin_bit_cast(float, 0x7fc00000u);
  const int lane = int(threadIdx.x) & 31;
  const AttendParams& p = args.params;
  for (int32_t token = int32_t(blockIdx.x); token < header.total_tokens; token += int32_t(gridDim.x)) {
    for (int32_t head = warp; head < args.num_qo_heads; head += warps) {
      char* const o = static_cast<char*>(p.o) + (token * p.o_token + head * p.o_head) * size_of(kType);
      for (int d = 2 * lane; d < dims; d += 64) store_pair<kType>(o, d, nan, nan);
      if (p.lse && lane == 0) p.lse[token * p.lse_token + head * p.lse_head] = nan;
    }
  }
}

/// For a CTA that has no items, as none has where the status is not ok: nobody else has to look. Not inlined: the kernels of a unit compile it
/// once, and it holds no registers of theirs.
template <DType kType>
__device__ __noinline__ void cta_without_items(const AttendArgs& args, int dims) {
  warp_refuse_rows<kType>(args, dims, int(threadIdx.x) >> 5, int(blockDim.x) >> 5);
}

}  // namespace kvloom::block
