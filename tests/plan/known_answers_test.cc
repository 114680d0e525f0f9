// Plans whose numbers can be worked out by hand.
#include "batches.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

using test::capacity_of;
using test::gpu_config;
using test::kv_config;
using test::Planned;
using test::small_spec;
using test::TestBatch;

TEST(KnownAnswers, HeapCutsAtAnEvenShare) {
  const AttentionSpec spec = small_spec(1, 1);
  TestBatch b({1, 1, 1, 1}, {1000, 100, 100, 50}, spec);
  const Planned p(spec, capacity_of(b), kv_config(4, Policy::heap), b.batch);
  EXPECT_EQ(p.header().chunk_cap, 313);
  EXPECT_EQ(p.loads(), (std::vector<uint64_t>{313, 313, 313, 311}));
  EXPECT_EQ(p.header().cost_max, 313u);
  EXPECT_EQ(p.header().cost_total, 1250u);
  // A = 313 + 313 + 313 + 61
  std::vector<int32_t> chunks;
  for (const WorkItem& i : p.view.items) {
    if (i.group == 0) chunks.push_back(i.kv_end - i.kv_begin);
  }
  std::sort(chunks.rbegin(), chunks.rend());
  EXPECT_EQ(chunks, (std::vector<int32_t>{313, 313, 313, 61}));
  EXPECT_EQ(p.header().num_units, 1);
  EXPECT_EQ(p.view.units[0].entry_count, 4);
  EXPECT_EQ(test::PlanExecutor(p.view, spec).check(), "");
}

TEST(KnownAnswers, HeapCapIsRoundedUpToTheKvTile) {
  const AttentionSpec spec = small_spec(1, 1);
  TestBatch b({1, 1, 1, 1}, {1000, 100, 100, 50}, spec);
  const Planned p(spec, capacity_of(b), kv_config(4, Policy::heap, 64), b.batch);
  EXPECT_EQ(p.header().chunk_cap, 320);
  EXPECT_EQ(test::PlanExecutor(p.view, spec).check(), "");
}

TEST(KnownAnswers, StreamGivesEqualShares) {
  const AttentionSpec spec = small_spec(1, 1);
  TestBatch b({1, 1, 1, 1}, {1000, 100, 100, 50}, spec);
  const Planned p(spec, capacity_of(b), kv_config(4, Policy::stream), b.batch);
  EXPECT_EQ(p.loads(), (std::vector<uint64_t>{312, 313, 312, 313}));
  EXPECT_EQ(test::PlanExecutor(p.view, spec).check(), "");
}

TEST(KnownAnswers, NoneIsOneCtaAUnit) {
  const AttentionSpec spec = small_spec(1, 1);
  TestBatch b({1, 1, 1, 1}, {1000, 100, 100, 50}, spec);
  const Planned p(spec, capacity_of(b), kv_config(3, Policy::none), b.batch);
  EXPECT_EQ(p.loads(), (std::vector<uint64_t>{1050, 100, 100}));
  EXPECT_EQ(p.header().num_units, 0);
  EXPECT_EQ(p.header().scratch_rows, 0);
}

TEST(KnownAnswers, EqualShortDecodesAreNotCut) {  // 16 x 1024, 8 KV heads: 128 units on 132 CTAs
  const AttentionSpec spec = small_spec(32, 8);
  TestBatch b(std::vector<int32_t>(16, 1), std::vector<int32_t>(16, 1024), spec);
  for (Policy policy : {Policy::stream, Policy::automatic, Policy::fill}) {
    const Planned p(spec, capacity_of(b), gpu_config(132, policy), b.batch);
    EXPECT_EQ(p.header().num_units, 0);
    EXPECT_EQ(p.header().num_items, 128);
    for (int32_t c = 0; c < 132; ++c) EXPECT_LE(p.view.cta_indptr[c + 1] - p.view.cta_indptr[c], 1);
  }
}

TEST(KnownAnswers, OneLongDecodeIsSpreadOverAllCtas) {  // 1 x 32768, 8 KV heads
  const AttentionSpec spec = small_spec(32, 8);
  TestBatch b({1}, {32768}, spec);
  for (Policy policy : {Policy::stream, Policy::heap, Policy::automatic}) {
    const Planned p(spec, capacity_of(b), gpu_config(132, policy), b.batch);
    EXPECT_EQ(p.header().num_units, 8);
    EXPECT_LE(p.header().num_entries, 139);  // 8 units, fewer than 132 cuts
    EXPECT_LE(p.header().cost_max, p.header().cost_total / 132 + 64 * 15 + 300);
    EXPECT_EQ(p.header().policy, policy == Policy::stream ? Policy::stream : Policy::heap);
    EXPECT_EQ(test::PlanExecutor(p.view, spec).check(), "");
  }
}

