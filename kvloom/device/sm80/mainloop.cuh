// The two products of attention on mma.sync, for one warp: scores = Q K^T from shared memory, and O += P V with P in registers.
#pragma once

#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/ptx/ldmatrix.cuh"
#include "kvloom/device/ptx/math.cuh"
#include "kvloom/device/ptx/mma.cuh"
#include "kvloom/device/sm80/config.h"
#include "kvloom/device/tile/swizzle.cuh"

namespace kvloom::sm80 {

/// s = Q[row0 .. +16 row_tiles) . K[key0 .. +8 key_tiles)^T; rows of the shared tiles at `q` and `k`.
template <AttendConfig C>
__device__ __forceinline__ void warp_scores(float (&s)[C.row_tiles()][C.key_tiles()][4], const char* q, int row0, const char* k, int key0) {
  const int lane = int(threadIdx.x) & 31;
  const tile::LaneRows<C.head_dim_qk> q_rows(ptx::shared_address(q), row0, lane & 15, lane >> 4);
  const tile::LaneRows<C.head_dim_qk> k_rows(ptx::shared_address(k), key0, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
#pragma unroll
  for (int mi = 0; mi < C.row_tiles(); ++mi) {
#pragma unroll
    for (int n = 0; n < C.key_tiles(); ++n) s[mi][n][0] = s[mi][n][1] = s[mi][n][2] = s[mi][n][3] = 0.0f;
  }
#pragma unroll
  for (int d = 0; d < C.head_dim_qk / 16; ++d) {
    uint32_t a[C.row_tiles()][4];
#pragma unroll
    for (int mi = 0; mi < C.row_tiles(); ++mi) {
      ptx::warp_ldmatrix_x4(a[mi], q_rows.at(2 * mi, d));
    }
#pragma unroll
    for (int n = 0; n < C.key_tiles(); n += 2) {
      uint32_t b[4];  // keys n*8 .. +8 in b[0..1], the next 8 in b[2..3]
      ptx::warp_ldmatrix_x4(b, k_rows.at(n, d));
#pragma unroll
      for (int mi = 0; mi < C.row_tiles(); ++mi) {
        ptx::warp_mma_m16n8k16<C.q_dtype>(s[mi][n], a[mi], b[0], b[1]);
        ptx::warp_mma_m16n8k16<C.q_dtype>(s[mi][n + 1], a[mi], b[2], b[3]);
      }
    }
  }
}

/// o += P . V[key0 .. +8 key_tiles); P are the weights in the layout of the scores, rounded to 16 bits here.
template <AttendConfig C>
__device__ __forceinline__ void warp_accumulate(float (&o)[C.row_tiles()][C.head_dim_vo / 8][4],
                                                const float (&p)[C.row_tiles()][C.key_tiles()][4], const char* v, int key0) {
  const int lane = int(threadIdx.x) & 31;
  const tile::LaneRows<C.head_dim_vo> v_rows(ptx::shared_address(v), key0, lane & 15, lane >> 4);
#pragma unroll
  for (int n = 0; n < C.key_tiles(); n += 2) {
    uint32_t a[C.row_tiles()][4];
#pragma unroll
    for (int mi = 0; mi < C.row_tiles(); ++mi) {
      a[mi][0] = ptx::pack_16<C.q_dtype>(p[mi][n][0], p[mi][n][1]);
      a[mi][1] = ptx::pack_16<C.q_dtype>(p[mi][n][2], p[mi][n][3]);
      a[mi][2] = ptx::pack_16<C.q_dtype>(p[mi][n + 1][0], p[mi][n + 1][1]);
      a[mi][3] = ptx::pack_16<C.q_dtype>(p[mi][n + 1][2], p[mi][n + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < C.head_dim_vo / 16; ++d) {
      uint32_t b[4];  // dims d*16 .. +8 in b[0..1], the next 8 in b[2..3]
      ptx::warp_ldmatrix_x4_trans(b, v_rows.at(n, d));
#pragma unroll
      for (int mi = 0; mi < C.row_tiles(); ++mi) {
        ptx::warp_mma_m16n8k16<C.q_dtype>(o[mi][2 * d], a[mi], b[0], b[1]);
        ptx::warp_mma_m16n8k16<C.q_dtype>(o[mi][2 * d + 1], a[mi], b[2], b[3]);
      }
    }
  }
}

}  // namespace kvloom::sm80
