// Rows of Q as keys of 8 bits want them: as f16, since these become f16. What bf16 has and f16 has not goes into a power of two a row, which its
// scores are multiplied by later: rows whose largest number is neither small nor too large stay as they are. Of every 16 dims, 4 t and 4 t + 1
// stand where 2 t and 2 t + 1 do, and 4 t + 2 and 4 t + 3 behind them (sm80/mainloop.cuh).
#pragma once

#include "kvloom/device/ptx/convert.cuh"
#include "kvloom/device/stream/shared.cuh"

namespace kvloom::stream {

/// log2 of what a row is multiplied by so that f16 has it; `top`: the bits of its largest number, as a float's.
__device__ __forceinline__ int query_shift(uint32_t top) {
  constexpr int kLargest = 14, kSmallest = -4;  // exponents that need nothing: f16 has down to 2^-24, which beside 2^-4 is nothing in a sum of products
  const int exponent = int(top >> 23) - 127;
  if (exponent == 128 || top == 0 || (exponent <= kLargest && exponent >= kSmallest)) return 0;  // infinities and NaN stay what they are
  return min_of(kLargest - exponent, 126);
}
__device__ __forceinline__ float two_to(int shift) { return bits_to_float(uint32_t(shift + 127) << 23); }

/// Q of a pass, in place. By a warp; a __syncwarp on either side is the caller's.
template <AttendConfig C, class Memory>
__device__ __forceinline__ void warp_convert_queries(Memory& m, const Pass<C>& pass) {
  constexpr int kLanes = 8, kGroups = C.head_dim_qk / 16;  // of a row
  const int lane = int(threadIdx.x) & 31, part = lane % kLanes;
  if (lane < C.heads * C.kRows) m.q_factor[lane] = 1.0f;
  __syncwarp();
#pragma unroll 1
  for (int i = lane / kLanes; i < pass.heads * C.kRows; i += 32 / kLanes) {  // rows past the last are zeros in any type
    if (i % C.kRows / 4 * 4 >= pass.item.row_count) continue;
    char* const q = m.q + i / C.kRows * Memory::kHeadQ;
    const auto chunk = [&](int c) -> uint4& { return *reinterpret_cast<uint4*>(q + QRows<C>::offset(i % C.kRows, c)); };
    float factor = 1.0f;
    if constexpr (C.q_dtype == DType::bf16) {
      const auto largest = [](uint32_t w) { return max_of(w & 0x7fff0000u, w << 16 & 0x7fff0000u); };
      uint32_t top = 0;
#pragma unroll
      for (int g = part; g < kGroups; g += kLanes) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const uint4 x = chunk(2 * g + c);
          top = max_of(max_of(top, largest(x.x)), max_of(largest(x.y), max_of(largest(x.z), largest(x.w))));
        }
      }
#pragma unroll
      for (int l = 1; l < kLanes; l *= 2) top = max_of(top, __shfl_xor_sync(0xffffffffu, top, l));
      const int shift = query_shift(top);
      factor = two_to(shift);
      if (part == 0) m.q_factor[i] = two_to(-shift);
    }
    const auto as_f16 = [&](uint32_t w) {
      if constexpr (C.q_dtype == DType::f16) return w;
      float a, b;
      ptx::widen_16<C.q_dtype>(w, a, b);
      return ptx::pack_16<DType::f16>(a * factor, b * factor);
    };
#pragma unroll
    for (int g = part; g < kGroups; g += kLanes) {
      const uint4 a = chunk(2 * g), b = chunk(2 * g + 1);
      chunk(2 * g) = make_uint4(as_f16(a.x), as_f16(a.z), as_f16(b.x), as_f16(b.z));
      chunk(2 * g + 1) = make_uint4(as_f16(a.y), as_f16(a.w), as_f16(b.y), as_f16(b.w));
    }
  }
  __syncwarp();
}

/// What the scores of a lane's rows are multiplied by, once they are there.
template <AttendConfig C>
struct QueryFactors {
  static constexpr bool kAny = C.fp8() && C.q_dtype == DType::bf16;
  float row[kAny ? 2 : 1];
  bool some;  // for the whole warp: some row has one other than 1

  /// `factor`: of the head's rows.
  __device__ __forceinline__ void take(const float* factor) {
    if constexpr (kAny) {
      const int first = (int(threadIdx.x) & 31) / 4;
      row[0] = factor[first], row[1] = factor[first + 8];
      some = __any_sync(0xffffffffu, row[0] != 1.0f || row[1] != 1.0f);
    }
  }
  template <int kKeyTiles>
  __device__ __forceinline__ void multiply(float (&s)[1][kKeyTiles][4]) const {
    if constexpr (kAny) {
      if (some) by(s, row[0], row[1]);
    }
  }
  template <int kKeyTiles>
  __device__ __forceinline__ void divide(float (&s)[1][kKeyTiles][4]) const {
    if constexpr (kAny) {
      if (some) by(s, 1.0f / row[0], 1.0f / row[1]);
    }
  }

 private:
  template <int kKeyTiles>
  __device__ __forceinline__ static void by(float (&s)[1][kKeyTiles][4], float low, float high) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) s[0][n][0] *= low, s[0][n][1] *= low, s[0][n][2] *= high, s[0][n][3] *= high;
  }
};

}  // namespace kvloom::stream
