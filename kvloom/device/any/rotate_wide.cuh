// Rotation of 16-bit values in place, eight at a time: a thread works out the angles of eight pairs once for several heads of a token, whose values
// are all on their way meanwhile, so that a whole cache is rotated as fast as memory allows.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/contract/op_args.h"
#include "kvloom/device/block/turns.cuh"
#include "kvloom/device/ptx/convert.cuh"
#include "kvloom/device/ptx/math.cuh"

namespace kvloom::any {

constexpr int kHeadsTogether = 4;

struct alignas(16) Eight {
  uint32_t two[4];
};

/// Threads' worth of work: eight pairs of kHeadsTogether heads of a token.
__device__ __forceinline__ int64_t wide_units(const RopeArgs& args) {
  return args.num_tokens * ceil_div(args.heads, kHeadsTogether) * (rotary_dim(args.rope, args.x.dim) / 16);
}

__device__ __forceinline__ bool rotates_wide(const RopeArgs& args) {
  const TokenView& x = args.x;
  return size_of(x.dtype) == 2 && rotary_dim(args.rope, x.dim) % 16 == 0 && x.token % 8 == 0 && x.head % 8 == 0 && reinterpret_cast<uint64_t>(x.data) % 16 == 0 &&
         wide_units(args) < (int64_t(1) << 31);
}

/// Pairs (a, b), two at a time.
template <DType kType>
__device__ __forceinline__ void turn_apart(uint32_t& a, uint32_t& b, const float* sine, const float* cosine) {
  float x[2], y[2];
  ptx::widen_16<kType>(a, x[0], x[1]);
  ptx::widen_16<kType>(b, y[0], y[1]);
  a = ptx::pack_16<kType>(x[0] * cosine[0] - y[0] * sine[0], x[1] * cosine[1] - y[1] * sine[1]);
  b = ptx::pack_16<kType>(y[0] * cosine[0] + x[0] * sine[0], y[1] * cosine[1] + x[1] * sine[1]);
}
/// A pair that lies together.
template <DType kType>
__device__ __forceinline__ void turn_together(uint32_t& both, float sine, float cosine) {
  float x, y;
  ptx::widen_16<kType>(both, x, y);
  both = ptx::pack_16<kType>(x * cosine - y * sine, y * cosine + x * sine);
}

template <DType kType>
__device__ __forceinline__ void grid_rotate_wide(const RopeArgs& args, const uint64_t* turns) {
  const uint32_t chunks = uint32_t(rotary_dim(args.rope, args.x.dim) / 16), groups = uint32_t(ceil_div(args.heads, kHeadsTogether));
  const uint32_t units = uint32_t(wide_units(args)), step = gridDim.x * blockDim.x;
  const bool halves = args.rope.mode == RopeMode::half_split;
  for (uint32_t u = blockIdx.x * blockDim.x + threadIdx.x; u < units; u += step) {
    const uint32_t chunk = u % chunks, rest = u / chunks;
    const int32_t head0 = int32_t(rest % groups) * kHeadsTogether;
    const int64_t token = rest / groups;
    char* const base = static_cast<char*>(args.x.data) + 2 * (token * args.x.token + head0 * args.x.head + int64_t(chunk) * (halves ? 8 : 16));
    const int64_t head = 2 * args.x.head, away = 2 * (halves ? 8 * int64_t(chunks) : 8);
    Eight first[kHeadsTogether], second[kHeadsTogether];
#pragma unroll
    for (int h = 0; h < kHeadsTogether; ++h) {
      if (head0 + h >= args.heads) break;
      first[h] = *reinterpret_cast<const Eight*>(base + h * head);
      second[h] = *reinterpret_cast<const Eight*>(base + h * head + away);
    }
    const int32_t pos = args.pos[token];
    float sine[8], cosine[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) sincospif(float(block::turn_fraction(turns[8 * chunk + i], pos)) * 4.6566128730773926e-10f, &sine[i], &cosine[i]);  // half turns
#pragma unroll
    for (int h = 0; h < kHeadsTogether; ++h) {
      if (head0 + h >= args.heads) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (halves) {
          turn_apart<kType>(first[h].two[i], second[h].two[i], sine + 2 * i, cosine + 2 * i);
        } else {
          turn_together<kType>(first[h].two[i], sine[i], cosine[i]);
          turn_together<kType>(second[h].two[i], sine[4 + i], cosine[4 + i]);
        }
      }
      *reinterpret_cast<Eight*>(base + h * head) = first[h];
      *reinterpret_cast<Eight*>(base + h * head + away) = second[h];
    }
  }
}

}  // namespace kvloom::any
