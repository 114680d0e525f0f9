// The end of an item: rows that are final go to the output, partial ones to scratch; then the item arrives at its merge units and merges
// those that it completes, in list order.
#pragma once

#include "kvloom/attn/state.h"
#include "kvloom/contract/attend_args.h"
#include "kvloom/device/block/variant.cuh"
#include "kvloom/device/ptx/math.cuh"
#include "kvloom/device/ptx/sync.cuh"

namespace kvloom::block {

/// A finished row of one (token, head): the sink's share, or what the variant's finish makes of it, then O and LSE in the caller's tensors.
struct RowOutput {
  char* o;       // [head_dim_vo]
  float* lse;    // nullptr: not wanted
  float factor;  // what O is multiplied by
  float lse_value;
};
template <class V>
__device__ __forceinline__ RowOutput row_output(const AttendArgs& args, int64_t token, int32_t q_head, float lse, int element_bytes) {
  const AttendParams& p = args.params;
  RowOutput out{static_cast<char*>(p.o) + (token * p.o_token + q_head * p.o_head) * element_bytes,
                p.lse ? p.lse + token * p.lse_token + q_head * p.lse_head : nullptr, 1.0f, lse};
  if (p.variant.sink && !p.bare_state) {
    const RowFinish w = sink_weights(lse, p.variant.sink[q_head]);
    out.factor = w.factor;
    out.lse_value = w.lse;
  }
  if constexpr (has_finish<V>()) {
    if (!p.bare_state) {
      const RowFinish w = V::finish(lse, q_head, p.variant);
      out.factor = w.factor;
      out.lse_value = w.lse;
    }
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

/// a := a merged with b, a first. The one place where states are put together in turn: chunks of fixed_split in registers and partials in
/// scratch go through the same roundings. An empty b changes nothing.
struct FoldWeights {
  float a;
  float b;
};
__device__ __forceinline__ FoldWeights fold_lse(float& lse, float lse_b) {
  const MergeWeights w = merge_weights(lse, lse_b);
  lse = w.lse;
  return {w.a, w.b};
}
__device__ __forceinline__ float fold(float a, float b, const FoldWeights& w) { return w.b == 0.0f ? a : __fmaf_rn(b, w.b, __fmul_rn(a, w.a)); }

/// Partials of one row: where entry e lies.
struct RowPartials {
  const MergeEntry* entries;
  int32_t count;
  int32_t head;
  int32_t row;

  __device__ __forceinline__ int64_t at(int32_t e) const {
    const MergeEntry entry = entries[e];
    return int64_t(entry.partial_row) + int64_t(head) * entry.head_stride + row;
  }
};

/// Four dims of a row, d0 .. d0 + 3, merged by one warp; all lanes call it, lanes past `dims` do no loads. How the weights come about:
/// `kSum`: all are 1. In turn (fixed_split): the left fold of chunks. Else 32 partials at a time, their weights made by the lanes.
template <bool kSum, bool kInTurn>
__device__ __forceinline__ float4 warp_merge_dims(const Scratch& scratch, const RowPartials& row, int dims, int d0, float& lse) {
  constexpr int kInFlight = 16;  // loads: a merge is a wait for L2, over and over
  const int lane = int(threadIdx.x) & 31;
  float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float top = neg_inf(), total = 0.0f;
  lse = kSum ? 0.0f : neg_inf();
  for (int32_t e0 = 0; e0 < row.count; e0 += 32) {
    const int32_t n = min_of(32, row.count - e0);
    const int64_t mine = lane < n ? row.at(e0 + lane) : 0;
    float part_lse = neg_inf();
    if (!kSum && lane < n) part_lse = scratch.partial_lse[mine];
    float weight = 1.0f;
    if constexpr (!kSum && !kInTurn) {
      float block_top = part_lse;
#pragma unroll
      for (int i = 16; i > 0; i /= 2) block_top = fmaxf(block_top, __shfl_xor_sync(0xffffffffu, block_top, i));
      const float new_top = fmaxf(top, block_top), guarded = new_top == neg_inf() ? 0.0f : new_top;
      weight = ptx::ex2((part_lse - guarded) * kLog2e);
      float part_total = weight;
#pragma unroll
      for (int i = 16; i > 0; i /= 2) part_total += __shfl_xor_sync(0xffffffffu, part_total, i);
      const float old = ptx::ex2((top - guarded) * kLog2e);
      acc = make_float4(acc.x * old, acc.y * old, acc.z * old, acc.w * old);
      total = total * old + part_total;
      top = new_top;
    }
    for (int32_t b = 0; b < n; b += kInFlight) {
      float4 part[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int64_t at = __shfl_sync(0xffffffffu, mine, (b + i) & 31);
        part[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (b + i < n && d0 < dims) part[i] = *reinterpret_cast<const float4*>(scratch.partial_o + at * dims + d0);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (b + i >= n) break;
        if constexpr (kInTurn && !kSum) {
          const float next = __shfl_sync(0xffffffffu, part_lse, b + i);
          if (e0 + b + i == 0) {
            acc = part[i];
            lse = next;
            continue;
          }
          const FoldWeights w = fold_lse(lse, next);
          acc = make_float4(fold(acc.x, part[i].x, w), fold(acc.y, part[i].y, w), fold(acc.z, part[i].z, w), fold(acc.w, part[i].w, w));
        } else {
          const float w = kSum ? 1.0f : __shfl_sync(0xffffffffu, weight, b + i);
          if (w == 0.0f) continue;  // an empty partial
          acc.x += part[i].x * w, acc.y += part[i].y * w, acc.z += part[i].z * w, acc.w += part[i].w * w;
        }
      }
    }
  }
  if constexpr (!kSum && !kInTurn) {
    const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
    acc = make_float4(acc.x * inverse, acc.y * inverse, acc.z * inverse, acc.w * inverse);
    lse = total == 0.0f ? neg_inf() : top + ptx::lg2(total) * kLn2;
  }
  return acc;
}

/// One row of a unit by one warp: partials merged in list order, then stored.
template <class V, DType kType, bool kInTurn>
__device__ __forceinline__ void warp_merge_row(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int head, int row, int dims) {
  const int lane = int(threadIdx.x) & 31;
  const uint32_t packed = uint32_t(unit.row_begin + row);
  const uint32_t token = args.group_size.divide(packed);
  const int32_t q_head = int32_t((unit.kv_head + head) * args.group_size.divisor + packed - token * args.group_size.divisor);
  const RowPartials partials{plan.entries.data + unit.entry_begin, unit.entry_count, head, row};
  for (int d = 0; d < dims; d += 128) {
    const int d0 = d + 4 * lane;
    float lse;
    const float4 o = warp_merge_dims<has_weight<V>(), kInTurn>(args.scratch, partials, dims, d0, lse);
    const RowOutput out = row_output<V>(args, token, q_head, lse, size_of(kType));
    if (d0 < dims) {
      store_pair<kType>(out.o, d0, o.x * out.factor, o.y * out.factor);
      store_pair<kType>(out.o, d0 + 2, o.z * out.factor, o.w * out.factor);
    }
    if (out.lse && d == 0 && lane == 0) *out.lse = out.lse_value;
  }
}

/// Arrives at the item's units; the CTA merges those whose last partial this was, and leaves their counters at zero. `complete` is one
/// shared word. All threads call it, after the CTA's partials are written. Not inlined: the kernels of a unit compile it once.
template <class V, DType kType, bool kInTurn>
__device__ __noinline__ void block_arrive(const AttendArgs& args, const PlanView& plan, const WorkItem& item, int dims, uint32_t* complete) {
  const int warp = int(threadIdx.x) >> 5, warps = int(blockDim.x) >> 5, lane = int(threadIdx.x) & 31;
  for (int t0 = 0; t0 < item.touch_count; t0 += 32) {
    __syncthreads();  // partials of all threads before the arrival; `complete` free again
    if (warp == 0) {
      bool last = false;
      if (t0 + lane < item.touch_count) {
        ptx::fence_acq_rel_gpu();
        const int32_t u = plan.touches[item.touch_begin + t0 + lane];
        last = ptx::atomic_arrive(args.scratch.counters + u) + 1 == uint32_t(plan.units[u].arrivals);
        if (last) args.scratch.counters[u] = 0;
      }
      const uint32_t all = __ballot_sync(0xffffffffu, last);
      if (lane == 0) *complete = all;
    }
    __syncthreads();
    for (uint32_t left = *complete; left != 0; left &= left - 1) {
      ptx::fence_acq_rel_gpu();
      const MergeUnit unit = plan.units[plan.touches[item.touch_begin + t0 + __ffs(int(left)) - 1]];
      for (int r = warp; r < unit.row_count * unit.kv_head_count; r += warps) {
        warp_merge_row<V, kType, kInTurn>(args, plan, unit, r / unit.row_count, r % unit.row_count, dims);
      }
    }
  }
}

}  // namespace kvloom::block
