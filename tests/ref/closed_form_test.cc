// REF against answers that need no reference: closed forms small enough to do by hand.
#include "kvloom/ref/ref.h"
#include "tests/support/one_request.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

namespace kvloom::ref {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One request, one head, dim 2, ragged fp32; K[j] = (key score, 0) against q = (1, 0), V[j] = (j, 1).
struct Tiny {
  AttentionSpec spec;
  Batch batch;
  AttendParams params;
  std::vector<int32_t> qo_indptr, kv_len, list_indptr{0};
  std::vector<float> q, k, v;
  std::vector<Row> rows;
  std::vector<double> o, lse;
  int64_t page_stride = 2;

  Tiny(int32_t q_len, std::vector<float> scores) : qo_indptr{0, q_len}, kv_len{int32_t(scores.size())} {
    spec.num_qo_heads = spec.num_kv_heads = 1;
    spec.head_dim_qk = spec.head_dim_vo = 2;
    spec.storage = Storage::ragged;
    spec.sm_scale = 1.0f;
    for (int32_t i = 0; i < q_len; ++i) {
      for (const float x : {1.0f, 0.0f}) q.push_back(x);
      rows.push_back({i, 0});
    }
    for (size_t j = 0; j < scores.size(); ++j) {
      for (const float x : {scores[j], 0.0f}) k.push_back(x);
      for (const float x : {float(j), 1.0f}) v.push_back(x);
    }
    batch.num_requests = 1;
  }

