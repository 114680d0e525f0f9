// RANGE and FP8: logits far from zero, and scales.
#include "tests/bugs/bug_case.h"

#include "cli/check/random.h"

#include <cmath>

namespace kvloom::bugs {
namespace {

TEST(Range, B08_LogitsBelowMinusFiftyThousandAreLogits) {
  Case c;
  c.seed = 8;
  c.spec.num_qo_heads = 16;
  c.spec.num_kv_heads = 1;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 128;
  c.spec.q_dtype = c.spec.kv_dtype = c.spec.o_dtype = DType::bf16;
  c.spec.page_size = 16;
  c.spec.sm_scale = 1.0f;
  for (const int32_t kv_len : {64, 1}) {
    c.q_len = {1};
    c.kv_len = {kv_len};
    CaseData data(c);
    for (int32_t h = 0; h < 16; ++h) data.set_q(0, h, std::vector<float>(128, 1.0f));
    for (int32_t j = 0; j < kv_len; ++j) {
      const float level = j == 0 ? -1e5f + 5000.0f : -1e5f;
      data.set_k(0, j, 0, std::vector<float>(128, level / 128.0f));
      data.set_v(0, j, 0, std::vector<float>(128, float(j + 1)));
    }
    for (const Policy policy : {Policy::none, Policy::stream, Policy::fill, Policy::fixed_split}) {
      const Output got = run_once(data, with_policy(policy));
      for (const float x : got.o) ASSERT_EQ(x, 1.0f);  // key 0 alone counts
      const float logit = 128.0f * bf16_to_float(float_to_bf16((-1e5f + 5000.0f) / 128.0f));
      for (const float lse : got.lse) ASSERT_FLOAT_EQ(lse, logit);
    }
  }
}

TEST(Fp8, B25_WindowedPrefillPastOneTileEnds) {
  const Watchdog watchdog(120);
  expect_right("B25");
}

TEST(Fp8, B82_ScalesCountOnceOnEveryPath) {
  expect_right("B82");
  CaseData one(bug_case("B82.scale_1")), three(bug_case("B82.scale_3"));
  const Output a = run_once(one), b = run_once(three);
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.o.size(); ++i) {
    difference += std::pow(double(a.o[i]) - b.o[i], 2);
    norm += std::pow(double(a.o[i]), 2);
  }
  EXPECT_GT(std::sqrt(difference / norm), 0.5);
}

TEST(Fp8, B83_E4m3IsMoreAccurateThanE5m2) {
  expect_right("B83");
  for (const float gain : {0.25f, 2.0f}) {  // uniform and peaked scores
    for (const int32_t kv_len : {256, 4096}) {
      Case c;
      c.seed = 83;
      c.spec.num_qo_heads = c.spec.num_kv_heads = 1;
      c.spec.head_dim_qk = c.spec.head_dim_vo = 128;
      c.spec.page_size = 64;
      c.q_len = {8};
      c.kv_len = {kv_len};
      c.q_gain = gain;
      std::vector<double> exact, exact_lse, o, lse;
      CaseData(c).reference(exact, exact_lse);
      double error[2];
      for (const DType type : {DType::e4m3, DType::e5m2}) {
        c.spec.kv_dtype = type;
        CaseData data(c);
        check::CaseOptions options;
        options.schedules = {{Policy::automatic, 16, LevelMode::automatic}};
        expect_right(data, options);
        const Output got = run_once(data);
        double difference = 0.0, norm = 0.0;
        for (size_t i = 0; i < exact.size(); ++i) {
          difference += std::pow(got.o[i] - exact[i], 2);
          norm += exact[i] * exact[i];
        }
        error[type == DType::e5m2] = std::sqrt(difference / norm);
      }
      EXPECT_LT(error[0], 0.65 * error[1]) << gain << " " << kv_len;
    }
  }
}

TEST(Range, B85_TheSoftmaxIsNeitherFlatterNorSharperThanItShouldBe) {
  // Two keys with scores 0 and 2: weights 0.1192 and 0.8808, whatever the types, the storage, and the number of rows.
  const double heavy = 1.0 / (1.0 + std::exp(-2.0));
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const Storage storage : {Storage::ragged, Storage::paged}) {
      for (const int32_t q_len : {1, 2, 40}) {
        for (const int32_t dim : {64, 576}) {
          Case c;
          c.spec.num_qo_heads = c.spec.num_kv_heads = 1;
          c.spec.head_dim_qk = dim;
          c.spec.head_dim_vo = 64;
          c.spec.q_dtype = c.spec.kv_dtype = type;
          c.spec.storage = storage;
          c.spec.page_size = 1;
          c.spec.sm_scale = 1.0f;
          c.q_len = {q_len};
          c.kv_len = {2};
          CaseData data(c);
          std::vector<float> first(size_t(dim), 0.0f), two(size_t(dim), 0.0f);
          first[0] = 1.0f;
          two[0] = 2.0f;
          for (int32_t i = 0; i < q_len; ++i) data.set_q(i, 0, first);
          data.set_k(0, 0, 0, std::vector<float>(size_t(dim), 0.0f));
          data.set_k(0, 1, 0, two);
          data.set_v(0, 0, 0, std::vector<float>(64, 0.0f));
          data.set_v(0, 1, 0, std::vector<float>(64, 1.0f));
          for (const Policy policy : {Policy::none, Policy::stream, Policy::fixed_split}) {
            for (const float x : run_once(data, with_policy(policy)).o) ASSERT_NEAR(x, heavy, 3e-7);
          }
        }
      }
    }
  }
}

TEST(Values, B96_TheSecondValueOfAConstantIsNotTheFirst) {
  // Scale, cap, window, slope and bias are values: one engine's never stand in for another's, in either order.
  Case base;
  base.seed = 96;
  base.spec.num_qo_heads = 2;
  base.spec.num_kv_heads = 1;
  base.spec.head_dim_qk = base.spec.head_dim_vo = 128;
  base.spec.q_dtype = base.spec.kv_dtype = base.spec.o_dtype = DType::bf16;
  base.spec.page_size = 16;
  base.spec.variant.range.causal = true;
  base.q_len = {5};
  base.kv_len = {150};
  base.q_gain = 2.0f;
  std::vector<Case> cases(10, base);
  cases[0].spec.sm_scale = 0.08838834764f;
  cases[1].spec.sm_scale = 3.0f * 0.08838834764f;
  cases[2].spec.variant.soft_cap = 30.0f;
  cases[3].spec.variant.soft_cap = 50.0f;
  cases[4].spec.variant.range.left = 16;
  cases[5].spec.variant.range.left = 64;
  cases[6].spec.variant.rope = {RopeMode::half_split, 0, 10000.0f, 1.0f, 0.0f, 0.0f, 8192.0f};
  cases[7].spec.variant.rope = {RopeMode::half_split, 0, 500000.0f, 1.0f, 0.0f, 0.0f, 8192.0f};
  cases[8].spec.kv_dtype = DType::f16;
  cases[9].spec.kv_dtype = DType::e4m3;
  check::CaseOptions options;
  options.schedules = {{Policy::automatic, 7, LevelMode::automatic}};
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const size_t j : {i ^ 1, i}) {
      CaseData data(cases[j]);
      expect_right(data, options);
    }
  }
}

}  // namespace
}  // namespace kvloom::bugs
