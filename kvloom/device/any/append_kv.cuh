// New keys and values into their pages, and rotation by itself, any GPU: one warp a (token, head).
//   append_kv<<<any, 128, 8 * ceil(k_new.dim / 2)>>>(AppendArgs)      apply_rope<<<any, 128, 8 * ceil(x.dim / 2)>>>(RopeArgs)
// Dynamic shared memory holds the frequencies; angles are exact to 2^-32 of a turn at any position.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/op_args.h"
#include "kvloom/device/any/rotate_wide.cuh"
#include "kvloom/device/block/turns.cuh"

namespace kvloom::any {

struct Turned {
  float first;
  float second;
};
/// The pair (a, b) turned by `pos` times `turns`.
__device__ __forceinline__ Turned turn_pair(float a, float b, uint64_t turns, int32_t pos) {
  float sine, cosine;
  sincospif(float(block::turn_fraction(turns, pos)) * 4.6566128730773926e-10f, &sine, &cosine);  // in half turns
  return {a * cosine - b * sine, b * cosine + a * sine};
}

/// Where the partners of pair i stand.
struct PairPlace {
  int32_t first;
  int32_t second;
};
__device__ __forceinline__ PairPlace pair_place(RopeMode mode, int32_t i, int32_t pairs) {
  return mode == RopeMode::interleaved ? PairPlace{2 * i, 2 * i + 1} : PairPlace{i, i + pairs};
}

/// One row of K or V by one warp. `turns` is nullptr where nothing is rotated.
__device__ __forceinline__ void warp_append_row(const TokenView& from, int64_t in, void* to, DType to_dtype, int64_t out, float scale, RopeMode mode,
                                                const uint64_t* turns, int32_t pairs, int32_t pos) {
  const int lane = int(threadIdx.x) & 31;
  if (!turns && from.dtype == to_dtype && scale == 1.0f) {  // as it is, bit by bit
    for (int32_t d = lane; d < from.dim; d += 32) {
      if (size_of(to_dtype) == 1) static_cast<uint8_t*>(to)[out + d] = static_cast<const uint8_t*>(from.data)[in + d];
      if (size_of(to_dtype) == 2) static_cast<uint16_t*>(to)[out + d] = static_cast<const uint16_t*>(from.data)[in + d];
      if (size_of(to_dtype) == 4) static_cast<uint32_t*>(to)[out + d] = static_cast<const uint32_t*>(from.data)[in + d];
    }
    return;
  }
  const int32_t turned = turns ? 2 * pairs : 0;
  for (int32_t i = lane; i < turned / 2; i += 32) {
    const PairPlace at = pair_place(mode, i, pairs);
    const Turned x = turn_pair(load_as_float(from.data, from.dtype, in + at.first), load_as_float(from.data, from.dtype, in + at.second), turns[i], pos);
    store_from_float(to, to_dtype, out + at.first, scale == 1.0f ? x.first : x.first / scale);
    store_from_float(to, to_dtype, out + at.second, scale == 1.0f ? x.second : x.second / scale);
  }
  for (int32_t d = turned + lane; d < from.dim; d += 32) {
    const float x = load_as_float(from.data, from.dtype, in + d);
    store_from_float(to, to_dtype, out + d, scale == 1.0f ? x : x / scale);
  }
}

__device__ __forceinline__ void warp_append(const AppendArgs& args, int64_t token, int32_t head, const uint64_t* turns) {
  const int64_t slot = args.slot[token];
  if (slot < 0 || slot >= args.kv.num_pages * args.page_size) return;  // padding; or nothing that the cache has
  const int64_t page = slot / args.page_size, place = slot % args.page_size;
  const bool rotated = args.rope.mode != RopeMode::none;
  const ScaleParams& s = args.scale;
  warp_append_row(args.k_new, token * args.k_new.token + head * args.k_new.head, const_cast<void*>(args.kv.k), args.kv_dtype,
                  page * args.kv.k_page + place * args.kv.k_token + head * args.kv.k_head, s.k_per_head ? s.k_per_head[head] : s.k, args.rope.mode,
                  rotated ? turns : nullptr, rotary_dim(args.rope, args.k_new.dim) / 2, rotated ? args.rope_pos[token] : 0);
  if (args.v_new.dim <= 0) return;
  warp_append_row(args.v_new, token * args.v_new.token + head * args.v_new.head, const_cast<void*>(args.kv.v), args.kv_dtype,
                  page * args.kv.v_page + place * args.kv.v_token + head * args.kv.v_head, s.v_per_head ? s.v_per_head[head] : s.v, RopeMode::none,
                  nullptr, 0, 0);
}

__device__ __forceinline__ void warp_rotate(const RopeArgs& args, int64_t token, int32_t head, const uint64_t* turns) {
  const int64_t at = token * args.x.token + head * args.x.head;
  const int32_t pairs = rotary_dim(args.rope, args.x.dim) / 2;
  for (int32_t i = int32_t(threadIdx.x) & 31; i < pairs; i += 32) {
    const PairPlace p = pair_place(args.rope.mode, i, pairs);
    const Turned x = turn_pair(load_as_float(args.x.data, args.x.dtype, at + p.first), load_as_float(args.x.data, args.x.dtype, at + p.second), turns[i],
                               args.pos[token]);
    store_from_float(args.x.data, args.x.dtype, at + p.first, x.first);
    store_from_float(args.x.data, args.x.dtype, at + p.second, x.second);
  }
}

/// Calls f(token, head) for all of [tokens, heads], a warp each, with the angles of `rope` ready in `turns` (shared memory).
template <class F>
__device__ __forceinline__ void block_for_heads(int64_t tokens, int32_t heads, const RopeSpec& rope, int32_t head_dim, uint64_t* turns, F&& f) {
  block::block_fill_turns(rope, head_dim, turns);
  __syncthreads();
  const int64_t warps = int64_t(gridDim.x) * (blockDim.x / 32), all = tokens * heads;
  for (int64_t i = int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; i < all; i += warps) f(i / heads, int32_t(i % heads));
}

}  // namespace kvloom::any

// 8 CTAs an SM: without a number ptxas aims at ten, and spills.
extern "C" __global__ void __launch_bounds__(128, 8) append_kv(const __grid_constant__ kvloom::AppendArgs args) {
  extern __shared__ __align__(128) char kvloom_shared[];
  uint64_t* turns = reinterpret_cast<uint64_t*>(kvloom_shared);
  kvloom::any::block_for_heads(args.num_tokens, args.num_kv_heads, args.rope, args.k_new.dim, turns,
                               [&](int64_t token, int32_t head) { kvloom::any::warp_append(args, token, head, turns); });
}

extern "C" __global__ void __launch_bounds__(128) apply_rope(const __grid_constant__ kvloom::RopeArgs args) {
  extern __shared__ __align__(128) char kvloom_shared[];
  uint64_t* turns = reinterpret_cast<uint64_t*>(kvloom_shared);
  if (kvloom::any::rotates_wide(args)) {
    kvloom::block::block_fill_turns(args.rope, args.x.dim, turns);
    __syncthreads();
    if (args.x.dtype == kvloom::DType::bf16) return kvloom::any::grid_rotate_wide<kvloom::DType::bf16>(args, turns);
    return kvloom::any::grid_rotate_wide<kvloom::DType::f16>(args, turns);
  }
  kvloom::any::block_for_heads(args.num_tokens, args.heads, args.rope, args.x.dim, turns,
                               [&](int64_t token, int32_t head) { kvloom::any::warp_rotate(args, token, head, turns); });
}
