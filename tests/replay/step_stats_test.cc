// Bytes, operations and balance of a step, against counting by hand.
#include "cli/replay/step_stats.h"

#include "kvloom/api/engine.h"
#include "kvloom/attn/mask.h"
#include "kvloom/support/error.h"

#include <gtest/gtest.h>

namespace kvloom::replay {
namespace {

TEST(StepStats, KeptKeysAreThoseOfTheMask) {
  for (const int32_t left : {-1, 0, 1, 5, 100}) {
    for (int64_t kv_len = 0; kv_len < 24; ++kv_len) {
      for (int64_t q_len = 0; q_len <= kv_len; ++q_len) {
        const KeyRange range{true, left, -1};
        int64_t pairs = 0, first = kv_len;
        for (int64_t q = kv_len - q_len; q < kv_len; ++q) {
          for (int64_t k = 0; k < kv_len; ++k) {
            if (!keeps(range, 0, int32_t(q), int32_t(k))) continue;
            ++pairs;
            first = std::min(first, k);
          }
        }
        EXPECT_EQ(kept_keys(q_len, kv_len, left), pairs) << q_len << " of " << kv_len << ", left " << left;
        if (q_len > 0) {
          EXPECT_EQ(first_kept_key(q_len, kv_len, left), first) << q_len << " of " << kv_len << ", left " << left;
        }
      }
    }
  }
}

/// A step of requests with pages of 16; the first `shared` pages of all of them are the same.
struct Planned {
  std::vector<int32_t> qo_indptr{0}, kv_len, pages;
  std::vector<int64_t> list_indptr{0};
  std::vector<Slice> slices;
  AttentionSpec spec;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Plan> plan;

  Planned(const std::vector<Slice>& steps, int32_t shared, const EngineOptions& options, int32_t window_left = -1) : slices(steps) {
    spec.num_qo_heads = 8;
    spec.num_kv_heads = 2;
    spec.head_dim_qk = spec.head_dim_vo = 64;
    spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::bf16;
    spec.page_size = 16;
    spec.variant.range = {true, window_left, -1};
    int32_t next = shared;
    Capacity capacity;
    for (const Slice& s : slices) {
      for (int32_t p = 0; p * 16 < s.kv_len; ++p) pages.push_back(p < shared ? p : next++);
      list_indptr.push_back(int64_t(pages.size()));
      qo_indptr.push_back(qo_indptr.back() + s.q_len);
      kv_len.push_back(s.kv_len);
      capacity.max_kv_tokens += s.kv_len;
    }
    capacity.max_requests = int32_t(slices.size());
    capacity.max_query_tokens = qo_indptr.back();
    capacity.max_level_rows = 3 * qo_indptr.back();
    Batch b;
    b.num_requests = int32_t(slices.size());
    b.qo_indptr = IndexView(qo_indptr.data(), int64_t(qo_indptr.size()));
    b.kv_len = IndexView(kv_len.data(), int64_t(kv_len.size()));
    b.list_indptr = IndexView(list_indptr.data(), int64_t(list_indptr.size()));
    b.pages = IndexView(pages.data(), int64_t(pages.size()));
    engine = std::make_unique<Engine>(spec, capacity, options);
    plan = std::make_unique<Plan>(engine->plan(b));
  }

  StepStats stats() const { return step_stats(plan->view(), spec, slices, int64_t(2) * 128 * 2); }
};

TEST(StepStats, CountsTheBytesAndOperationsOfAStep) {
  EngineOptions options;
  options.levels = LevelMode::off;
  const StepStats s = Planned({{0, 1, 1000}, {1, 1, 17}, {2, 40, 300}}, 0, options).stats();
  EXPECT_EQ(s.flat_bytes, (1000 + 17 + 300) * 512);
  EXPECT_EQ(s.read_bytes, s.flat_bytes);
  const double pairs = 1000 + 17 + (261 + 300) * 40 / 2;
  EXPECT_DOUBLE_EQ(s.flop, 2.0 * pairs * 8 * 128);
  EXPECT_GE(s.balance, 1.0);
}

TEST(StepStats, WindowsReadOnlyWhatTheyKeep) {
  EngineOptions options;
  options.levels = LevelMode::off;
  const StepStats s = Planned({{0, 1, 5000}, {1, 3, 2000}}, 0, options, 255).stats();
  EXPECT_EQ(s.flat_bytes, (256 + 258) * 512);
  EXPECT_GE(s.read_bytes, s.flat_bytes);
  EXPECT_LE(s.read_bytes, (256 + 258 + 2 * 256) * 512);  // begins and ends may be rounded to tiles
}

TEST(StepStats, SharedPrefixesAreCountedOnce) {
  std::vector<Slice> slices;
  for (int32_t r = 0; r < 16; ++r) slices.push_back({r, 1, 2048 + 64});
  const StepStats s = Planned(slices, 128, EngineOptions{}).stats();
  ASSERT_EQ(s.levels, 2);
  EXPECT_EQ(s.flat_bytes, 16 * 2112 * 512);
  EXPECT_EQ(s.read_bytes, (2048 + 16 * 64) * 512);
}

TEST(StepStats, BalanceIsTheCostOfTheMostLoadedCtaOverTheMean) {
  EngineOptions options;
  options.levels = LevelMode::off;
  options.num_ctas = 4;
  options.policy = Policy::none;
  const StepStats none = Planned({{0, 1, 4096}}, 0, options).stats();
  EXPECT_FALSE(none.can_split);
  EXPECT_GT(none.balance, 1.5);  // two KV heads at most keep two of four CTAs busy
  options.policy = Policy::stream;
  const StepStats stream = Planned({{0, 1, 40960}}, 0, options).stats();
  EXPECT_TRUE(stream.can_split);
  EXPECT_LT(stream.balance, 1.05);
  EXPECT_LE(stream.excess_tiles, 1.0);
  EXPECT_EQ(stream.policy, Policy::stream);
}

}  // namespace
}  // namespace kvloom::replay
