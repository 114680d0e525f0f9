// The two products of attention on mma.sync, for one warp: scores = Q K^T from shared memory, and O += P V with P in registers. Operands are
// asked for C.loads_ahead loads before the products that need them: a warp issues in order and would stand still for ldmatrix otherwise.
//
// fp8 keys and values become 16 bits between ldmatrix and mma. A lane gets bytes, so the order of things shifts: of K it gets dims 4 t .. + 3
// of a key, and makes pairs (4 t, 4 t + 2) and (4 t + 1, 4 t + 3) of them, where mma wants 2 t, + 1 and 2 t + 8, + 9 (t = lane % 4): the sum over
// dims doesn't care if Q has the same order (arrange_queries). Converted instead (C.convert_fp8), they make pairs (4 t, 4 t + 1) and (4 t + 2,
// 4 t + 3), one instruction each; dims 4 t .. of Q then stand where mma wants 2 t .. (stream/queries.cuh). Of V it gets
// dims 2 n and 2 n + 1 of two keys: even dims go to one tile of O, odd ones to the next, and only the store knows (store_dims).
#pragma once

#include "kvloom/device/ptx/convert.cuh"
#include "kvloom/device/ptx/cp_async.cuh"
#include "kvloom/device/ptx/ldmatrix.cuh"
#include "kvloom/device/ptx/math.cuh"
#include "kvloom/device/ptx/mma.cuh"
#include "kvloom/device/sm80/shared.cuh"
#include "kvloom/device/tile/fp8_bits.cuh"

namespace kvloom::sm80 {

/// Q is multiplied by 2^60 where fp8 keys are placed in bf16, which makes them 2^-120 (e4m3) of what they are: products stay far from the
/// smallest fp32 numbers.
template <AttendConfig C>
KVLOOM_HD constexpr int query_log2() { return C.fp8() && C.qk_dtype() == DType::bf16 ? 60 : 0; }
/// Scores are 2^-this of q.k if keys are placed.
template <AttendConfig C>
KVLOOM_HD constexpr int score_log2() {
  if constexpr (C.fp8() && !C.convert_fp8) return tile::placed_fp8_log2<C.kv_dtype, C.q_dtype>() - query_log2<C>();
  return 0;
}
/// O is 2^-this of what it should be.
template <AttendConfig C>
KVLOOM_HD constexpr int value_log2() {
  if constexpr (C.fp8() && C.place_fp8_values && !C.convert_fp8) return tile::placed_fp8_log2<C.kv_dtype, DType::f16>();
  return 0;
}
KVLOOM_HD constexpr float power_of_two(int log2) { return log2 >= 0 ? float(uint64_t(1) << log2) : 1.0f / float(uint64_t(1) << -log2); }

/// A warp's rows of Q as operands of mma; `kFp8` of the keys that they will meet.
template <AttendConfig C, bool kFp8>
struct Queries {
  static constexpr int kSteps = C.head_dim_qk / 16;
  static constexpr bool kPlaced = kFp8 && !C.convert_fp8;
  tile::LaneRows<QRows<C>> lane_rows;
  uint32_t held[C.q_in_registers ? C.row_tiles() : 1][C.q_in_registers ? kSteps : 1][4];

  /// `q`: shared address of the tile; row0: the warp's first row.
  __device__ __forceinline__ Queries(uint32_t q, int row0) {
    using R = tile::LaneRows<QRows<C>>;
    const uint32_t lane_offset = kPlaced ? R::offset(row0, lane() >> 2, (lane() >> 1) & 1) + uint32_t(lane() & 1) * 8 : R::offset(row0, lane() & 15, lane() >> 4);
    lane_rows.address = ptx::kept(q + lane_offset);
  }
  /// Q is in shared memory: takes it to registers where the configuration says so.
  __device__ __forceinline__ void hold() {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int mi = 0; mi < C.row_tiles(); ++mi) {
#pragma unroll
        for (int d = 0; d < kSteps; ++d) read(held[mi][d], mi, d);
      }
    }
  }
  /// Rows of m16 tile `mi`, the 16 dims of step d.
  __device__ __forceinline__ void get(uint32_t (&a)[4], int mi, int d) const {
    if constexpr (C.q_in_registers) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = held[mi][d][i];
    } else {
      read(a, mi, d);
    }
  }

 private:
  __device__ __forceinline__ static int lane() { return int(threadIdx.x) & 31; }
  __device__ __forceinline__ void read(uint32_t (&a)[4], int mi, int d) const {
    if constexpr (kPlaced) {
      ptx::load_shared_8(a[0], a[2], lane_rows.at(2 * mi, 2 * d));
      ptx::load_shared_8(a[1], a[3], lane_rows.at(2 * mi + 1, 2 * d));
    } else {
      ptx::warp_ldmatrix_x4(a, lane_rows.at(2 * mi, 2 * d));
    }
  }
};

