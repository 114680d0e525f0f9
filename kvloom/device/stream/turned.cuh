// Fused RoPE, where all dims of keys turn and their positions are linear. A lane has the same dims of two keys that stand 8 apart, and a score depends on
// how far apart a query and its key stand, not on where: so the first 8 keys of a piece meet Q as it should be, the others Q turned 8 positions back
// (SharedMemory::q_back), and one sine and one cosine turn both keys, between ldmatrix and mma. Other rotations go through shared memory (attend.cuh).
#pragma once

#include "kvloom/device/ptx/tma.cuh"
#include "kvloom/device/sm80/tile_step.cuh"
#include "kvloom/device/sm80/transform.cuh"
#include "kvloom/device/stream/shared.cuh"

namespace kvloom::stream {

inline constexpr int kKeysApart = 8;

/// Q turned back, of a variant that turns nothing.
struct NoQueries {
  __device__ __forceinline__ NoQueries(uint32_t, int) {}
};

/// True if a pass turns keys like this.
template <AttendConfig C, class V>
__device__ __forceinline__ bool turns_in_registers(const VariantParams& p, const RowGroup& group) {
  return block::has_key<V>() && !C.fp8() && group.kv_position == KvPosition::linear && sm80::turns_whole_heads(p.rope, C.head_dim_qk);
}

/// VariantParams for rotating hooks of one pair, whose sine and cosine are there.
struct KnownTurn : VariantParams {
  float sine, cosine;

  __device__ __forceinline__ KnownTurn(const VariantParams& p, int head_dim, uint64_t turns, int32_t pos) : VariantParams(p) {
    rope.rotary_dim = head_dim;
    const float angle = block::turn_angle(turns, pos);
    sine = ptx::sin_small(angle), cosine = ptx::cos_small(angle);
  }
  __device__ __forceinline__ float rope_cos(int32_t, int) const { return cosine; }
  __device__ __forceinline__ float rope_sin(int32_t, int) const { return sine; }
};

/// s += Q . turned K of a piece. `q`, `q_back`: what its first and its last keys meet; `k`: the lane's address; `pos`: of the first key. `kHalves`: as
/// RopeMode::half_split pairs dims, else as interleaved.
template <sm80::AttendConfig S, class V, bool kHalves>
__device__ __forceinline__ void warp_turned_scores(float (&s)[1][2][4], const sm80::Queries<S, false>& q, const sm80::Queries<S, false>& q_back, uint32_t k,
                                                   const VariantParams& p, const uint64_t* turns, int32_t pos) {
  constexpr int kParts = kHalves ? 2 : 1, kSteps = S.head_dim_qk / 16 / kParts, kPairs = kHalves ? 2 : 1;  // pairs of a register
  constexpr DType kType = S.kv_dtype;
  const int lane = int(threadIdx.x) & 31, quad = lane & 3;
  const sm80::Keys<S, false, 2> keys{{k}};
  const int32_t lane_pos = pos + lane / 4;
  const Coord none{};  // the hook is told its sine
#pragma unroll
  for (int d = 0; d < kSteps; ++d) {
    uint32_t b[kParts][4];  // [first 8 keys: dims 0 .. 7, 8 .. 15; others: the same]
#pragma unroll
    for (int part = 0; part < kParts; ++part) keys.load(b[part], 0, d + part * kSteps);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int dim = 16 * d + 8 * h + 2 * quad, pair = kHalves ? dim : dim / 2;
      float x[2][2][2];  // [key][pair of the register][partner]
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kHalves) {
          ptx::widen_16<kType>(b[0][2 * i + h], x[i][0][0], x[i][1][0]);
          ptx::widen_16<kType>(b[kParts - 1][2 * i + h], x[i][0][1], x[i][1][1]);
        } else {
          ptx::widen_16<kType>(b[0][2 * i + h], x[i][0][0], x[i][0][1]);
        }
      }
#pragma unroll
      for (int e = 0; e < kPairs; ++e) {
        const KnownTurn turn(p, S.head_dim_qk, turns[pair + e], lane_pos);
        const int first = dim + e, second = kHalves ? first + S.head_dim_qk / 2 : first + 1;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float a = x[i][e][0], z = x[i][e][1];
          x[i][e][0] = V::key(a, z, first, none, turn);
          x[i][e][1] = V::key(z, a, second, none, turn);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kHalves) {
          b[0][2 * i + h] = ptx::pack_16<kType>(x[i][0][0], x[i][1][0]);
          b[kParts - 1][2 * i + h] = ptx::pack_16<kType>(x[i][0][1], x[i][1][1]);
        } else {
          b[0][2 * i + h] = ptx::pack_16<kType>(x[i][0][0], x[i][0][1]);
        }
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint32_t a[4];
      q.get(a, 0, d + part * kSteps);
      ptx::warp_mma_m16n8k16<S.q_dtype>(s[0][0], a, b[part][0], b[part][1]);
      q_back.get(a, 0, d + part * kSteps);
      ptx::warp_mma_m16n8k16<S.q_dtype>(s[0][1], a, b[part][2], b[part][3]);
    }
  }
}

