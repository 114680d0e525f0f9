// The end of an item: rows that are final go to the output, partial ones to scratch; then the item arrives at its merge units and merges
// those that it completes, in list order.
#pragma once

#include "kvloom/attn/state.h"
#include "kvloom/device/block/rows.cuh"
#include "kvloom/device/ptx/math.cuh"
#include "kvloom/device/ptx/sync.cuh"

namespace kvloom::block {

/// A finished row of one (token, head): the sink's share, then O and LSE in the caller's tensors.
struct RowOutput {
  char* o;       // [head_dim_vo]
  float* lse;    // nullptr: not wanted
  float factor;  // what O is multiplied by
  float lse_value;
};
__device__ __forceinline__ RowOutput row_output(const AttendArgs& args, int64_t token, int32_t q_head, float lse, int element_bytes) {
  const AttendParams& p = args.params;
  RowOutput out{static_cast<char*>(p.o) + (token * p.o_token + q_head * p.o_head) * element_bytes,
                p.lse ? p.lse + token * p.lse_token + q_head * p.lse_head : nullptr, 1.0f, lse};
  if (p.variant.sink && !p.bare_state) {
    const SinkWeights w = sink_weights(lse, p.variant.sink[q_head]);
    out.factor = w.factor;
    out.lse_value = w.lse;
  }
  return out;
}

template <DType kType>
__device__ __forceinline__ void store_pair(char* row, int dim, float a, float b) {
  if constexpr (kType == DType::f32) {
    *reinterpret_cast<float2*>(row + dim * 4) = make_float2(a, b);
  } else {
    *reinterpret_cast<uint32_t*>(row + dim * 2) = ptx::pack_16<kType>(a, b);
  }
}

/// One row of a unit by one warp: partials merged left to right, then stored.
template <DType kType>
__device__ __forceinline__ void warp_merge_row(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int head, int row, int dims,
                                               bool sum) {
  const int lane = int(threadIdx.x) & 31;
  const uint32_t packed = uint32_t(unit.row_begin + row);
  const uint32_t token = args.group_size.divide(packed);
  const int32_t q_head = int32_t((unit.kv_head + head) * args.group_size.divisor + packed - token * args.group_size.divisor);
  for (int d0 = 2 * lane; d0 < dims; d0 += 64) {
    float a = 0.0f, b = 0.0f, lse = neg_inf();
    for (int e = 0; e < unit.entry_count; ++e) {
      const MergeEntry entry = plan.entries[unit.entry_begin + e];
      const int64_t at = int64_t(entry.partial_row) + int64_t(head) * entry.head_stride + row;
      const float2 part = *reinterpret_cast<const float2*>(args.scratch.partial_o + at * dims + d0);
      const MergeWeights w = sum ? MergeWeights{1.0f, 1.0f, 0.0f} : merge_weights(lse, args.scratch.partial_lse[at]);
      a = a * w.a + part.x * w.b;
      b = b * w.a + part.y * w.b;
      lse = w.lse;
    }
    const RowOutput out = row_output(args, token, q_head, lse, size_of(kType));
    store_pair<kType>(out.o, d0, a * out.factor, b * out.factor);
    if (out.lse && d0 == 0) *out.lse = out.lse_value;
  }
}

/// Arrives at the item's units; the CTA merges those whose last partial this was, and leaves their counters at zero. `flag` is one
/// shared word. All threads call it, after the CTA's partials are written.
template <DType kType>
__device__ __forceinline__ void block_arrive(const AttendArgs& args, const PlanView& plan, const WorkItem& item, int dims, bool sum,
                                             uint32_t* flag) {
  for (int t = 0; t < item.touch_count; ++t) {
    const int u = plan.touches[item.touch_begin + t];
    const MergeUnit unit = plan.units[u];
    __syncthreads();  // partials of all threads before the arrival; the flag free again
    if (threadIdx.x == 0) {
      ptx::fence_acq_rel_gpu();
      const uint32_t before = ptx::atomic_arrive(args.scratch.counters + u);
      *flag = before + 1 == uint32_t(unit.arrivals);
      if (*flag) args.scratch.counters[u] = 0;
    }
    __syncthreads();
    if (!*flag) continue;
    ptx::fence_acq_rel_gpu();
    const int warp = int(threadIdx.x) >> 5, warps = int(blockDim.x) >> 5;
    for (int r = warp; r < unit.row_count * unit.kv_head_count; r += warps) {
      warp_merge_row<kType>(args, plan, unit, r / unit.row_count, r % unit.row_count, dims, sum);
    }
  }
}

}  // namespace kvloom::block
