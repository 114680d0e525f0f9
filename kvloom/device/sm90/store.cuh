// The states of a pass's rows, from the warps' registers to where they belong: final rows to the output, partial rows to scratch.
#pragma once

#include "kvloom/device/block/finish.cuh"
#include "kvloom/device/sm90/attend.cuh"

namespace kvloom::sm90 {

/// All warps that compute, as team_arrive wants them.
template <AttendConfig C>
struct ComputeWarps {
  __device__ __forceinline__ static int warp() { return (int(threadIdx.x) >> 5) - 4; }
  __device__ __forceinline__ static int warps() { return 4 * C.teams(); }
  __device__ __forceinline__ static void sync() { ptx::named_barrier_sync(kComputeBarrier, 128 * C.teams()); }
};

/// Scratch row of row r of the pass.
template <AttendConfig C>
__device__ __forceinline__ int64_t partial_row(const Pass<C>& pass, int r) {
  return int64_t(pass.item.partial_row) + int64_t(pass.kv_head - pass.item.kv_head) * pass.item.row_count + pass.row_begin + r;
}

/// What a lane's two rows are at the end of a pass, O apart.
struct RowEnds {
  float factor[2];  // what O is multiplied by
};

/// LSEs of `pass` go where they belong; what O needs is known before O is. `scale`: of its logits.
template <AttendConfig C, class V>
__device__ __forceinline__ RowEnds warp_end_rows(const Team<C, V>& team, const Pass<C>& pass, float scale) {
  const AttendArgs& args = team.args;
  const ScaleParams& scales = args.params.variant.scale;
  const float v_scale = scales.v_per_head ? scales.v_per_head[pass.kv_head] : scales.v;
  RowEnds ends;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = team.row0 + h * 8 + team.lane / 4;
    const float sum = block::quad_sum(team.softmax.sum[0][h]);
    float lse = 0.0f;
    ends.factor[h] = v_scale;
    if constexpr (!block::has_weight<V>()) {
      ends.factor[h] = sum == 0.0f ? 0.0f : v_scale / sum;  // NaN stays NaN
      lse = sum == 0.0f ? neg_inf() : (team.softmax.max[0][h] * scale + ptx::lg2(sum)) * kLn2;
    }
    if (r >= pass.row_count) continue;
    if (pass.item.partial_row < 0) {
      const block::RowOutput out = block::row_output<V>(args, pass.row[r].token, pass.row[r].q_head, lse, size_of(C.o_dtype));
      ends.factor[h] *= out.factor;
      if (out.lse && team.lane % 4 == 0) *out.lse = out.lse_value;
    } else if (team.lane % 4 == 0) {
      args.scratch.partial_lse[partial_row(pass, r)] = lse;
    }
  }
  return ends;
}

/// Rows in 16 bits through shared memory, so that they are written a whole row at a time. In Q's memory a warp has what its own rows had there:
/// others may still multiply by theirs.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_store_rows(const Team<C, V>& team, const Pass<C>& pass, const RowEnds& ends) {
  using Staged = StagedO<C>;
  constexpr int kChunks = C.head_dim_vo / 8;
  const int lane = team.lane, row0 = team.row0;
  const uint32_t staged = ptx::shared_address(C.stages_o ? team.m.o : team.m.q);
  const float f0 = ends.factor[0], f1 = ends.factor[1];
#pragma unroll
  for (int d = 0; d < C.dim_tiles(); d += 2) {
    const float(&a)[4] = team.o[0][d];
    const float(&b)[4] = team.o[0][d + 1];
    ptx::warp_stmatrix_x4(staged + Staged::offset(row0 + (lane & 15), d + (lane >> 4)), ptx::pack_16<C.o_dtype>(a[0] * f0, a[1] * f0),
                          ptx::pack_16<C.o_dtype>(a[2] * f1, a[3] * f1), ptx::pack_16<C.o_dtype>(b[0] * f0, b[1] * f0),
                          ptx::pack_16<C.o_dtype>(b[2] * f1, b[3] * f1));
  }
  __syncwarp();
  char* const base = static_cast<char*>(team.args.params.o);
#pragma unroll 4
  for (int at = lane; at < 16 * kChunks; at += 32) {
    const int row = row0 + at / kChunks, chunk = at % kChunks;
    const int64_t to = pass.o_row[row];
    const uint4 x = ptx::load_shared_16(staged + Staged::offset(row, chunk));
    if (to >= 0) reinterpret_cast<uint4*>(base + to * 2)[chunk] = x;
  }
  if constexpr (!C.stages_o) ptx::fence_shared_async();  // the next Q comes here
  __syncwarp();
}

/// One row of fragments, in fp32.
template <int kDimTiles>
__device__ __forceinline__ void store_row_f32(float* to, const float (&o)[kDimTiles][4], int h, float factor) {
  const int quad = int(threadIdx.x) & 3;
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
    *reinterpret_cast<float2*>(to + d * 8 + 2 * quad) = make_float2(o[d][2 * h] * factor, o[d][2 * h + 1] * factor);
  }
}

/// The warp's rows of O.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_store(const Team<C, V>& team, const Pass<C>& pass, const RowEnds& ends) {
  const AttendArgs& args = team.args;
  const bool final = pass.item.partial_row < 0;
  if constexpr (C.o_dtype != DType::f32) {
    if (final) return warp_store_rows<C, V>(team, pass, ends);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = team.row0 + h * 8 + team.lane / 4;
    if (r >= pass.row_count) continue;
    float* const to = final ? static_cast<float*>(args.params.o) + pass.o_row[r] : args.scratch.partial_o + partial_row(pass, r) * C.head_dim_vo;
    store_row_f32(to, team.o[0], h, ends.factor[h]);
  }
}

/// All tiles of a pass for a warpgroup; O is left in the fragments.
template <AttendConfig C, class V>
__device__ __forceinline__ RowEnds team_attend(Team<C, V>& team, const Pass<C>& pass) {
  const Reach& reach = pass.reach[team.team];
  RowEnds ends;
  int32_t token = team.pass_by(pass.walk.start, reach.end);
  if (pass.walk.has(token) && token + C.tile_kv > reach.begin) {
    team.first_step(token);
    token = team.go_on(team.next_tile(token));
    team.start_values();
    ends = warp_end_rows(team, pass, team.scaling.scale);  // while the last product runs
    team.finish_values();
  } else {
    team.clear();
    ends = warp_end_rows(team, pass, team.scaling.scale);
  }
  team.pass_by(token, 0);
  return ends;
}

}  // namespace kvloom::sm90
