// The vector layer for AVX-512 (F, BW, DQ, VL): 16 lanes of fp32. Names and meaning as in simd_avx2.h.
#pragma once

#include "kvloom/base/dtype.h"

#include <immintrin.h>

#define KVLOOM_SIMD static inline __attribute__((always_inline))

namespace kvloom::cpu::avx512 {

using Vec = __m512;
inline constexpr int kLanes = 16;
inline constexpr int kMicroRows = 12;  // 12 x 2 vectors: 24 accumulators of 32 registers
inline constexpr int kMicroVecs = 2;

KVLOOM_SIMD Vec load(const float* p) { return _mm512_loadu_ps(p); }
KVLOOM_SIMD void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
KVLOOM_SIMD Vec set(float a) { return _mm512_set1_ps(a); }
KVLOOM_SIMD Vec iota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
KVLOOM_SIMD Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
KVLOOM_SIMD Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
KVLOOM_SIMD Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
KVLOOM_SIMD Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
KVLOOM_SIMD Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
KVLOOM_SIMD Vec select_less(Vec a, Vec b, Vec x, Vec y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
[[nodiscard]] KVLOOM_SIMD Vec accumulate(Vec acc, Vec a, Vec b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
}
KVLOOM_SIMD Vec add_exponent(Vec p, Vec shifted) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}
/// out [4] = the largest lanes of a, b, c, d.
KVLOOM_SIMD void max_lanes_of_four(Vec a, Vec b, Vec c, Vec d, float* out) {
  out[0] = _mm512_reduce_max_ps(a);
  out[1] = _mm512_reduce_max_ps(b);
  out[2] = _mm512_reduce_max_ps(c);
  out[3] = _mm512_reduce_max_ps(d);
}
/// out [4] = the sums of the lanes of a, b, c, d, each added up in the same order.
KVLOOM_SIMD void sum_lanes_of_four(Vec a, Vec b, Vec c, Vec d, float* out) {
  const auto half = [](Vec v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); };
  const __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(half(a), half(b)), _mm256_hadd_ps(half(c), half(d)));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

/// The even and the odd elements of 2 * kLanes.
KVLOOM_SIMD Vec load_bf16_even(const uint16_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
KVLOOM_SIMD Vec load_bf16_odd(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

KVLOOM_SIMD Vec load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
KVLOOM_SIMD Vec load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
KVLOOM_SIMD Vec load_e5m2(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 8));
}
KVLOOM_SIMD Vec load_e4m3(const uint8_t* p) {
  const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i moved = _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i low = _mm256_and_si256(b, _mm256_set1_epi16(0x7f));
  const __m256i nan = _mm256_cmpeq_epi16(low, _mm256_set1_epi16(0x7f));
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(moved, nan)), _mm512_set1_ps(256.0f));
}
KVLOOM_SIMD void store_f16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
KVLOOM_SIMD void store_bf16(uint16_t* p, Vec a) {
  const __m512i u = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  const __m512i r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}

/// dst [16][dst_row] = transpose of src [16 rows], dims [dim, dim + 16) of each.
KVLOOM_SIMD void transpose_block(const float* const* src, int64_t dim, float* dst, int64_t dst_row) {
  const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  alignas(64) float block[16][16];
  for (int i = 0; i < 16; ++i) store(block[i], load(src[i] + dim));
  for (int d = 0; d < 16; ++d) store(dst + d * dst_row, _mm512_i32gather_ps(_mm512_slli_epi32(row, 4), &block[0][d], 4));
}

}  // namespace kvloom::cpu::avx512
