// Conversions against the definition of each format, over every code and around every rounding boundary.
#include "kvloom/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvloom {
namespace {

/// The nearest code to x by exhaustive search over `codes`, ties to the even code, saturating.
template <class Decode>
uint32_t nearest(float x, uint32_t first, uint32_t count, Decode decode) {
  uint32_t best = first;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t c = first; c < first + count; ++c) {
    const double value = decode(c);
    if (!std::isfinite(value)) continue;
    const double d = std::fabs(value - double(x));
    if (d < best_distance || (d == best_distance && (c & 1) == 0)) best = c, best_distance = d;
  }
  return best;
}

TEST(Dtype, E4m3RoundTripsEveryCode) {
  for (int c = 0; c < 256; ++c) {
    const float f = e4m3_to_float(uint8_t(c));
    if ((c & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(f));
      continue;
    }
    EXPECT_EQ(float_to_e4m3(f), c) << f;
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0f, -9));
}

TEST(Dtype, E5m2RoundTripsEveryFiniteCode) {
  for (int c = 0; c < 256; ++c) {
    const float f = e5m2_to_float(uint8_t(c));
    if (!std::isfinite(f)) continue;
    EXPECT_EQ(float_to_e5m2(f), c) << f;
  }
  EXPECT_EQ(e5m2_to_float(0x7b), 57344.0f);
}

TEST(Dtype, Fp8RoundsToNearestEvenAndSaturates) {
  for (int i = 0; i < 200000; ++i) {
    const float x = std::ldexp(1.0f + float(i % 997) / 997.0f, (i % 30) - 17) * 1.3f;
    const uint32_t want4 = nearest(x, 0, 0x7f, [](uint32_t c) { return e4m3_to_float(uint8_t(c)); });
    ASSERT_EQ(float_to_e4m3(x), want4) << x;
    ASSERT_EQ(float_to_e4m3(-x), want4 | 0x80) << x;
    const uint32_t want5 = nearest(x, 0, 0x7c, [](uint32_t c) { return e5m2_to_float(uint8_t(c)); });
    ASSERT_EQ(float_to_e5m2(x), want5) << x;
  }
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7e);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(float_to_e5m2(-1e9f), 0xfb);
  EXPECT_EQ(float_to_e4m3(std::nanf("")) & 0x7f, 0x7f);
}

TEST(Dtype, HalfRoundTripsEveryCodeAndRoundsToNearestEven) {
  for (uint32_t c = 0; c < 65536; ++c) {
    const float f = f16_to_float(uint16_t(c));
    if (std::isnan(f)) continue;
    ASSERT_EQ(float_to_f16(f), c) << f;
    const float b = bf16_to_float(uint16_t(c));
    if (!std::isnan(b)) {
      ASSERT_EQ(float_to_bf16(b), c) << b;
    }
  }
  for (uint32_t c = 0; c < 0x7bff; ++c) {  // the midpoint of two neighbours goes to the even one, a hair above it up
    const float low = f16_to_float(uint16_t(c)), high = f16_to_float(uint16_t(c + 1));
    const float mid = 0.5f * (low + high);
    ASSERT_EQ(float_to_f16(mid), (c & 1) ? c + 1 : c);
    ASSERT_EQ(float_to_f16(std::nextafter(mid, 1e9f)), c + 1);
    ASSERT_EQ(float_to_f16(std::nextafter(mid, 0.0f)), c);
  }
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
}

}  // namespace
}  // namespace kvloom
