// Division by a multiplication, against division, around every multiple of many divisors.
#include "kvloom/base/fast_divide.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

TEST(FastDivide, IsDivision) {
  for (const uint32_t d : {1u, 2u, 3u, 5u, 7u, 16u, 17u, 28u, 64u, 100u, 255u, 256u, 1000u, 65537u, 0x3fffffffu, 0x7fffffffu}) {
    const FastDivide f(d);
    for (uint64_t k = 0; k <= 0x7fffffffu / d && k < 20000; ++k) {
      for (int64_t n = int64_t(k * d) - 1; n <= int64_t(k * d) + 1; ++n) {
        if (n < 0 || n > 0x7fffffff) continue;
        ASSERT_EQ(f.divide(uint32_t(n)), uint32_t(n) / d) << n << " / " << d;
      }
    }
    ASSERT_EQ(f.divide(0x7fffffffu), 0x7fffffffu / d);
  }
}

}  // namespace
}  // namespace kvloom
