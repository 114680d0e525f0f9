// The end of a pass: the states of the warps that share a head's rows meet in shared memory, some rows at a time, and go where they belong:
// final rows to the output, partial rows to scratch.
#pragma once

#include "kvloom/device/block/arrive.cuh"
#include "kvloom/device/stream/attend.cuh"

namespace kvloom::stream {

/// All warps that compute, as team_arrive wants them.
template <AttendConfig C>
struct ComputeWarps {
  __device__ __forceinline__ static int warp() { return (int(threadIdx.x) >> 5) - C.kLoaderWarps; }
  __device__ __forceinline__ static int warps() { return C.kWarps; }
  __device__ __forceinline__ static void sync() {
    ptx::named_barrier_sync(kComputeBarrier, 32 * C.kWarps);
    if constexpr (block::kArrivingLanes == 32) ptx::named_barrier_sync(kComputeBarrier, 32 * C.kWarps);  // for racecheck: block/arrive.cuh
  }
};

/// Rows row0 .. row0 + 3 of this warp's state, O unnormalised, into its part of the exchange.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_hand_over(const Warp<C, V>& warp, SharedMemory<C, V>& m, int row0) {
  using Memory = SharedMemory<C, V>;
  const int lane = warp.lane, quad = lane & 3, r = lane / 4 - row0 % 8;  // of the four
  const bool upper = row0 >= 8;
  float* const o = m.o[warp.warp] + r * Memory::kExchangeStride;
  const float sum0 = block::quad_sum(warp.state.softmax.sum[0][0]), sum1 = block::quad_sum(warp.state.softmax.sum[0][1]);
  if (r < 0 || r >= Memory::kExchangeRows) return;
#pragma unroll
  for (int d = 0; d < C.head_dim_vo / 8; d += 2) {
    float x[4];  // two pairs of neighbouring dims
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = C.fp8() ? d + i % 2 : d + i / 2, e = C.fp8() ? i / 2 : i % 2;  // fp8 V: sm80/mainloop.cuh
      x[i] = upper ? warp.state.o[0][tile][2 + e] : warp.state.o[0][tile][e];
    }
    float* const to = o + d * 8 + (C.fp8() ? 4 : 2) * quad;
    *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
    *reinterpret_cast<float2*>(to + (C.fp8() ? 2 : 8)) = make_float2(x[2], x[3]);
  }
  if (quad == 0) {
    m.max[warp.warp][r] = upper ? warp.state.softmax.max[0][1] : warp.state.softmax.max[0][0];
    m.sum[warp.warp][r] = upper ? sum1 : sum0;
  }
}

template <DType kType>
__device__ __forceinline__ void store_four(char* to, const float4& x) {
  if constexpr (kType == DType::f32) {
    *reinterpret_cast<float4*>(to) = x;
  } else {
    *reinterpret_cast<uint2*>(to) = make_uint2(ptx::pack_16<kType>(x.x, x.y), ptx::pack_16<kType>(x.z, x.w));
  }
}

