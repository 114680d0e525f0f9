// The vector exp2 of the AVX2 target over its whole range.
#if defined(__x86_64__)
#include "kvloom/attn/exp.h"  // before the options below: what it holds must inline into any code
#include "kvloom/cpu/target.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define KVLOOM_TARGET avx2
#include "kvloom/cpu/simd_avx2.h"

#include "kvloom/cpu/microkernel.inl"
namespace {
__attribute__((noinline)) void exp2_avx2(const float* t, float* y) {
  kvloom::cpu::avx2::store(y, kvloom::cpu::avx2::exp2(kvloom::cpu::avx2::load(t)));
}
}  // namespace
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace kvloom {
namespace {

TEST(Exp, Avx2Exp2OverItsWholeRange) {
  if (!cpu::is_available(cpu::Target::avx2)) GTEST_SKIP() << "this processor has no AVX2; exp_test.cc has the same polynomial without it";
  double worst = 0;
  for (uint64_t u = float_to_bits(1e-30f); u <= float_to_bits(125.0f); u += 4099) {
    const float t = -bits_to_float(static_cast<uint32_t>(u));
    const float x[8] = {t, 0.5f * t, t, 0.25f * t, t, t, 0.75f * t, t};
    float y[8];
    exp2_avx2(x, y);
    for (int i = 0; i < 8; ++i) worst = std::max(worst, std::abs(y[i] / std::exp2(double(x[i])) - 1.0));
  }
  EXPECT_LE(worst, 1.2e-7);
}

TEST(Exp, Avx2Exp2AtItsEnds) {
  if (!cpu::is_available(cpu::Target::avx2)) GTEST_SKIP() << "this processor has no AVX2; exp_test.cc has the same polynomial without it";
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float x[8] = {-inf, 0.0f, -127.0f, nan, -1.0f, -0.0f, -1e30f, -126.0f};
  const float wanted[8] = {0.0f, 1.0f, 0.0f, nan, 0.5f, 1.0f, 0.0f, std::ldexp(1.0f, -126)};
  float y[8];
  exp2_avx2(x, y);
  for (int i = 0; i < 8; ++i) {
    if (i == 3) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else {
      EXPECT_EQ(y[i], wanted[i]) << x[i];
    }
  }
}

}  // namespace
}  // namespace kvloom
#endif
