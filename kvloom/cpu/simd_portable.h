// The vector layer in GCC/Clang vector extensions: 4 lanes of fp32, which every 64-bit processor has (SSE2, NEON). Names and meaning as
// in simd_avx2.h.
#pragma once

#include "kvloom/base/dtype.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define KVLOOM_SIMD static inline __attribute__((always_inline))

namespace kvloom::cpu::portable {

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t VecInt __attribute__((vector_size(16)));
inline constexpr int kLanes = 4;
inline constexpr int kMicroRows = 6;
inline constexpr int kMicroVecs = 2;

KVLOOM_SIMD Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
KVLOOM_SIMD void store(float* p, Vec a) { __builtin_memcpy(p, &a, sizeof a); }
KVLOOM_SIMD Vec set(float a) { return Vec{a, a, a, a}; }
KVLOOM_SIMD Vec iota() { return Vec{0, 1, 2, 3}; }
KVLOOM_SIMD Vec add(Vec a, Vec b) { return a + b; }
KVLOOM_SIMD Vec sub(Vec a, Vec b) { return a - b; }
KVLOOM_SIMD Vec mul(Vec a, Vec b) { return a * b; }
KVLOOM_SIMD Vec fma(Vec a, Vec b, Vec c) {
#if defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
KVLOOM_SIMD Vec max(Vec a, Vec b) { return a > b ? a : b; }
KVLOOM_SIMD Vec select_less(Vec a, Vec b, Vec x, Vec y) { return a < b ? x : y; }
[[nodiscard]] KVLOOM_SIMD Vec accumulate(Vec acc, Vec a, Vec b) { return fma(a, b, acc); }
KVLOOM_SIMD Vec add_exponent(Vec p, Vec shifted) { return (Vec)((VecInt)p + ((VecInt)shifted << 23)); }
/// out [4] = the largest lanes of a, b, c, d.
KVLOOM_SIMD void max_lanes_of_four(Vec a, Vec b, Vec c, Vec d, float* out) {
  const auto largest = [](Vec v) {
    const float x = v[0] > v[1] ? v[0] : v[1], y = v[2] > v[3] ? v[2] : v[3];
    return x > y ? x : y;
  };
  out[0] = largest(a);
  out[1] = largest(b);
  out[2] = largest(c);
  out[3] = largest(d);
}

/// out [4] = the sums of the lanes of a, b, c, d, each added up in the same order.
KVLOOM_SIMD void sum_lanes_of_four(Vec a, Vec b, Vec c, Vec d, float* out) {
  const auto sum = [](Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); };
  out[0] = sum(a);
  out[1] = sum(b);
  out[2] = sum(c);
  out[3] = sum(d);
}

/// The even and the odd elements of 2 * kLanes.
KVLOOM_SIMD Vec load_bf16_even(const uint16_t* p) {
  return Vec{bf16_to_float(p[0]), bf16_to_float(p[2]), bf16_to_float(p[4]), bf16_to_float(p[6])};
}
KVLOOM_SIMD Vec load_bf16_odd(const uint16_t* p) {
  return Vec{bf16_to_float(p[1]), bf16_to_float(p[3]), bf16_to_float(p[5]), bf16_to_float(p[7])};
}

KVLOOM_SIMD Vec load_bf16(const uint16_t* p) {
  return Vec{bf16_to_float(p[0]), bf16_to_float(p[1]), bf16_to_float(p[2]), bf16_to_float(p[3])};
}
KVLOOM_SIMD Vec load_f16(const uint16_t* p) { return Vec{f16_to_float(p[0]), f16_to_float(p[1]), f16_to_float(p[2]), f16_to_float(p[3])}; }
KVLOOM_SIMD Vec load_e5m2(const uint8_t* p) {
  return Vec{e5m2_to_float(p[0]), e5m2_to_float(p[1]), e5m2_to_float(p[2]), e5m2_to_float(p[3])};
}
KVLOOM_SIMD Vec load_e4m3(const uint8_t* p) {
  return Vec{e4m3_to_float(p[0]), e4m3_to_float(p[1]), e4m3_to_float(p[2]), e4m3_to_float(p[3])};
}
KVLOOM_SIMD void store_f16(uint16_t* p, Vec a) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_f16(a[i]);
}
KVLOOM_SIMD void store_bf16(uint16_t* p, Vec a) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_bf16(a[i]);
}

/// dst [4][dst_row] = transpose of src [4 rows], dims [dim, dim + 4) of each.
KVLOOM_SIMD void transpose_block(const float* const* src, int64_t dim, float* dst, int64_t dst_row) {
  for (int d = 0; d < kLanes; ++d) store(dst + d * dst_row, Vec{src[0][dim + d], src[1][dim + d], src[2][dim + d], src[3][dim + d]});
}

}  // namespace kvloom::cpu::portable
