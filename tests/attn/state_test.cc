// The algebra: identity, commutativity, associativity, exactness, and the empty state never becoming NaN (B07, B44).
#include "kvloom/attn/state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvloom {
namespace {

constexpr float kInf = __builtin_inff();

TEST(State, B07_MergeOfTwoEmptyStatesIsEmpty) {
  const MergeWeights w = merge_weights(-kInf, -kInf);
  EXPECT_EQ(w.a, 0.0f);
  EXPECT_EQ(w.b, 0.0f);
  EXPECT_EQ(w.lse, -kInf);
}

TEST(State, B44_PlusInfinityIsTakenForEmpty) {
  for (const float empty : {-kInf, kInf}) {
    const MergeWeights left = merge_weights(empty, 1.5f), right = merge_weights(1.5f, empty);
    EXPECT_EQ(left.a, 0.0f);
    EXPECT_EQ(left.b, 1.0f);
    EXPECT_EQ(left.lse, 1.5f);
    EXPECT_EQ(right.a, 1.0f);
    EXPECT_EQ(right.b, 0.0f);
    EXPECT_EQ(right.lse, 1.5f);
  }
}

TEST(State, WeightsSumToOneAndMatchDouble) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> lse(-80.0f, 80.0f);
  for (int i = 0; i < 100000; ++i) {
    const float a = lse(random), b = lse(random);
    const MergeWeights w = merge_weights(a, b);
    const double m = std::fmax(a, b), ea = std::exp(a - m), eb = std::exp(b - m);
    ASSERT_NEAR(w.a, ea / (ea + eb), 1e-6);
    ASSERT_NEAR(w.b, eb / (ea + eb), 1e-6);
    ASSERT_NEAR(w.lse, m + std::log(ea + eb), 1e-5);
    const MergeWeights s = merge_weights(b, a);
    ASSERT_EQ(s.a, w.b);
    ASSERT_EQ(s.lse, w.lse);
  }
}

TEST(State, MergeIsAssociativeUpToRounding) {
  std::mt19937 random(2);
  std::normal_distribution<float> x(0.0f, 5.0f);
  for (int i = 0; i < 100000; ++i) {
    const float a = x(random), b = x(random), c = x(random), oa = x(random), ob = x(random), oc = x(random);
    const MergeWeights ab = merge_weights(a, b), ab_c = merge_weights(ab.lse, c);
    const MergeWeights bc = merge_weights(b, c), a_bc = merge_weights(a, bc.lse);
    const float left = ab_c.a * (ab.a * oa + ab.b * ob) + ab_c.b * oc;
    const float right = a_bc.a * oa + a_bc.b * (bc.a * ob + bc.b * oc);
    ASSERT_NEAR(left, right, 2e-5);
    ASSERT_NEAR(ab_c.lse, a_bc.lse, 1e-5);
  }
}

TEST(State, SinkIsAStateWithoutValue) {
  const RowFinish w = sink_weights(2.0f, 1.0f);
  EXPECT_NEAR(w.factor, std::exp(2.0) / (std::exp(2.0) + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(w.lse, std::log(std::exp(2.0) + std::exp(1.0)), 1e-6);
  const RowFinish empty = sink_weights(-kInf, 1.0f);
  EXPECT_EQ(empty.factor, 0.0f);
  EXPECT_EQ(empty.lse, 1.0f);
}

}  // namespace
}  // namespace kvloom
