// Scores where a key hook turns whole heads (fused RoPE) and the rows are so few that keys pass through a warp once: a lane has both partners
// of a pair in its registers, in one operand of mma or in two, and turns them between ldmatrix and mma. Nothing goes back to shared memory.
#pragma once

#include "kvloom/device/block/scores.cuh"
#include "kvloom/device/sm80/mainloop.cuh"

namespace kvloom::sm80 {

/// True if this configuration can turn keys in registers; `turns_whole_heads` says whether this call may.
template <AttendConfig C, class V>
KVLOOM_HD constexpr bool can_turn_in_registers() {
  return block::has_key<V>() && C.warps_rows == 1 && !C.fp8() && !C.wide() && C.head_dim_qk % 32 == 0;
}
KVLOOM_HD bool turns_whole_heads(const RopeSpec& rope, int head_dim) {
  return rope.mode != RopeMode::none && (rope.rotary_dim == 0 || rope.rotary_dim == head_dim);
}

/// The hook of this lane's keys.
template <AttendConfig C, class V>
struct KeyHook {
  block::HookParams hooks;
  Coord at;

  __device__ __forceinline__ KeyHook(const VariantParams& p, const uint64_t* turns, const block::WarpKeys& keys)
      : hooks(p, turns, C.head_dim_qk), at{keys.group->request, 0, 0, 0, 0, 0, keys.kv_head} {
    hooks.rope.rotary_dim = C.head_dim_qk;  // known here: pairs and partners become constants
  }
  __device__ __forceinline__ void move_to(const block::WarpKeys& keys, int key) {
    at.kv_index = keys.group->kv_index0 + keys.token0 + key;
    at.kv_pos = keys.position(key);
  }
  /// Elements (dim, dim + 1) of one operand and their partners, `away` dims further.
  __device__ __forceinline__ void turn_halves(uint32_t& low, uint32_t& high, int dim, int away) const {
    float x[2], y[2], u[2], v[2];
    ptx::widen_16<C.kv_dtype>(low, x[0], x[1]);
    ptx::widen_16<C.kv_dtype>(high, y[0], y[1]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      u[e] = V::key(x[e], y[e], dim + e, at, hooks);
      v[e] = V::key(y[e], x[e], dim + e + away, at, hooks);
    }
    low = ptx::pack_16<C.q_dtype>(u[0], u[1]);
    high = ptx::pack_16<C.q_dtype>(v[0], v[1]);
  }
  __device__ __forceinline__ void turn_neighbours(uint32_t& both, int dim) const {
    float x[2];
    ptx::widen_16<C.kv_dtype>(both, x[0], x[1]);
    both = ptx::pack_16<C.q_dtype>(V::key(x[0], x[1], dim, at, hooks), V::key(x[1], x[0], dim + 1, at, hooks));
  }
};

/// s += Q . turned K of 8 kKeyTiles keys from keys.key0 on. kHalves: as RopeMode::half_split pairs dims; else as interleaved.
template <AttendConfig C, class V, bool kHalves, int kKeyTiles>
__device__ __forceinline__ void warp_turned_scores(float (&s)[C.row_tiles()][kKeyTiles][4], const Queries<C, false>& q, uint32_t k,
                                                   const VariantParams& p, const uint64_t* turns, const block::WarpKeys& keys) {
  using K = Keys<C, false, kKeyTiles>;
  constexpr int kParts = kHalves ? 2 : 1, kSteps = C.head_dim_qk / 16 / kParts;
  const int lane = int(threadIdx.x) & 31;
  const K operands{{k}};
  KeyHook<C, V> hook(p, turns, keys);
#pragma unroll
  for (int d = 0; d < kSteps; ++d) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += K::kTogether) {
      uint32_t b[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) operands.load(b[part], n, d + part * kSteps);
#pragma unroll
      for (int i = 0; i < 2 * K::kTogether; ++i) {
        hook.move_to(keys, keys.key0 + 8 * (n + i / 2) + lane / 4);
        const int dim = 16 * d + 8 * (i % 2) + 2 * (lane & 3);
        if constexpr (kHalves) {
          hook.turn_halves(b[0][i], b[kParts - 1][i], dim, C.head_dim_qk / 2);
        } else {
          hook.turn_neighbours(b[0][i], dim);
        }
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int mi = 0; mi < C.row_tiles(); ++mi) {
          uint32_t a[4];
          q.get(a, mi, d + part * kSteps);
#pragma unroll
          for (int i = 0; i < K::kTogether; ++i) ptx::warp_mma_m16n8k16<C.q_dtype>(s[mi][n + i], a, b[part][2 * i], b[part][2 * i + 1]);
        }
      }
    }
  }
}

}  // namespace kvloom::sm80