/// Four dims from `dim` on of row `row` of head `head`, of all warps that have some of its keys; `r`: the row's place in the exchange.
template <AttendConfig C, class V>
__device__ __forceinline__ void store_merged(const AttendArgs& args, Pass<C>& pass, SharedMemory<C, V>& m, int head, int row, int r,
                                             int dim) {
  using Memory = SharedMemory<C, V>;
  constexpr int kWarps = C.head_warps();
  const block::Scaling& scaling = pass.scaling[head];
  float top = neg_inf(), sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, m.max[w * C.heads + head][r]);
  const float guarded = top == neg_inf() ? 0.0f : top;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int warp = w * C.heads + head;
    const float weight = block::has_weight<V>() ? 1.0f : ptx::ex2((m.max[warp][r] - guarded) * scaling.scale);
    const float4 x = *reinterpret_cast<const float4*>(m.o[warp] + r * Memory::kExchangeStride + dim);
    sum += m.sum[warp][r] * weight;
    o = make_float4(o.x + x.x * weight, o.y + x.y * weight, o.z + x.z * weight, o.w + x.w * weight);
  }
  const int kv_head = pass.kv_head + head;
  const ScaleParams& scales = args.params.variant.scale;
  float factor = (scales.v_per_head ? scales.v_per_head[kv_head] : scales.v) * sm80::power_of_two(sm80::value_log2<C.step()>()), lse = 0.0f;
  if constexpr (!block::has_weight<V>()) {
    factor = sum == 0.0f ? 0.0f : factor / sum;  // NaN stays NaN
    lse = sum == 0.0f ? neg_inf() : (top * scaling.scale + ptx::lg2(sum)) * kLn2;
  }
  const auto by = [&](float f) { return make_float4(o.x * f, o.y * f, o.z * f, o.w * f); };
  if (pass.item.partial_row < 0) {
    const block::PackedRow& to = pass.row[head * C.kRows + row];
    const block::RowOutput out = block::row_output<V>(args, to.token, to.q_head, lse, size_of(C.o_dtype));
    store_four<C.o_dtype>(out.o + dim * size_of(C.o_dtype), by(factor * out.factor));
    if (out.lse && dim == 0) *out.lse = out.lse_value;
  } else {
    const int64_t at = int64_t(pass.item.partial_row) + int64_t(kv_head - pass.item.kv_head) * pass.item.row_count + row;
    *reinterpret_cast<float4*>(args.scratch.partial_o + at * C.head_dim_vo + dim) = by(factor);
    if (dim == 0) args.scratch.partial_lse[at] = lse;
  }
}

/// The same under fixed_split: folded with the chunks before, and written where those end.
template <AttendConfig C, class V>
__device__ __forceinline__ void fold_merged(const AttendArgs& args, Pass<C>& pass, SharedMemory<C, V>& m, int head, int row, int r, int dim, int folded) {
  using Memory = SharedMemory<C, V>;
  constexpr bool kSum = block::has_weight<V>();
  const auto fold = [](float4& o, const float4& x, const block::Rescaled& by) {
    o = make_float4(block::fold_into(o.x, x.x, by), block::fold_into(o.y, x.y, by), block::fold_into(o.z, x.z, by), block::fold_into(o.w, x.w, by));
  };
  const auto multiply = [](float4& o, float f) { o = make_float4(__fmul_rn(o.x, f), __fmul_rn(o.y, f), __fmul_rn(o.z, f), __fmul_rn(o.w, f)); };
  block::FoldState state;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int w = 0; w < C.head_warps(); ++w) {
    const int warp = w * C.heads + head;
    const float4 x = *reinterpret_cast<const float4*>(m.o[warp] + r * Memory::kExchangeStride + dim);
    fold(o, x, state.template take<kSum>({block::FoldState::reference_of(m.max[warp][r], pass.scaling[head].scale), m.sum[warp][r]}));
  }
  const int kv_head = pass.kv_head + head, at_row = head * C.kRows + row;
  const ScaleParams& scales = args.params.variant.scale;
  multiply(o, (scales.v_per_head ? scales.v_per_head[kv_head] : scales.v) * sm80::power_of_two(sm80::value_log2<C.step()>()));
  float4& before = *reinterpret_cast<float4*>(&m.folded.o[at_row][dim]);
  if (!pass.begins) {
    const block::FoldState chunk = state;
    const float4 x = o;
    state = m.folded.state[folded][at_row], o = before;
    fold(o, x, state.template take<kSum>(chunk));
  }
  if (!pass.written) {
    before = o;
    if (dim == 0) m.folded.state[folded ^ 1][at_row] = state;
  } else if (pass.partial_row >= 0) {
    const int64_t at = int64_t(pass.partial_row) + int64_t(kv_head - pass.item.kv_head) * pass.item.row_count + row;
    *reinterpret_cast<float4*>(args.scratch.partial_o + at * C.head_dim_vo + dim) = o;
    if (dim == 0) reinterpret_cast<block::FoldState*>(args.scratch.partial_lse)[at] = state;
  } else {
    const block::PackedRow& to = pass.row[at_row];
    const block::RowOutput out = block::row_output<V>(args, to.token, to.q_head, state.template lse<kSum>(), size_of(C.o_dtype));
    multiply(o, state.template normalise<kSum>());
    multiply(o, out.factor);
    store_four<C.o_dtype>(out.o + dim * size_of(C.o_dtype), o);
    if (out.lse && dim == 0) *out.lse = out.lse_value;
  }
}