/// K operands of `kKeyTiles` n8 tiles for the 16 dims of step d: b[n][0..1].
template <AttendConfig C, bool kFp8, int kKeyTiles>
struct Keys {
  using Rows = typename Select<kFp8 || C.boxed, KRows<C>, QRows<C>>::Type;
  static constexpr int kTogether = kFp8 ? (kKeyTiles % 4 == 0 ? 4 : kKeyTiles % 2 == 0 ? 2 : 1) : (kKeyTiles % 2 == 0 ? 2 : 1);
  tile::LaneRows<Rows> lane_rows;  // of the tile, from the warp's first key on

  /// What a lane adds to the address of a tile; `key0`: the warp's first key.
  __device__ __forceinline__ static uint32_t lane_offset(int key0) {
    const uint32_t further = kTogether == 4 ? uint32_t(lane() / 16 * C.k_gap) : 0;
    return tile::LaneRows<Rows>::offset(key0, kFp8 ? lane() : (lane() & 7) + ((lane() >> 4) << 3), kFp8 ? 0 : (lane() >> 3) & 1) + further;
  }

  static constexpr int kRaw = kFp8 ? kTogether : 2 * kTogether;  // registers of a load

  __device__ __forceinline__ void load(uint32_t (&r)[4], int n, int d) const {
    const uint32_t at = lane_rows.at(n, kFp8 ? d : 2 * d);
    if constexpr (kRaw == 4) {
      ptx::warp_ldmatrix_x4(r, at);
    } else {
      ptx::warp_ldmatrix_x2(r[0], r[1], at);
    }
  }
  /// What was loaded as operands of kTogether n8 tiles.
  __device__ __forceinline__ static void operands(uint32_t (&b)[kTogether][2], const uint32_t (&r)[4]) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if constexpr (kFp8 && C.convert_fp8) {
        ptx::widen_fp8x4<C.kv_dtype, DType::f16>(r[i], b[i][0], b[i][1]);
      } else if constexpr (kFp8) {
        tile::place_fp8x4<C.kv_dtype, C.q_dtype>(r[i], b[i][0], b[i][1]);
      } else {
        b[i][0] = r[2 * i], b[i][1] = r[2 * i + 1];
      }
    }
  }

 private:
  __device__ __forceinline__ static int lane() {
    const int l = int(threadIdx.x) & 31;
    return kFp8 && kTogether < 4 ? l & (8 * kTogether - 1) : l;  // addresses of lanes past the matrices are not used, but stay in the tile
  }
};

template <int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void clear_scores(float (&s)[kRowTiles][kKeyTiles][4]) {
#pragma unroll
  for (int i = 0; i < kRowTiles * kKeyTiles * 4; ++i) s[i / 4 / kKeyTiles][i / 4 % kKeyTiles][i % 4] = 0.0f;
}

