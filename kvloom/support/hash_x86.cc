#include "kvloom/support/hash_x86.h"

#include "kvloom/support/hash_rounds.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

namespace kvloom {

bool has_sha_instructions() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kSsse3 = 1u << 9, kSse41 = 1u << 19, kSha = 1u << 29;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSsse3) == 0 || (c & kSse41) == 0) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
  }();
  return has;
}

__attribute__((target("sha,ssse3,sse4.1"))) void sha256_blocks_x86(uint32_t (&state)[8], const unsigned char* bytes, size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions have a, b, e, f in one register and c, d, g, h in the other, the first of them in the highest lane.
  const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
  const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
  __m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
  for (; count > 0; --count, bytes += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // four words each, of the last sixteen
    for (int r = 0; r < 16; ++r) {
      __m128i& now = w[r & 3];  // was the words sixteen before
      if (r < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * r)), big_endian);
      } else {
        const __m128i &after = w[(r + 1) & 3], &two_before = w[(r + 2) & 3], &before = w[(r + 3) & 3];
        now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, after), _mm_alignr_epi8(before, two_before, 4)), before);
      }
      const __m128i sum = _mm_add_epi32(now, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kSha256Rounds + 4 * r)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before), cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i abef_turned = _mm_shuffle_epi32(abef, 0x1b), ghcd = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(abef_turned, ghcd, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(ghcd, abef_turned, 8));
}

}  // namespace kvloom

#else

namespace kvloom {

bool has_sha_instructions() { return false; }
void sha256_blocks_x86(uint32_t (&)[8], const unsigned char*, size_t) {}

}  // namespace kvloom

#endif