/// Rows of Q turned by their positions, in place, and before that to q_back as keys behind the first want them, if the pass does.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_turn_queries(const VariantParams& p, SharedMemory<C, V>& m, const Pass<C>& pass) {
  static_assert(C.heads == 1, "rows of one head");
  const block::HookParams hooks(p, m.turns, C.head_dim_qk);
  m.turned.wait_full({});
  const int lane = int(threadIdx.x) & 31, count = pass.item.row_count;
  for (int i = lane + count * QRows<C>::kChunks; i < C.kRows * QRows<C>::kChunks; i += 32)
    ptx::store_shared_16(ptx::shared_address(m.q_back) + QRows<C>::offset(i / QRows<C>::kChunks, i % QRows<C>::kChunks), make_uint4(0, 0, 0, 0));
#pragma unroll 1
  for (int back = turns_in_registers<C, V>(p, pass.group) ? kKeysApart : 0; back >= 0; back -= kKeysApart) {
    const sm80::RowTransform<C.head_dim_qk, C.q_dtype, C.q_dtype> rows{m.q, back > 0 ? m.q_back : m.q};
    sm80::team_transform_rows<32>(lane, rows, count, p.rope.mode == RopeMode::half_split,
                                  sm80::hooked_dims(p.rope, C.head_dim_qk), [&](int row, float x, float partner, int dim) {
                                    const block::PackedRow& r = pass.row[row];
                                    return V::query(x, partner, dim, Coord{r.request, r.q_index, r.q_pos - back, 0, 0, r.q_head, 0}, hooks);
                                  });
    __syncwarp();
  }
}

/// The keys of a piece, which begin at `k`, turned by their positions, in place.
template <AttendConfig C, class V>
__device__ __forceinline__ void warp_turn_keys(const VariantParams& p, SharedMemory<C, V>& m, const block::WarpKeys& keys, char* k) {
  static_assert(!C.fp8(), "keys of 16 bits");
  const block::HookParams hooks(p, m.turns, C.head_dim_qk);
  sm80::team_transform_rows<32>(int(threadIdx.x) & 31, sm80::RowTransform<C.head_dim_qk, C.kv_dtype, C.kv_dtype, KRows<C>>{k, k}, C.kPieceKeys,
                                p.rope.mode == RopeMode::half_split, sm80::hooked_dims(p.rope, C.head_dim_qk),
                                [&](int row, float x, float partner, int dim) {
                                  const RowGroup& group = *keys.group;
                                  const Coord c{group.request, 0, 0, group.kv_index0 + keys.token0 + row, keys.position(row), 0, keys.kv_head};
                                  return V::key(x, partner, dim, c, hooks);
                                });
  ptx::fence_shared_async();  // boxes come here later
  __syncwarp();
}

}  // namespace kvloom::stream
