// Final rows on their way out through shared memory.
#pragma once

#include "kvloom/device/block/finish.cuh"
#include "kvloom/device/sm80/shared.cuh"

namespace kvloom::sm80 {

/// Final rows of 16 bits whose warp has them to itself go out through its rows of Q's memory, which it alone has read and is done with: a lane then
/// stores 16 bytes of a row where fragments have 4 of eight rows each.
template <AttendConfig C>
KVLOOM_HD constexpr bool stores_through_q() {
  return C.warps_kv == 1 && !C.fixed_split && !C.fp8() && size_of(C.o_dtype) == 2 && C.head_dim_vo <= C.head_dim_qk;
}

/// Normalised O of one row's fragments into Q's memory, and its LSE where it belongs. `h` as in the fragments.
template <AttendConfig C, class V, int kDimTiles>
__device__ __forceinline__ void stage_row(const AttendArgs& args, int r, int h, float lse, const float (&o)[kDimTiles][4], SharedMemory<C, V>& m) {
  const int quad = int(threadIdx.x) & 3;
  const block::RowOutput out = block::row_output<V>(args, m.row[r].token, m.row[r].q_head, lse, size_of(C.o_dtype));
#pragma unroll
  for (int d = 0; d < kDimTiles; ++d) {
    *reinterpret_cast<uint32_t*>(m.q + QRows<C>::offset(r, d) + quad * 4) = ptx::pack_16<C.o_dtype>(o[d][2 * h] * out.factor, o[d][2 * h + 1] * out.factor);
  }
  if (out.lse && quad == 0) *out.lse = out.lse_value;
}

/// The warp's rows, from `row0` on, from Q's memory to the output.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_store_staged(const AttendArgs& args, int row0, SharedMemory<C, V>& m) {
  constexpr int kChunks = C.head_dim_vo / 8, kCopies = 16 * C.row_tiles() * kChunks / 32;
  const AttendParams& p = args.params;
  const int lane = int(threadIdx.x) & 31;
  __syncwarp();
#pragma unroll(kCopies <= 16 ? 4 : 1)
  for (int i = 0; i < kCopies; ++i) {
    const int at = i * 32 + lane, r = row0 + at / kChunks, chunk = at % kChunks;
    if (r >= m.item.row_count) break;
    const uint4 words = *reinterpret_cast<const uint4*>(m.q + QRows<C>::offset(r, chunk));
    char* const row = static_cast<char*>(p.o) + (m.row[r].token * p.o_token + m.row[r].q_head * p.o_head) * 2;
    *reinterpret_cast<uint4*>(row + chunk * 16) = words;
  }
}

}  // namespace kvloom::sm80