/// All rows of a pass, by all warps that compute.
template <AttendConfig C, class V>
__device__ __forceinline__ void team_store(Warp<C, V>& warp, Pass<C>& pass, SharedMemory<C, V>& m) {
  constexpr int kRows = SharedMemory<C, V>::kExchangeRows, kFours = C.head_dim_vo / 4;
#pragma unroll 1
  for (int row0 = 0; row0 < pass.item.row_count; row0 += kRows) {
    ComputeWarps<C>::sync();  // all have read what was there before
    warp_hand_over(warp, m, row0);
    ComputeWarps<C>::sync();
#pragma unroll 1
    for (int i = warp.warp * 32 + warp.lane; i < pass.heads * kRows * kFours; i += 32 * C.kWarps) {
      const int r = i / kFours % kRows;
      if (row0 + r >= pass.item.row_count) continue;
      if constexpr (C.fixed_split) fold_merged(warp.args, pass, m, i / kFours / kRows, row0 + r, r, i % kFours * 4, warp.folded);
      else store_merged(warp.args, pass, m, i / kFours / kRows, row0 + r, r, i % kFours * 4);
    }
  }
  warp.folded ^= 1;
}

/// Arrives where the rows of all threads are stored: at the units of the pass's item, if that was its last pass; beside items of another kernel at those that
/// have waited until now.
template <AttendConfig C, class V>
__device__ __forceinline__ void team_arrive_behind(const AttendArgs& args, SharedMemory<C, V>& m, Pass<C>& pass, const RingPlace<kPasses>& at, block::Marks marks) {
  using Rows = block::MergeRows<block::MergeShape{false, C.merge_partials, C.merge_rows, C.beside}>;
  using Merge = typename sm80::Select<C.fixed_split, block::FoldRows, Rows>::Type;
  m.units.wait_full(at);
  block::Touches touches;
  if constexpr (C.beside) touches = pass.arrive;
  else if (pass.last && pass.item.partial_row >= 0) touches = {pass.item.touch_begin, pass.item.touch_count, true};
  if (touches.count == 0) return;
  PlanView plan;
  if (touches.known && pass.knows_entries) plan.entries.data = pass.entry;  // all that is asked for
  else plan = view_plan(args.plan);
  block::team_arrive<V, C.o_dtype, Merge, ComputeWarps<C>>(args, plan, touches, C.head_dim_vo, 1, &m.complete, &pass.unit, marks);
}
template <AttendConfig C, class V>
__device__ __forceinline__ void team_leave_pass(SharedMemory<C, V>& m, const Pass<C>& pass, const RingPlace<kPasses>& at, block::Marks& marks) {
  if (pass.last) marks.done();
  m.passes.warp_leave(at);
}
/// What comes behind a pass whose rows are stored.
template <AttendConfig C, class V>
__device__ __forceinline__ void team_end_pass(const AttendArgs& args, SharedMemory<C, V>& m, Pass<C>& pass, const RingPlace<kPasses>& at, block::Marks& marks) {
  marks.stored();
  team_arrive_behind<C, V>(args, m, pass, at, marks);
  team_leave_pass<C, V>(m, pass, at, marks);
}

}  // namespace kvloom::stream
