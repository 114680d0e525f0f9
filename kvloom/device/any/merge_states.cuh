// Merging attention states that callers hold, any GPU: one warp a (row, head). A state whose LSE is infinite is empty, whatever its O holds; one
// live state comes out as it is. O and LSE of the output may be those of one input.
//   merge_states<<<any, 128>>>(MergeArgs)
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/op_args.h"

namespace kvloom::any {

/// State number i of (row, head), counted over all lists.
struct StateRef {
  const void* o;
  int64_t o_at;  // elements
  DType dtype;
  const float* lse;
};

struct RowStates {
  const MergeArgs& args;
  int64_t first;
  int64_t head;
  int64_t count;
  int64_t o_step, lse_step;

  __device__ __forceinline__ RowStates(const MergeArgs& a, int64_t row, int64_t h) : args(a), first(row), head(h) {
    const StateView& in = a.in[0];
    count = a.lists == 2 ? 2 : a.fixed;
    o_step = in.o_state, lse_step = in.lse_state;
    if (a.lists == 1 && a.indptr.given()) {
      first = a.indptr[row];
      count = a.indptr[row + 1] - first;
      o_step = in.o_row, lse_step = in.lse_row;
    }
  }
  __device__ __forceinline__ StateRef operator[](int64_t i) const {
    const bool second = args.lists == 2 && i == 1;
    const StateView& in = args.in[second ? 1 : 0];
    const int64_t step = second ? 0 : i;
    return {in.o, first * in.o_row + head * in.o_head + step * o_step, in.dtype, in.lse + first * in.lse_row + head * in.lse_head + step * lse_step};
  }
};

__device__ __forceinline__ bool is_empty(float lse) { return lse == neg_inf() || lse == -neg_inf(); }

/// The largest LSE of the live states (NaN if one is NaN), how many live, and the sum of exp(lse - largest).
struct StateSum {
  float largest;
  float sum;
  int32_t live;
};

__device__ __forceinline__ StateSum warp_sum_states(const RowStates& states) {
  const int lane = int(threadIdx.x) & 31;
  float largest = neg_inf(), sum = 0.0f;
  int32_t live = 0;
  bool nan = false;
  for (int64_t i = lane; i < states.count; i += 32) {
    const float lse = *states[i].lse;
    if (is_empty(lse)) continue;
    ++live;
    nan = nan || lse != lse;
    largest = lse > largest ? lse : largest;
  }
#pragma unroll
  for (int with = 16; with > 0; with /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, largest, with);
    largest = other > largest ? other : largest;
    live += __shfl_xor_sync(0xffffffffu, live, with);
  }
  if (__any_sync(0xffffffffu, nan)) largest = __builtin_bit_cast(float, 0x7fc00000u);
  for (int64_t i = lane; i < states.count; i += 32) {
    const float lse = *states[i].lse;
    if (!is_empty(lse)) sum += expf(lse - largest);
  }
#pragma unroll
  for (int with = 16; with > 0; with /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, with);
  return {largest, sum, live};
}

__device__ __forceinline__ void warp_merge(const MergeArgs& args, int64_t row, int64_t head) {
  const int lane = int(threadIdx.x) & 31;
  const RowStates states(args, row, head);
  const StateSum s = warp_sum_states(states);
  for (int64_t d = lane; d < args.dim; d += 32) {
    float acc = 0.0f;
    for (int64_t i = 0; i < states.count; ++i) {
      const StateRef state = states[i];
      const float lse = *state.lse;
      if (is_empty(lse)) continue;
      const float weight = s.live == 1 && lse == lse ? 1.0f : expf(lse - s.largest) / s.sum;
      acc += weight * load_as_float(state.o, state.dtype, state.o_at + d);
    }
    store_from_float(args.o, args.dtype, row * args.o_row + head * args.o_head + d, acc);
  }
  __syncwarp();  // all have read the LSEs that this may write over
  if (lane == 0 && args.lse) args.lse[row * args.lse_row + head * args.lse_head] = s.live <= 1 ? s.largest : s.largest + logf(s.sum);
}

}  // namespace kvloom::any

extern "C" __global__ void __launch_bounds__(128) merge_states(const __grid_constant__ kvloom::MergeArgs args) {
  const int64_t warps = int64_t(gridDim.x) * (blockDim.x / 32), all = args.num_rows * args.heads;
  for (int64_t i = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; i < all; i += warps) {
    kvloom::any::warp_merge(args, i / args.heads, i % args.heads);
  }
}
