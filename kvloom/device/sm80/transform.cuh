// The query and key hooks of a variant: rows that have arrived in shared memory are rewritten there before anybody multiplies them. Keys of 8
// bits grow to 16 in a tile of their own. Which dims are partners is RopeSpec's matter: neighbours, or halves of the rotated part.
#pragma once

#include "kvloom/device/block/scores.cuh"
#include "kvloom/device/ptx/convert.cuh"
#include "kvloom/device/sm80/mainloop.cuh"

namespace kvloom::sm80 {

/// Rows of kDim elements of kFrom in, as they lie in `In`; of kTo (16 bits) out. `in` may be `out` if the types are the same.
template <int kDim, DType kFrom, DType kTo, class In = tile::SwizzledRows<kDim * size_of(kFrom)>>
struct RowTransform {
  using Out = typename Select<is_fp8(kFrom), tile::SwizzledRows<kDim * 2>, In>::Type;
  static constexpr bool kGrows = is_fp8(kFrom);
  static constexpr int kOctets = kDim / 8;
  const char* in;
  char* out;

  /// Dims 8 c .. 8 c + 7 of a row.
  __device__ __forceinline__ void read(int row, int c, float (&x)[8]) const {
    if constexpr (kGrows) {
      const uint2 bytes = *reinterpret_cast<const uint2*>(in + In::offset(row, c / 2) + (c % 2) * 8);
      uint32_t w[4];
      ptx::widen_fp8x4<kFrom, DType::f16>(bytes.x, w[0], w[1]);
      ptx::widen_fp8x4<kFrom, DType::f16>(bytes.y, w[2], w[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::widen_16<DType::f16>(w[i], x[2 * i], x[2 * i + 1]);
    } else {
      const uint4 w = *reinterpret_cast<const uint4*>(in + In::offset(row, c));
      ptx::widen_16<kFrom>(w.x, x[0], x[1]);
      ptx::widen_16<kFrom>(w.y, x[2], x[3]);
      ptx::widen_16<kFrom>(w.z, x[4], x[5]);
      ptx::widen_16<kFrom>(w.w, x[6], x[7]);
    }
  }
  __device__ __forceinline__ void write(int row, int c, const float (&x)[8]) const {
    *reinterpret_cast<uint4*>(out + Out::offset(row, c)) =
        make_uint4(ptx::pack_16<kTo>(x[0], x[1]), ptx::pack_16<kTo>(x[2], x[3]), ptx::pack_16<kTo>(x[4], x[5]), ptx::pack_16<kTo>(x[6], x[7]));
  }
  /// One element.
  __device__ __forceinline__ float read_one(int row, int dim) const {
    if constexpr (kGrows) {
      return load_as_float(in + In::offset(row, dim / 16), kFrom, dim % 16);
    } else {
      return load_as_float(in + In::offset(row, dim / 8), kFrom, dim % 8);
    }
  }
  __device__ __forceinline__ void write_one(int row, int dim, float x) const { store_from_float(out + Out::offset(row, dim / 8), kTo, dim % 8, x); }
};

/// hook(row, x, partner, dim) is the new value of an element, for dims below `rotary` (a multiple of 2); the others stay. Every pair of
/// partners is read and written by one thread. No barrier within. By kThreads threads, of which this is number `tid`.
template <int kThreads, class T, class Hook>
__device__ __forceinline__ void team_transform_rows(int tid, const T& rows, int count, bool half_split, int rotary, Hook&& hook) {
  if (!half_split) {  // partners are neighbours: eight dims at a time
#pragma unroll 1
    for (int i = tid; i < count * T::kOctets; i += kThreads) {
      const int row = i / T::kOctets, c = i % T::kOctets;
      if (!T::kGrows && 8 * c >= rotary) continue;
      float x[8], y[8];
      rows.read(row, c, x);
#pragma unroll
      for (int e = 0; e < 8; ++e) y[e] = 8 * c + e < rotary ? hook(row, x[e], x[e ^ 1], 8 * c + e) : x[e];
      rows.write(row, c, y);
    }
    return;
  }
  const int half = rotary / 2;
  if (half % 8 == 0) {
    const int octets = half / 8;
#pragma unroll 2
    for (int i = tid; i < count * octets; i += kThreads) {
      const int row = i / octets, c = i % octets;
      float a[8], b[8], y[8], z[8];
      rows.read(row, c, a);
      rows.read(row, c + octets, b);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        y[e] = hook(row, a[e], b[e], 8 * c + e);
        z[e] = hook(row, b[e], a[e], 8 * c + e + half);
      }
      rows.write(row, c, y);
      rows.write(row, c + octets, z);
    }
  } else {  // odd sizes: a pair at a time
#pragma unroll 1
    for (int i = tid; i < count * half; i += kThreads) {
      const int row = i / half, d = i % half;
      const float a = rows.read_one(row, d), b = rows.read_one(row, d + half);
      rows.write_one(row, d, hook(row, a, b, d));
      rows.write_one(row, d + half, hook(row, b, a, d + half));
    }
  }
  if constexpr (T::kGrows) {
#pragma unroll 1
    for (int i = tid; i < count * (T::kOctets * 8 - rotary); i += kThreads) {
      const int row = i / (T::kOctets * 8 - rotary), d = rotary + i % (T::kOctets * 8 - rotary);
      rows.write_one(row, d, rows.read_one(row, d));
    }
  }
}

/// Dims that hooks see: what RoPE rotates, or all of them for a variant with hooks of its own.
__device__ __forceinline__ int hooked_dims(const RopeSpec& rope, int head_dim) {
  return rope.mode == RopeMode::none ? head_dim : rotary_dim(rope, head_dim);
}

template <AttendConfig C, class V>
__device__ __forceinline__ void block_transform_queries(const AttendArgs& args, SharedMemory<C, V>& m) {
  const VariantParams& p = args.params.variant;
  const block::HookParams hooks(p, m.turns, C.head_dim_qk);
  const RowTransform<C.head_dim_qk, C.q_dtype, C.q_dtype> rows{m.q, m.q};
  team_transform_rows<C.threads()>(int(threadIdx.x), rows, C.tile_rows, p.rope.mode == RopeMode::half_split, hooked_dims(p.rope, C.head_dim_qk),
                                   [&](int row, float x, float partner, int dim) {
                                     const block::PackedRow& r = m.row[row];
                                     return V::query(x, partner, dim, Coord{r.request, r.q_index, r.q_pos, 0, 0, r.q_head, 0}, hooks);
                                   });
}

/// Q in the order of dims and at the size that placed fp8 keys ask for (mainloop.cuh): of every four dims 0, 2, 1, 3, times 2^query_log2.
template <AttendConfig C, int kThreads>
__device__ __forceinline__ void arrange_queries(char* q, int thread) {
  const RowTransform<C.head_dim_qk, C.q_dtype, C.q_dtype> rows{q, q};
  constexpr float kFactor = power_of_two(query_log2<C>());
  constexpr int kOctets = C.head_dim_qk / 8;
#pragma unroll 1
  for (int i = thread; i < C.tile_rows * kOctets; i += kThreads) {
    float x[8];
    rows.read(i / kOctets, i % kOctets, x);
    const float y[8] = {x[0] * kFactor, x[2] * kFactor, x[1] * kFactor, x[3] * kFactor, x[4] * kFactor, x[6] * kFactor, x[5] * kFactor, x[7] * kFactor};
    rows.write(i / kOctets, i % kOctets, y);
  }
}

/// Keys of a tile, in K buffer `stage`.
template <AttendConfig C, class V>
__device__ __forceinline__ void block_transform_keys(const AttendArgs& args, const block::WarpKeys& keys, int stage, SharedMemory<C, V>& m) {
  const VariantParams& p = args.params.variant;
  const block::HookParams hooks(p, m.turns, C.head_dim_qk);
  const RowTransform<C.head_dim_qk, C.kv_dtype, C.q_dtype> rows{m.k[stage], C.fp8() ? m.turned : m.k[stage]};
  team_transform_rows<C.threads()>(int(threadIdx.x), rows, C.tile_kv, p.rope.mode == RopeMode::half_split, hooked_dims(p.rope, C.head_dim_qk),
                                   [&](int row, float x, float partner, int dim) {
                                     const Coord c{m.group.request, 0, 0, m.group.kv_index0 + keys.token0 + row, keys.position(row), 0, keys.kv_head};
                                     return V::key(x, partner, dim, c, hooks);
                                   });
}

}  // namespace kvloom::sm80
