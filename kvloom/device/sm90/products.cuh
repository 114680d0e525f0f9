// The two products of attention on wgmma, for one warpgroup: S = Q K^T and O += P V. Both are only started here; whoever needs S, O, or the
// registers of P waits (ptx/wgmma.cuh).
#pragma once

#include "kvloom/device/ptx/ldmatrix.cuh"
#include "kvloom/device/ptx/wgmma.cuh"
#include "kvloom/device/sm90/shared.cuh"

namespace kvloom::sm90 {

/// A warpgroup's 64 rows of Q: in registers, or where they lie in shared memory.
template <AttendConfig C>
struct Queries {
  static constexpr int kSteps = C.head_dim_qk / 16;
  uint32_t held[C.q_in_registers ? kSteps : 1][4];
  Descriptor rows;

  /// Q of a pass is in shared memory. `row0`: the warpgroup's first row.
  __device__ __forceinline__ void take(uint32_t q, int row0) {
    if constexpr (C.q_in_registers) {
      const int lane = int(threadIdx.x) & 31, warp = (int(threadIdx.x) >> 5) & 3;
#pragma unroll
      for (int d = 0; d < kSteps; ++d) ptx::warp_ldmatrix_x4(held[d], q + QTile<C>::offset(row0 + warp * 16 + (lane & 15), 2 * d + (lane >> 4)));
    } else {
      rows = QTile<C>::rows(q, row0);
    }
  }
};

/// Starts s = Q K^T, or s += Q K^T if `kAdds`; `keys`: descriptor of the tile.
template <AttendConfig C, bool kAdds>
__device__ __forceinline__ void start_scores(float (&s)[C.key_tiles()][4], const Queries<C>& q, const Descriptor& keys) {
  using Mma = ptx::WarpgroupMma<C.dtype, ptx::Major::k, C.key_tiles()>;
  const Descriptor rows = q.rows.kept();
  if constexpr (kAdds) ptx::pinned(s);
  ptx::warpgroup_begin();
#pragma unroll
  for (int d = 0; d < Queries<C>::kSteps; ++d) {
    if constexpr (C.q_in_registers) {
      kAdds || d > 0 ? Mma::template registers<true>(s, q.held[d], keys.after(KTile<C>::key_step(d)))
                     : Mma::template registers<false>(s, q.held[d], keys.after(KTile<C>::key_step(d)));
    } else {
      kAdds || d > 0 ? Mma::template shared<true>(s, rows.after(QTile<C>::step(d)), keys.after(KTile<C>::key_step(d)))
                     : Mma::template shared<false>(s, rows.after(QTile<C>::step(d)), keys.after(KTile<C>::key_step(d)));
    }
  }
  ptx::warpgroup_commit();
}

/// Starts o += P V; `values`: descriptor of the tile.
template <AttendConfig C>
__device__ __forceinline__ void start_accumulate(float (&o)[C.dim_tiles()][4], uint32_t (&p)[C.key_tiles() / 2][4], const Descriptor& values) {
  using Mma = ptx::WarpgroupMma<C.dtype, ptx::Major::mn, C.dim_tiles()>;
  ptx::pinned(o);
  ptx::pinned(p);
  ptx::warpgroup_begin();
#pragma unroll
  for (int k = 0; k < C.tile_kv / 16; ++k) Mma::template registers<true>(o, p[k], values.after(VTile<C>::value_step(k)));
  ptx::warpgroup_commit();
}

}  // namespace kvloom::sm90