TEST(KnownAnswers, ZipfDecodeIsBalanced) {  // 64 requests, lengths 1 / rank, mean 4096
  const AttentionSpec spec = small_spec(32, 8);
  std::vector<int32_t> kv;
  double harmonic = 0;
  for (int r = 1; r <= 64; ++r) harmonic += 1.0 / r;
  for (int r = 1; r <= 64; ++r) kv.push_back(int32_t(64 * 4096 / harmonic / r));
  TestBatch b(std::vector<int32_t>(64, 1), kv, spec);
  const Planned p(spec, capacity_of(b), gpu_config(132, Policy::stream), b.batch);
  EXPECT_LE(p.header().cost_max, p.header().cost_total / 132 + 64 * 15 + 300);
}

TEST(KnownAnswers, OneLongRequestAmongMany) {  // 122k tokens among 43 requests of about 7k
  const AttentionSpec spec = small_spec(32, 8);
  std::vector<int32_t> kv(43, 7000);
  kv[17] = 122000;
  TestBatch b(std::vector<int32_t>(43, 1), kv, spec);
  for (Policy policy : {Policy::stream, Policy::heap, Policy::fill, Policy::automatic}) {
    const Planned p(spec, capacity_of(b), gpu_config(132, policy), b.batch);
    const uint64_t mean = p.header().cost_total / 132;
    EXPECT_LE(p.header().cost_max, policy == Policy::heap ? mean + mean / 8 : mean + 64 * 15 + 300);
  }
}

TEST(KnownAnswers, ShortPrefillIsNotCut) {  // 1 x 512 causal: units of one to four key tiles
  AttentionSpec spec = small_spec(32, 8);
  spec.variant.range.causal = true;
  TestBatch b({512}, {512}, spec);
  const Planned p(spec, capacity_of(b), gpu_config(132, Policy::automatic), b.batch);
  EXPECT_EQ(p.header().policy, Policy::fill);
  EXPECT_EQ(p.header().num_units, 0);
}

TEST(KnownAnswers, ShortQueryOnALongContextIsCut) {  // 64 new tokens on 65,536
  AttentionSpec spec = small_spec(32, 8);
  spec.variant.range.causal = true;
  TestBatch b({64}, {65536}, spec);
  const Planned p(spec, capacity_of(b), gpu_config(132, Policy::automatic), b.batch);
  EXPECT_GT(p.header().num_units, 0);
  const uint64_t mean = p.header().cost_total / 132;
  EXPECT_LE(p.header().cost_max, mean + mean / 10);
}

TEST(KnownAnswers, LongestQueryIsADifference) {  // B75: qo_indptr [0, 3, 6, 9] has queries of 3, not 9
  const AttentionSpec spec = small_spec(4, 1);
  TestBatch b({3, 3, 3}, {10, 10, 10}, spec);
  const Planned p(spec, capacity_of(b), gpu_config(4, Policy::none), b.batch);
  EXPECT_EQ(p.header().num_items, 3);
  for (const WorkItem& i : p.view.items) EXPECT_EQ(i.row_count, 12);  // 3 tokens x 4 heads, class 0: no more than 16 rows
  for (const WorkItem& i : p.view.items) EXPECT_EQ(i.kernel_class, 0);
}

TEST(KnownAnswers, HugeLengths) {  // B41, B78
  AttentionSpec spec = small_spec(32, 8);
  for (int32_t kv : {4'300'000, 536'870'912}) {
    TestBatch b({1}, {kv}, spec);
    for (Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
      const Planned p(spec, capacity_of(b), gpu_config(132, policy), b.batch);
      if (policy != Policy::none) {
        EXPECT_LE(p.header().cost_max, p.header().cost_total / 132 + 256 * 15 + 300);
      }
      int64_t keys = 0;
      for (const WorkItem& i : p.view.items) keys += i.kv_end - i.kv_begin;
      EXPECT_EQ(keys, int64_t(kv) * 8);
    }
  }
}

TEST(KnownAnswers, OneMillionTokensAmongTinyRequests) {  // B78
  AttentionSpec spec = small_spec(32, 8);
  std::vector<int32_t> kv(200, 1);
  kv.push_back(1'000'000);
  TestBatch b(std::vector<int32_t>(201, 1), kv, spec);
  for (Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
    const Planned p(spec, capacity_of(b), gpu_config(132, policy), b.batch);
    if (policy != Policy::none) {
      EXPECT_LE(p.header().cost_max, p.header().cost_total / 132 + 256 * 15 + 600) << int(policy);
    }
    int64_t keys = 0;
    for (const WorkItem& i : p.view.items) keys += i.kv_end - i.kv_begin;
    EXPECT_EQ(keys, int64_t(1'000'200) * 8);
  }
}

}  // namespace
}  // namespace kvloom
