// exp2, tanh and the logistic function against double precision, over their whole ranges; the vector forms too.
#include "kvloom/attn/exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

// The vector exp2 of the portable target, compiled here as its kernels do it (AVX2: exp_avx2_test.cc).
#define KVLOOM_TARGET portable
#include "kvloom/cpu/simd_portable.h"

#include "kvloom/cpu/microkernel.inl"

namespace kvloom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Every step-th float of [low, high].
template <class F>
void for_floats(float low, float high, uint32_t step, F f) {
  for (uint64_t u = float_to_bits(low); u <= float_to_bits(high); u += step) f(bits_to_float(static_cast<uint32_t>(u)));
}

TEST(Exp, Exp2OverItsWholeRange) {
  double worst = 0;
  const auto check = [&](float t) {
    const double wanted = std::exp2(double(t));
    worst = std::max(worst, std::abs(exp2_of(t) - wanted) / wanted);
  };
  for_floats(1e-30f, 125.0f, 4099, [&](float t) { check(-t), check(t); });
  EXPECT_LE(worst, 2.5e-7);
}

TEST(Exp, Exp2AtItsEnds) {
  EXPECT_EQ(exp2_of(0.0f), 1.0f);
  EXPECT_EQ(exp2_of(-0.0f), 1.0f);
  EXPECT_EQ(exp2_of(-kInf), 0.0f);
  EXPECT_EQ(exp2_of(-127.0f), 0.0f);
  EXPECT_EQ(exp2_of(-1e30f), 0.0f);
  EXPECT_EQ(exp2_of(1000.0f), std::exp2(127.0f));
  EXPECT_TRUE(std::isnan(exp2_of(std::numeric_limits<float>::quiet_NaN())));
  for (int n = -126; n <= 127; ++n) EXPECT_EQ(exp2_of(float(n)), std::ldexp(1.0f, n));
  for_floats(125.0f, 128.0f, 7, [&](float t) { ASSERT_NEAR(exp2_of(-t), std::exp2(-double(t)), std::ldexp(1.0, -126)); });
}

TEST(Exp, VectorExp2OverItsWholeRange) {
  double worst = 0;
  for_floats(1e-30f, 125.0f, 4099, [&](float t) {
    const float x[4] = {-t, -0.5f * t, -t, -0.25f * t};
    float y[4];
    cpu::portable::store(y, cpu::portable::exp2(cpu::portable::load(x)));
    for (int i = 0; i < 4; ++i) worst = std::max(worst, std::abs(y[i] / std::exp2(double(x[i])) - 1.0));
  });
  EXPECT_LE(worst, 2.5e-7);
}

TEST(Exp, VectorExp2AtItsEnds) {
  const float x[4] = {-kInf, 0.0f, -127.0f, std::numeric_limits<float>::quiet_NaN()};
  float y[4];
  cpu::portable::store(y, cpu::portable::exp2(cpu::portable::load(x)));
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isnan(y[3]));
}

TEST(Exp, TanhOverItsWholeRange) {
  double worst = 0;
  const auto check = [&](float x) {
    const double wanted = std::tanh(double(x));
    worst = std::max(worst, std::abs(tanh_of(x) - wanted) / std::abs(wanted));
  };
  for_floats(1e-20f, 100.0f, 4099, [&](float x) { check(x), check(-x); });
  EXPECT_LE(worst, 6e-7);
  EXPECT_EQ(tanh_of(0.0f), 0.0f);
  EXPECT_EQ(tanh_of(kInf), 1.0f);
  EXPECT_EQ(tanh_of(-kInf), -1.0f);
  EXPECT_TRUE(std::isnan(tanh_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Exp, SigmoidOverItsWholeRange) {
  double worst = 0;
  for_floats(1e-20f, 80.0f, 4099, [&](float t) {
    for (const float x : {t, -t}) {
      const double wanted = 1.0 / (1.0 + std::exp(-double(x)));
      worst = std::max(worst, std::abs(sigmoid_of(x) - wanted) / wanted);
    }
  });
  EXPECT_LE(worst, 6e-6);  // x log2(e) has an error of half a unit in the last place of 115
  EXPECT_EQ(sigmoid_of(kInf), 1.0f);
  EXPECT_EQ(sigmoid_of(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(sigmoid_of(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace kvloom