  void run() {
    batch.qo_indptr = IndexView(qo_indptr.data(), 2);
    batch.kv_len = IndexView(kv_len.data(), 1);
    batch.list_indptr = IndexView(list_indptr.data(), 1);
    params.q = q.data();
    params.q_token = params.q_head = 2;
    params.kv = {k.data(), v.data(), page_stride, 2, 2, page_stride, 2, 2, int64_t(k.size()) / page_stride};
    o.assign(rows.size() * 2, 99.0);
    lse.assign(rows.size(), 99.0);
    attend_rows(spec, batch, params, {rows.data(), int64_t(rows.size())}, o.data(), lse.data());
  }
};

TEST(Ref, TwoKeysWithScoresZeroAndTwo) {
  Tiny t(1, {0.0f, 2.0f});
  t.run();
  EXPECT_NEAR(t.o[0], 1.0 / (1.0 + std::exp(-2.0)), 1e-15);  // 0.8808: the weight of key 1
  EXPECT_NEAR(t.o[1], 1.0, 1e-15);
  EXPECT_NEAR(t.lse[0], std::log(1.0 + std::exp(2.0)), 1e-15);
}

TEST(Ref, EqualScoresGiveTheMeanAndTheLogOfTheCount) {
  Tiny t(1, {0, 0, 0, 0});
  t.run();
  EXPECT_NEAR(t.o[0], 1.5, 1e-15);
  EXPECT_NEAR(t.lse[0], std::log(4.0), 1e-15);
}

TEST(Ref, CausalIsBottomRightAligned) {
  Tiny t(2, {0, 0, 0});
  t.spec.variant.range.causal = true;
  t.run();
  EXPECT_NEAR(t.o[0], 0.5, 1e-15);  // keys 0, 1
  EXPECT_NEAR(t.o[2], 1.0, 1e-15);  // keys 0, 1, 2
}

TEST(Ref, MoreQueriesThanKeysLeaveEmptyRows) {
  Tiny t(3, {0, 0});
  t.spec.variant.range.causal = true;
  t.run();
  EXPECT_EQ(t.o[0], 0.0);
  EXPECT_EQ(t.lse[0], -kInf);
  EXPECT_NEAR(t.lse[1], 0.0, 1e-15);
  EXPECT_NEAR(t.lse[2], std::log(2.0), 1e-15);
}

TEST(Ref, AWindowOfLeftKeepsLeftPlusOneKeys) {
  Tiny t(1, {0, 0, 0, 0, 0});
  t.spec.variant.range = {true, 1, -1};
  t.run();
  EXPECT_NEAR(t.o[0], 3.5, 1e-15);  // keys 3, 4
  t.spec.variant.range = {true, 0, -1};
  t.run();
  EXPECT_NEAR(t.o[0], 4.0, 1e-15);
  const int32_t prefix[] = {2};
  t.batch.prefix = prefix;
  t.run();
  EXPECT_NEAR(t.o[0], 5.0 / 3.0, 1e-15);  // keys 0, 1, 4
}

TEST(Ref, RightBoundAndExplicitPositions) {
  Tiny t(1, {0, 0, 0, 0, 0});
  t.spec.variant.range = {false, -1, 1};
  const int32_t pos[] = {2};
  t.batch.q_pos = pos;
  t.run();
  EXPECT_NEAR(t.lse[0], std::log(4.0), 1e-15);  // keys 0 .. 3
  t.batch.q_pos = nullptr;
  t.batch.q_pos0 = pos;
  t.run();
  EXPECT_NEAR(t.lse[0], std::log(4.0), 1e-15);
}

TEST(Ref, SinkAddsToTheDenominatorOnly) {
  Tiny t(1, {1.0f});
  t.spec.variant.sink = true;
  const float sink[] = {1.0f};
  t.params.variant.sink = sink;
  t.run();
  EXPECT_NEAR(t.o[1], 0.5, 1e-15);
  EXPECT_NEAR(t.lse[0], 1.0 + std::log(2.0), 1e-15);
  t.params.bare_state = true;
  t.run();
  EXPECT_NEAR(t.o[1], 1.0, 1e-15);
  EXPECT_NEAR(t.lse[0], 1.0, 1e-15);
}

TEST(Ref, AnEmptyRowWithASinkHasTheSinksLse) {
  Tiny t(1, {});
  t.spec.variant.sink = true;
  const float sink[] = {0.25f};
  t.params.variant.sink = sink;
  t.run();
  EXPECT_EQ(t.o[1], 0.0);
  EXPECT_NEAR(t.lse[0], 0.25, 1e-15);
}

TEST(Ref, SigmoidSumsWithoutNormalising) {
  Tiny t(1, {0.0f, 1.0f});
  t.spec.variant.reduction = Reduction::sum;
  t.spec.variant.sigmoid_bias = -0.5f;
  t.run();
  const double a = 1.0 / (1.0 + std::exp(0.5)), b = 1.0 / (1.0 + std::exp(-0.5));
  EXPECT_NEAR(t.o[0], b, 1e-15);
  EXPECT_NEAR(t.o[1], a + b, 1e-15);
  EXPECT_EQ(t.lse[0], 0.0);
}

TEST(Ref, SoftCapComesAfterAlibiAndBeforeTheMask) {
  Tiny t(1, {3.0f, 4.0f});
  t.spec.variant.alibi = true;
  t.spec.variant.soft_cap = 2.0f;
  const float slope[] = {0.5f};
  t.params.variant.alibi_slopes = slope;
  t.run();
  const double a = 2.0 * std::tanh(2.5 / 2.0), b = 2.0 * std::tanh(4.0 / 2.0);
  EXPECT_NEAR(t.lse[0], std::log(std::exp(a) + std::exp(b)), 1e-14);
}

TEST(Ref, CustomMaskBitsAreLittleEndianAndMayMaskAWholeRow) {
  Tiny t(2, {0, 0, 0, 0, 0});
  t.spec.variant.custom_mask = true;
  const uint8_t bits[] = {0b00010010, 0};  // row 0 keeps columns 1 and 4
  const int64_t indptr[] = {0, 2};
  t.params.variant.mask = bits;
  t.params.variant.mask_indptr = indptr;
  t.run();
  EXPECT_NEAR(t.o[0], 2.5, 1e-15);
  EXPECT_EQ(t.o[2], 0.0);
  EXPECT_EQ(t.lse[1], -kInf);
}

TEST(Ref, PageIdsGatherAndIgnoredKeysAreNeverRead) {
  Tiny t(1, {0, 0, 0, 0, 0, 0});  // three pages of two tokens
  const float nan = std::numeric_limits<float>::quiet_NaN();
  t.spec.storage = Storage::paged;
  t.spec.page_size = 2;
  t.kv_len = {3};
  const int64_t pages[] = {0x7fffffffffff, 2, 1};  // list begins at entry 1: tokens 4, 5, 2; token 3 is the unused tail
  t.list_indptr = {1};
  t.k[6] = t.v[6] = t.v[7] = nan;
  t.batch.pages = IndexView(pages, 3);
  t.page_stride = 4;
  t.run();
  EXPECT_NEAR(t.o[0], 11.0 / 3.0, 1e-15);
  EXPECT_NEAR(t.lse[0], std::log(3.0), 1e-15);
}

TEST(Ref, RopeMakesTheLogitDependOnDistanceOnly) {
  for (const RopeMode mode : {RopeMode::interleaved, RopeMode::half_split}) {
    Tiny t(1, {1.0f, 1.0f, 1.0f});
    t.spec.variant.rope = {mode, 2, 10000.0f, 1.0f, 0.0f, 0.0f, 8192.0f};
    const int32_t pos[] = {7};
    t.batch.q_pos = pos;
    t.run();
    double sum = 0.0;
    for (const int j : {0, 1, 2}) sum += std::exp(std::cos(7.0 - j));
    EXPECT_NEAR(t.lse[0], std::log(sum), 1e-14);
  }
}

TEST(Ref, ARowOfAHundredThousandKeysTakesMilliseconds) {
  const int32_t n = 100000;
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.kv_dtype = DType::bf16;
  spec.storage = Storage::ragged;
  std::vector<uint16_t> kv(int64_t(n) * 128, float_to_bf16(1.0f));
  std::vector<float> q(128, 0.0f);
  std::vector<double> o(128);
  double lse;
  const test::OneRequest one_request(1, n);
  AttendParams params;
  params.q = q.data();
  params.kv = {kv.data(), kv.data(), 128, 128, 0, 128, 128, 0, n};
  const Row row{0, 0};
  const auto start = std::chrono::steady_clock::now();
  attend_rows(spec, one_request.batch, params, {&row, 1}, o.data(), &lse);
  RecordProperty("milliseconds",
                 std::to_string(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count()));
  EXPECT_NEAR(lse, std::log(double(n)), 1e-11);  // 1e5 roundings of a running sum
  EXPECT_NEAR(o[0], 1.0, 1e-11);
}

}  // namespace
}  // namespace kvloom::ref
