// The vector layer for AVX2 + FMA + F16C: 8 lanes of fp32. Every target has this file with the same names, so kernels are written once.
#pragma once

#include "kvloom/base/dtype.h"

#include <immintrin.h>

#define KVLOOM_SIMD static inline __attribute__((always_inline))

namespace kvloom::cpu::avx2 {

using Vec = __m256;
inline constexpr int kLanes = 8;
inline constexpr int kMicroRows = 6;  // register tile of a product: 6 x 2 vectors, 12 accumulators, 2 loaded vectors, 1 broadcast
inline constexpr int kMicroVecs = 2;

KVLOOM_SIMD Vec load(const float* p) { return _mm256_loadu_ps(p); }
KVLOOM_SIMD void store(float* p, Vec a) { _mm256_storeu_ps(p, a); }
KVLOOM_SIMD Vec set(float a) { return _mm256_set1_ps(a); }
KVLOOM_SIMD Vec iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
KVLOOM_SIMD Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
KVLOOM_SIMD Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
KVLOOM_SIMD Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
KVLOOM_SIMD Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
/// The larger lane; b where either is NaN.
KVLOOM_SIMD Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
/// Lanes: a < b ? x : y.
KVLOOM_SIMD Vec select_less(Vec a, Vec b, Vec x, Vec y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
/// acc + a * b. An instruction by name, because gcc 12 turns twelve accumulators into a rotation of copies and spills, and reads b from
/// memory in every one that uses it.
[[nodiscard]] KVLOOM_SIMD Vec accumulate(Vec acc, Vec a, Vec b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
  return acc;
}
/// Adds the low bits of `shifted` to the exponent of p: p * 2^n for an integer n that was rounded by adding 1.5 * 2^23.
KVLOOM_SIMD Vec add_exponent(Vec p, Vec shifted) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

/// out [4] = the largest lanes of a, b, c, d.
KVLOOM_SIMD void max_lanes_of_four(Vec a, Vec b, Vec c, Vec d, float* out) {
  const __m256 ab = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_max_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256 x = _mm256_max_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  _mm_storeu_ps(out, _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
/// out [4] = the sums of the lanes of a, b, c, d, each added up in the same order.
KVLOOM_SIMD void sum_lanes_of_four(Vec a, Vec b, Vec c, Vec d, float* out) {
  const __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

/// The even and the odd elements of 2 * kLanes: one shift or one mask each, where widening in order takes two steps.
KVLOOM_SIMD Vec load_bf16_even(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
}
KVLOOM_SIMD Vec load_bf16_odd(const uint16_t* p) {
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), odd));
}

/// kLanes elements of a 16-bit or 8-bit type, widened.
KVLOOM_SIMD Vec load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
KVLOOM_SIMD Vec load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
KVLOOM_SIMD Vec load_e5m2(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 8));
}
/// The bits moved under fp16's exponent are the value x 2^-8, subnormals right (F16C heeds no denormals-are-zero mode); NaN put back.
KVLOOM_SIMD Vec load_e4m3(const uint8_t* p) {
  const __m128i b = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i moved = _mm_and_si128(_mm_slli_epi16(b, 7), _mm_set1_epi16(static_cast<short>(0xbf80)));
  const __m128i low = _mm_and_si128(b, _mm_set1_epi16(0x7f));
  const __m128i nan = _mm_cmpeq_epi16(low, _mm_set1_epi16(0x7f));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(moved, nan)), _mm256_set1_ps(256.0f));
}
/// kLanes elements rounded to nearest even.
KVLOOM_SIMD void store_f16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
KVLOOM_SIMD void store_bf16(uint16_t* p, Vec a) {
  const __m256i u = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i r = _mm256_blendv_epi8(rounded, quiet, nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
}

/// dst [8][dst_row] = transpose of src [8 rows], dims [0, 8) of each: dst[d][r] = src[r][d].
KVLOOM_SIMD void transpose_block(const float* const* src, int64_t dim, float* dst, int64_t dst_row) {
  __m256 r[8], t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // halves of rows i and i + 4 side by side: lane crossing is done by the loads
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src[i] + dim)), _mm_loadu_ps(src[i + 4] + dim), 1);
    r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src[i] + dim + 4)), _mm_loadu_ps(src[i + 4] + dim + 4), 1);
  }
#pragma GCC unroll 2
  for (int h = 0; h < 8; h += 4) {
    t[0] = _mm256_unpacklo_ps(r[h], r[h + 1]);
    t[1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
    t[2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]);
    t[3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
    store(dst + (h + 0) * dst_row, _mm256_shuffle_ps(t[0], t[2], 0x44));
    store(dst + (h + 1) * dst_row, _mm256_shuffle_ps(t[0], t[2], 0xee));
    store(dst + (h + 2) * dst_row, _mm256_shuffle_ps(t[1], t[3], 0x44));
    store(dst + (h + 3) * dst_row, _mm256_shuffle_ps(t[1], t[3], 0xee));
  }
}

}  // namespace kvloom::cpu::avx2
