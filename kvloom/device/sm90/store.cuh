// The states of a pass's rows, from the warps' registers to where they belong: final rows to the output, partial rows to scratch.
#pragma once

#include "kvloom/device/block/arrive.cuh"
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
  const AttendParams& params = args.params;
  const ScaleParams& scales = params.variant.scale;
  const float v_scale = scales.v_per_head ? scales.v_per_head[pass.kv_head] : scales.v;
  const int row0 = team.row0 + team.lane / 4, quad = team.lane % 4;
  const bool final = pass.item.partial_row < 0;
  RowEnds ends{{v_scale, v_scale}};
  float lse[2] = {};
  if constexpr (!block::has_weight<V>()) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = block::quad_sum(team.softmax.sum[0][h]);  // at least 1 where there is a key
      ends.factor[h] = sum == 0.0f ? 0.0f : v_scale * ptx::reciprocal(sum);  // NaN stays NaN
      lse[h] = sum == 0.0f ? neg_inf() : (team.softmax.max[0][h] * scale + ptx::lg2(sum)) * kLn2;
    }
  }
  if (final && !params.bare_state && (block::has_finish<V>() || params.variant.sink)) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const RowFinish w = block::finish_row<V>(params.variant, lse[h], pass.row[row0 + h * 8].q_head);
      ends.factor[h] *= w.factor;
      lse[h] = w.lse;
    }
  }
  // A lane of each quad writes that of a row.
  const int r = row0 + quad * 8;
  if (quad < 2 && r < pass.row_count && (!final || params.lse)) {
    const block::PackedRow& row = pass.row[r];
    float* const to = final ? params.lse + row.token * params.lse_token + row.q_head * params.lse_head : args.scratch.partial_lse + partial_row(pass, r);
    *to = quad == 0 ? lse[0] : lse[1];
  }
  return ends;
}

/// Rows in 16 bits through shared memory: out by boxes where they are whole tokens that follow each other, else a whole row at a time. In Q's
/// memory a warp has what its own rows had there: others may still multiply by theirs.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_store_rows(const Team<C, V>& team, const Pass<C>& pass, const RowEnds& ends) {
  using Staged = StagedO<C>;
  constexpr int kChunks = C.head_dim_vo / 8;
  const int lane = team.lane, row0 = team.row0;
  const uint32_t staged = ptx::shared_address(C.stages_o ? team.m.o : team.m.q);
  const float f0 = ends.factor[0], f1 = ends.factor[1];
  if constexpr (C.stages_o) {
    ptx::store_wait();  // of the pass before
    __syncwarp();
  } else if constexpr (C.q_in_registers) {
    __syncwarp();
  } else {
    ptx::named_barrier_sync(kTeamBarrier + team.team, 128);  // all of the warpgroup have multiplied by their Q
  }
#pragma unroll
  for (int d = 0; d < C.dim_tiles(); d += 2) {
    const float(&a)[4] = team.o[0][d];
    const float(&b)[4] = team.o[0][d + 1];
    ptx::warp_stmatrix_x4(staged + Staged::offset(row0 + (lane & 15), d + (lane >> 4)), ptx::pack_16<C.o_dtype>(a[0] * f0, a[1] * f0),
                          ptx::pack_16<C.o_dtype>(a[2] * f1, a[3] * f1), ptx::pack_16<C.o_dtype>(b[0] * f0, b[1] * f0),
                          ptx::pack_16<C.o_dtype>(b[2] * f1, b[3] * f1));
  }
  if constexpr (C.stages_o || C.q_in_registers) {
    const block::PackedRow& first = pass.row[row0];
    if (team.boxes.output_tokens > 0 && pass.group.row_list < 0 && row0 + kOutputBoxRows <= pass.row_count &&
        first.q_head % int(team.args.group_size.divisor) == 0) {
      ptx::fence_shared_async();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int dim = 0; dim < C.head_dim_vo; dim += Staged::kBlock) {
          ptx::store_box(&team.boxes.o, staged + Staged::offset(row0, dim / 8), dim, first.q_head, first.token, 0, 0);
        }
        ptx::store_commit();
      }
      return;
    }
  }
  __syncwarp();
  char* const base = static_cast<char*>(team.args.params.o);
#pragma unroll 4
  for (int at = lane; at < 16 * kChunks; at += 32) {
    const int row = row0 + at / kChunks, chunk = at % kChunks;
    const int64_t to = pass.o_row[row];
    const uint4 x = ptx::load_shared_16(staged + Staged::offset(row, chunk));
    if (row < pass.row_count) reinterpret_cast<uint4*>(base + to * 2)[chunk] = x;
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

/// A pass for a warpgroup, and beside its last product the queries of the pass at `next`.
template <AttendConfig C, class V>
__device__ __forceinline__ void team_attend(Team<C, V>& team, const Pass<C>& pass, const RingPlace<kPasses>& next, block::Marks& marks) {
  const Reach& reach = pass.reach[team.team];
  if constexpr (block::kMarks) {
    if (pass.walk.has(pass.walk.start)) team.wait_keys();
    marks.fed();
  }
  int32_t token = team.skip_tiles(pass.walk.start, reach.end);
  RowEnds ends;
  if (pass.walk.has(token) && token + C.tile_kv > reach.begin) {
    team.first_step(token);
    team.leave_after_output();
    token = team.go_on(team.next_tile(token));
    team.start_values();
    if constexpr (C.q_in_registers) team.take_queries(next);
    ends = warp_end_rows(team, pass, team.scaling.scale);
    team.finish_values();
  } else {
    team.leave_after_output();
    team.clear();
    if constexpr (C.q_in_registers) team.take_queries(next);
    ends = warp_end_rows(team, pass, team.scaling.scale);
  }
  team.skip_tiles(token, 0);
  marks.attended();
  warp_store(team, pass, ends);
  marks.stored();
  if constexpr (!C.q_in_registers) team.leave_queries();
}

}  // namespace kvloom::sm90
