// fixed_split where states stay as they are until a row's end: chunks are folded left to right, and nothing is normalised before. A state in
// turn is its reference point (base 2), what weights relative to it add up to, and O in proportion; partials of it have the first two in the
// place of an LSE. Whoever folds, in whichever memory, does these operations in this order: the same bits.
#pragma once

#include "kvloom/device/block/arrive.cuh"

namespace kvloom::block {

/// What two states are multiplied by where they meet.
struct Rescaled {
  float old, part;
};

/// A row's state but for O. Empty: nothing folded yet.
struct alignas(8) FoldState {
  float reference = neg_inf();
  float total = 0.0f;

  /// The state of `top` times what scores are to be multiplied by, in base 2.
  __device__ __forceinline__ static float reference_of(float top, float scale) { return top == neg_inf() ? top : __fmul_rn(top, scale); }

  /// Takes a state in, but for its O. An empty one changes nothing.
  template <bool kSum>
  __device__ __forceinline__ Rescaled take(const FoldState& part) {
    if constexpr (kSum) return {1.0f, 1.0f};
    const float top = fmaxf(reference, part.reference), guarded = top == neg_inf() ? 0.0f : top;
    const Rescaled by{ptx::ex2(reference - guarded), ptx::ex2(part.reference - guarded)};
    reference = top;
    total = __fmaf_rn(part.total, by.part, __fmul_rn(total, by.old));
    return by;
  }
  /// What O has to be multiplied by in the end.
  template <bool kSum>
  __device__ __forceinline__ float normalise() const {
    if constexpr (kSum) return 1.0f;
    return total == 0.0f ? 0.0f : 1.0f / total;  // NaN stays NaN
  }
  template <bool kSum>
  __device__ __forceinline__ float lse() const {
    if constexpr (kSum) return 0.0f;
    return total == 0.0f ? neg_inf() : (reference + ptx::lg2(total)) * kLn2;
  }
};
__device__ __forceinline__ float fold_into(float o, float part, const Rescaled& by) {
  const float old = __fmul_rn(o, by.old);
  return by.part == 0.0f ? old : __fmaf_rn(part, by.part, old);  // what is empty changes nothing, the sign of a zero neither
}

/// `dims` of a row's O that a warp folds at a time: two a lane, so that short units have something to do for every warp.
inline constexpr int kFoldDims = 64;

/// Some dims of a row of a unit, by one warp: its partials in list order, 32 of which are known at a time, then stored.
template <class V, DType kType>
__device__ __forceinline__ void warp_fold_row(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int head, int row, int dims, int d) {
  constexpr bool kSum = has_weight<V>();
  constexpr int kInFlight = 16;
  const int lane = int(threadIdx.x) & 31, d0 = d + 2 * lane;
  const bool mine = d0 < dims;
  const RowPartials partials{plan.entries.data + unit.entry_begin, unit.entry_count, head, row};
  const FoldState* const states = reinterpret_cast<const FoldState*>(args.scratch.partial_lse);
  const float* const from = args.scratch.partial_o + (mine ? d0 : d);
  float2 o = make_float2(0.0f, 0.0f);
  FoldState all;
#pragma unroll 1
  for (int32_t e0 = 0; e0 < partials.count; e0 += 32) {
    const int32_t count = min_of(32, partials.count - e0);
    // Of the lane's entry: its state, and what it and all before are multiplied by when it comes in.
    const int32_t at = partials.at(partials.entry(e0 + min_of(lane, count - 1)));
    FoldState part = states[at];
    Rescaled by{1.0f, 1.0f};
    if constexpr (!kSum) {
      float top = part.reference;
#pragma unroll
      for (int l = 1; l < 32; l *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, top, l);
        if (lane >= l) top = fmaxf(top, before);
      }
      top = fmaxf(top, all.reference);
      float before = __shfl_up_sync(0xffffffffu, top, 1);
      if (lane == 0) before = all.reference;
      const float guarded = top == neg_inf() ? 0.0f : top;
      by = {ptx::ex2(before - guarded), ptx::ex2(part.reference - guarded)};
      all.reference = __shfl_sync(0xffffffffu, top, count - 1);
    }
#pragma unroll 1
    for (int i0 = 0; i0 < count; i0 += kInFlight) {
      float2 x[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        x[i] = *reinterpret_cast<const float2*>(from + int64_t(__shfl_sync(0xffffffffu, at, min_of(i0 + i, count - 1))) * dims);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int e = min_of(i0 + i, count - 1);
        const Rescaled now{__shfl_sync(0xffffffffu, by.old, e), __shfl_sync(0xffffffffu, by.part, e)};
        const float total = __shfl_sync(0xffffffffu, part.total, e);
        if (i0 + i >= count) continue;
        if (e0 + i0 + i == 0) {  // what the others are folded into, as it is
          o = x[i], all.total = total;
        } else {
          o = make_float2(fold_into(o.x, x[i].x, now), fold_into(o.y, x[i].y, now));
          if constexpr (!kSum) all.total = __fmaf_rn(total, now.part, __fmul_rn(all.total, now.old));
        }
      }
    }
  }
  const uint32_t packed = uint32_t(unit.row_begin + row), token = args.group_size.divide(packed);
  const int32_t q_head = int32_t((unit.kv_head + head) * args.group_size.divisor + packed - token * args.group_size.divisor);
  const RowOutput out = row_output<V>(args, token, q_head, all.lse<kSum>(), size_of(kType));
  const float normalise = all.normalise<kSum>();
  if (mine) store_pair<kType>(out.o, d0, __fmul_rn(__fmul_rn(o.x, normalise), out.factor), __fmul_rn(__fmul_rn(o.y, normalise), out.factor));
  if (out.lse && d == 0 && lane == 0) *out.lse = out.lse_value;
}

/// How a team merges a unit (MergeRows); one after the other: what a lane would know of others takes registers from the loops.
struct FoldRows {
  static constexpr bool kTogether = false;
  template <class V, DType kType, class Team>
  __device__ __forceinline__ static void unit(const AttendArgs& args, const PlanView& plan, const MergeUnit& unit, int dims) {
    const int parts = (dims + kFoldDims - 1) / kFoldDims;
#pragma unroll 1
    for (int i = Team::warp(); i < unit.row_count * unit.kv_head_count * parts; i += Team::warps()) {
      const int r = i / parts;
      warp_fold_row<V, kType>(args, plan, unit, r / unit.row_count, r % unit.row_count, dims, i % parts * kFoldDims);
    }
  }
};

}  // namespace kvloom::block