/// s += Q . K^T of 8 kKeyTiles keys; `k`: the lane's address in the tile.
template <AttendConfig C, bool kFp8, int kKeyTiles>
__device__ __forceinline__ void warp_scores(float (&s)[C.row_tiles()][kKeyTiles][4], const Queries<C, kFp8>& q, uint32_t k) {
  using K = Keys<C, kFp8, kKeyTiles>;
  const K keys{{k}};
  constexpr int kSteps = C.head_dim_qk / 16, kLoads = kKeyTiles / K::kTogether, kAhead = min_of(C.loads_ahead, kLoads);
  uint32_t a[2][C.row_tiles()][4], raw[kAhead + 1][4];
  const auto fetch = [&](int i) {
    if (i >= kSteps * kLoads) return;
    if (i % kLoads == 0) {
#pragma unroll
      for (int mi = 0; mi < C.row_tiles(); ++mi) q.get(a[i / kLoads % 2][mi], mi, i / kLoads);
    }
    keys.load(raw[i % (kAhead + 1)], i % kLoads * K::kTogether, i / kLoads);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(i);
#pragma unroll
  for (int i = 0; i < kSteps * kLoads; ++i) {
    fetch(i + kAhead);
    uint32_t b[K::kTogether][2];
    K::operands(b, raw[i % (kAhead + 1)]);
    const int d = i / kLoads, n = i % kLoads * K::kTogether;
#pragma unroll
    for (int j = 0; j < K::kTogether; ++j) {
#pragma unroll
      for (int mi = 0; mi < C.row_tiles(); ++mi) ptx::warp_mma_m16n8k16<C.qk_dtype()>(s[mi][n + j], a[d % 2][mi], b[j][0], b[j][1]);
    }
  }
}

/// V operands of 16 keys and `kTogether` chunks of 16 bytes: tiles[i][0..1] for n8 tiles of O.
template <AttendConfig C, int kDimTiles>
struct Values {
  static constexpr int kTogether = C.fp8() ? (kDimTiles % 4 == 0 ? 4 : 2) : 2;  // n8 tiles a load
  tile::LaneRows<VRows<C>> lane_rows;  // of the tile, from the warp's first key on

  __device__ __forceinline__ static uint32_t lane_offset(int key0) {
    return tile::LaneRows<VRows<C>>::offset(key0, int(threadIdx.x) & 15, (int(threadIdx.x) >> 4) & 1);
  }

  static constexpr int kRaw = C.fp8() ? kTogether : 4;  // registers of a load

  /// 16 keys from 16 kk on, tiles t .. t + kTogether of O.
  __device__ __forceinline__ void load(uint32_t (&r)[4], int kk, int t) const {
    const uint32_t further = uint32_t(kk * C.v_gap);
    if constexpr (kRaw == 4) {
      ptx::warp_ldmatrix_x4_trans(r, lane_rows.at(2 * kk, C.fp8() ? t / 2 : t) + further);
    } else {  // one chunk: lanes past 15 are not asked
      const int lane_chunk = (int(threadIdx.x) >> 4) & 1;
      const tile::LaneRows<VRows<C>> first{lane_rows.address ^ uint32_t(lane_chunk << 4)};
      ptx::warp_ldmatrix_x2_trans(r[0], r[1], first.at(2 * kk, t / 2) + further);
    }
  }
  __device__ __forceinline__ static void operands(uint32_t (&b)[kTogether][2], const uint32_t (&r)[4]) {
    if constexpr (!C.fp8()) {
      b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
    } else {
#pragma unroll
      for (int i = 0; i < kTogether / 2; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (C.place_fp8_values && !C.convert_fp8) {
            tile::place_fp8x4<C.kv_dtype, DType::f16>(r[2 * i + half], b[2 * i][half], b[2 * i + 1][half]);
          } else {
            ptx::widen_fp8x4<C.kv_dtype, DType::f16>(ptx::permute_bytes(r[2 * i + half], 0x3120), b[2 * i][half], b[2 * i + 1][half]);
          }
        }
      }
    }
  }
};

/// o += P . V of 16 kKeySteps keys, kDimTiles n8 tiles from `v`, the lane's address in the tile, on; P as packed by pack_weights.
template <AttendConfig C, int kKeySteps, int kDimTiles>
__device__ __forceinline__ void warp_accumulate(float (&o)[C.row_tiles()][kDimTiles][4], const uint32_t (&p)[C.row_tiles()][kKeySteps][4],
                                                uint32_t v) {
  using VT = Values<C, kDimTiles>;
  const VT values{{v}};
  constexpr int kLoads = kDimTiles / VT::kTogether, kAll = kKeySteps * kLoads, kAhead = C.loads_ahead;
  uint32_t raw[kAhead + 1][4];
  const auto fetch = [&](int i) {
    if (i < kAll) values.load(raw[i % (kAhead + 1)], i / kLoads, i % kLoads * VT::kTogether);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch(i);
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    fetch(i + kAhead);
    uint32_t b[VT::kTogether][2];
    VT::operands(b, raw[i % (kAhead + 1)]);
#pragma unroll
    for (int j = 0; j < VT::kTogether; ++j) {
#pragma unroll
      for (int mi = 0; mi < C.row_tiles(); ++mi) {
        ptx::warp_mma_m16n8k16<C.pv_dtype()>(o[mi][i % kLoads * VT::kTogether + j], p[mi][i / kLoads], b[j][0], b[j][1]);
      }
    }
  }
}

}  // namespace kvloom::sm80
