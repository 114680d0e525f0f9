// No CTA has much more than its share.
#include "kvloom/plan/paper.h"
#include "random_batches.h"

#include <gtest/gtest.h>

#include <set>

namespace kvloom {
namespace {

using test::capacity_of;
using test::gpu_config;
using test::Planned;
using test::small_spec;
using test::TestBatch;

/// Cost of an item of one KV tile with every head it takes: the grain that a cut can't go below.
uint64_t grain(const PlanHeader& h, const PlanView& v) {
  uint64_t largest = 0;
  for (const WorkItem& i : v.items) {
    const KernelClass& k = h.classes[i.kernel_class];
    largest = std::max(largest, plan::work_cost(k, i.row_count, h.split_tokens > 0 ? h.split_tokens : k.tile_kv, i.kv_head_count));
  }
  return largest;
}

std::vector<int32_t> lengths(test::Random& r, int32_t n) {
  std::vector<int32_t> v;
  const int32_t shape = r.in(0, 3);
  for (int32_t i = 0; i < n; ++i) {
    const int32_t x = r.in(1, 4000);
    v.push_back(shape == 0 ? 1000 : shape == 1 ? x : shape == 2 ? 1 + 60000 / (1 + x % n) : r.chance(5) ? 50000 + x : x % 100);
  }
  return v;
}

TEST(Balance, StreamIsWithinOneTileOfTheMean) {
  test::Random r(5);
  for (int round = 0; round < 400; ++round) {
    const int32_t n = r.of({1, 2, 5, 16, 43, 64, 128, 256});
    const int32_t kv_heads = r.of({1, 2, 8});
    AttentionSpec spec = small_spec(r.of({8, 32}), kv_heads);
    spec.variant.range.causal = r.chance(50);
    if (r.chance(20)) spec.variant.range.left = r.in(0, 2000);
    std::vector<int32_t> q(size_t(n), 1);
    if (r.chance(30)) q[size_t(r.in(0, n - 1))] = r.in(2, 300);
    TestBatch b(q, lengths(r, n), spec);
    for (Policy policy : {Policy::stream}) {
      SchedulerConfig config = gpu_config(r.of({1, 7, 64, 132}), policy);
      config.classes[0].heads_per_item = r.of({1, 1, 3});
      config.snap_memory = r.of({0, 1000, 5000});
      const Planned p(spec, capacity_of(b), config, b.batch);
      const PlanHeader& h = p.header();
      ASSERT_LE(h.cost_max, h.cost_total / uint64_t(h.num_ctas) + grain(h, p.view) + 1) << "round " << round << " policy " << int(policy);
    }
  }
}

// A long prefill: whenever one looks, CTAs work on three KV heads of eight at most, whose keys an L2 cache holds. (With the same head of every tile for a
// CTA, which the order of CTAs alone would give where heads divide them, it is all eight.)
TEST(Balance, CtasGoThroughHeadsTogether) {
  const AttentionSpec spec = small_spec(32, 8);
  TestBatch b({16384}, {16384}, spec);
  for (const int32_t ctas : {64, 66, 132}) {
    const Planned p(spec, capacity_of(b), gpu_config(ctas, Policy::fill), b.batch);
    const auto cost = [&](const WorkItem& i) { return plan::work_cost(p.header().classes[i.kernel_class], i.row_count, i.kv_end - i.kv_begin, i.kv_head_count); };
    for (const double part : {0.1, 0.3, 0.5, 0.7, 0.9}) {
      std::set<int32_t> heads;
      for (int32_t c = 0; c < ctas; ++c) {
        uint64_t done = 0;
        for (int32_t i = p.view.cta_indptr[c]; i < p.view.cta_indptr[c + 1]; ++i) {
          done += cost(p.view.items[i]);
          if (double(done) < part * double(p.header().cost_total) / ctas) continue;
          heads.insert(p.view.items[i].kv_head);
          break;
        }
      }
      EXPECT_LE(heads.size(), 3u) << ctas << " CTAs at " << part;
    }
  }
}

// Prefill chunks beside decodes: whenever one looks, the CTAs that compute work on eight lists and KV heads of 32 at most. (Longest first alone: on 19 to 26,
// and their keys come from memory again and again, since what is streamed beside them goes through the cache, too.)
TEST(Balance, ChunksBesideDecodesGoThroughListsTogether) {
  AttentionSpec spec = small_spec(32, 8);
  spec.variant.range.causal = true;
  std::vector<int32_t> q(64, 1);
  for (int r = 0; r < 4; ++r) q[size_t(r)] = 512;
  TestBatch b(q, std::vector<int32_t>(64, 4096), spec);
  const Planned p(spec, capacity_of(b), gpu_config(132, Policy::fill), b.batch);
  int32_t seen = 0;
  for (const double part : {0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95}) {
    std::set<std::pair<int32_t, int32_t>> lists;
    int32_t computing = 0;
    for (int32_t c = 0; c < 132; ++c) {
      uint64_t done = 0;
      for (int32_t i = p.view.cta_indptr[c]; i < p.view.cta_indptr[c + 1]; ++i) {
        const WorkItem& item = p.view.items[i];
        done += plan::work_cost(p.header(), item);
        if (double(done) < part * double(p.header().cost_total) / 132) continue;
        if (item.kernel_class == 1) lists.insert({item.group, item.kv_head}), ++computing;
        break;
      }
    }
    EXPECT_LE(lists.size(), 8u) << "at " << part << ", " << computing << " CTAs";
    seen += computing;
  }
  EXPECT_GT(seen, 300) << "CTAs that compute";
}

// Beside a prefill: decodes of a few thousand keys that lie whole on CTAs within what a cut would cost are not cut. Long ones are.
TEST(Balance, DecodesBesideAPrefillStayWholeWhereTheyFit) {
  AttentionSpec spec = small_spec(32, 8);
  spec.variant.range.causal = true;
  const auto plan = [&](int32_t chunk, int32_t decodes, int32_t first, int32_t step) {
    std::vector<int32_t> q{chunk}, kv{chunk};
    for (int32_t i = 0; i < decodes; ++i) q.push_back(1), kv.push_back(first + step * i);
    TestBatch b(q, kv, spec);
    return Planned(spec, capacity_of(b), gpu_config(132, Policy::fill), b.batch);
  };
  const Planned whole = plan(886, 38, 200, 38);
  EXPECT_EQ(whole.header().num_units, 0);
  EXPECT_LE(whole.header().cost_max, whole.header().cost_total / 132 + 3000);
  EXPECT_GT(plan(886, 6, 8000, 100).header().num_units, 0) << "48 units of 120 us on 132 CTAs";
}

// Where CTAs share a memory that 79 of 132 saturate: 1024 units that are all alike are 7 or 8 a CTA, 8 on a hundred of them, and nothing is merged.
// With 72 of 132 having the most, or with one unit unlike the others, the stream is cut.
TEST(Balance, UnitsAllAlikeStayWholeWhereCtasShareAMemory) {
  const AttentionSpec spec = small_spec(32, 8);
  const auto plan = [&](int32_t requests, int32_t last, int32_t saturating) {
    std::vector<int32_t> kv(size_t(requests), 8192);
    kv.back() = last;
    TestBatch b(std::vector<int32_t>(size_t(requests), 1), kv, spec);
    SchedulerConfig config = gpu_config(132, Policy::stream);
    config.saturating_ctas = saturating;
    return Planned(spec, capacity_of(b), config, b.batch);
  };
  const Planned whole = plan(128, 8192, 79);
  EXPECT_EQ(whole.header().num_items, 1024);
  EXPECT_EQ(whole.header().num_units, 0);
  EXPECT_EQ(whole.view.cta_indptr[100], 800) << "the first hundred have one more";
  // In the same moment neighbouring CTAs have neighbouring heads of the same keys.
  for (int32_t c = 0; c < 8; ++c) EXPECT_EQ(whole.view.items[whole.view.cta_indptr[c]].kv_head, c);
  EXPECT_EQ(whole.view.items[whole.view.cta_indptr[7]].group, whole.view.items[whole.view.cta_indptr[0]].group);
  EXPECT_GT(plan(128, 8192, 0).header().num_units, 0);
  EXPECT_GT(plan(91, 8192, 79).header().num_units, 0) << "728 units: 68 CTAs would have 6, the others 5";
  EXPECT_GT(plan(128, 8191, 79).header().num_units, 0);
}

// Decodes of mixed lengths where CTAs share a memory: automatic cuts few units and nobody gets a third more than the mean; alone with their memories, CTAs get
// equal shares, which cuts one unit a CTA.
TEST(Balance, DecodesAreSeldomCutWhereCtasShareAMemory) {
  const AttentionSpec spec = small_spec(32, 8);
  test::Random r(11);
  for (const int32_t requests : {30, 40, 64}) {
    std::vector<int32_t> kv;
    for (int32_t i = 0; i < requests; ++i) kv.push_back(r.in(200, 3000));
    kv[0] = 20000;
    TestBatch b(std::vector<int32_t>(size_t(requests), 1), kv, spec);
    SchedulerConfig config = gpu_config(132, Policy::automatic);
    const Planned alone(spec, capacity_of(b), config, b.batch);
    config.saturating_ctas = 79;
    const Planned shared(spec, capacity_of(b), config, b.batch);
    EXPECT_EQ(alone.header().policy, Policy::stream) << requests;
    EXPECT_EQ(shared.header().policy, Policy::heap) << requests;
    EXPECT_LT(3 * shared.header().num_units, alone.header().num_units) << requests;
    EXPECT_LT(double(shared.header().cost_max), 4.0 / 3 * double(shared.header().cost_total) / 132) << requests;
  }
}

// One chunk on top of a full CTA: as much again, which no other CTA's leisure makes up for.
TEST(Balance, AHeapThatIsOutOfBalanceIsNotTaken) {
  const AttentionSpec spec = small_spec(8, 8);
  TestBatch b(std::vector<int32_t>(17, 1), std::vector<int32_t>(17, 4096), spec);  // 136 units on 132 CTAs: four of them twice
  SchedulerConfig config = gpu_config(132, Policy::automatic);
  config.saturating_ctas = 79;
  const Planned p(spec, capacity_of(b), config, b.batch);
  EXPECT_LT(double(p.header().cost_max), 1.4 * double(p.header().cost_total) / 132) << name_of(p.header().policy);
}

// One chunk of a prompt beside decodes: cut little where the step is short, overlapped where it is long or `fill_from` is not set.
TEST(Balance, ShortStepsOfBothKindsAreCutLittle) {
  const AttentionSpec spec = small_spec(32, 8);
  test::Random r(12);
  const auto plan = [&](int32_t requests, int32_t longest, int64_t fill_from) {
    std::vector<int32_t> q(size_t(requests), 1), kv;
    for (int32_t i = 0; i < requests; ++i) kv.push_back(r.in(longest / 4, longest));
    q[0] = 400, kv[0] = 900;
    TestBatch b(q, kv, spec);
    SchedulerConfig config = gpu_config(132, Policy::automatic);
    config.fill_from = fill_from;
    return Planned(spec, capacity_of(b), config, b.batch);
  };
  const Planned cut_little = plan(40, 1500, 250'000), overlapped = plan(40, 1500, 0);
  EXPECT_EQ(cut_little.header().policy, Policy::heap);
  EXPECT_EQ(overlapped.header().policy, Policy::fill);
  EXPECT_LT(cut_little.header().num_units, overlapped.header().num_units);
  EXPECT_LE(double(cut_little.header().cost_max), 1.25 * double(cut_little.header().cost_total) / 132 + 1);
  EXPECT_EQ(plan(40, 20000, 250'000).header().policy, Policy::fill) << "long";
}

TEST(Balance, StreamIsWithinFivePercentWhereTilesAreSmall) {  // >= 32 tiles a CTA
  test::Random r(6);
  const AttentionSpec spec = small_spec(32, 8);
  for (int round = 0; round < 100; ++round) {
    TestBatch b(std::vector<int32_t>(256, 1), lengths(r, 256), spec);
    const Planned p(spec, capacity_of(b), gpu_config(64, Policy::stream), b.batch);
    const double mean = double(p.header().cost_total) / 64;
    if (mean < 32 * 64 * 15) continue;
    EXPECT_LE(double(p.header().cost_max), 1.05 * mean);
  }
}

TEST(Balance, FillIsWithinAMergeOfTheMean) {
  test::Random r(7);
  for (int round = 0; round < 300; ++round) {
    AttentionSpec spec = small_spec(32, 8);
    spec.variant.range.causal = r.chance(80);
    const int32_t n = r.in(1, 80);
    std::vector<int32_t> q(size_t(n), 1), kv = lengths(r, n);
    const int32_t prefills = r.chance(30) ? n : r.in(1, 4);
    for (int32_t i = 0; i < std::min(n, prefills); ++i) {
      q[i] = r.in(5, 700);
      kv[i] = std::max(kv[i], q[i]);
    }
    TestBatch b(q, kv, spec);
    const SchedulerConfig config = gpu_config(132, Policy::fill);
    const Planned p(spec, capacity_of(b), config, b.batch);
    const PlanHeader& h = p.header();
    const uint64_t merge = uint64_t(config.cost_partial + config.cost_merge + 3 * config.cost_partial_row * 128);
    ASSERT_LE(h.cost_max, h.cost_total / 132 + merge + 2 * grain(h, p.view)) << "round " << round;
    ASSERT_EQ(h.policy, Policy::fill);
  }
}

TEST(Balance, FillAlternatesTheClasses) {  // odd CTAs load first, even ones compute first
  AttentionSpec spec = small_spec(32, 8);
  std::vector<int32_t> q(64, 1), kv(64, 4096);
  for (int32_t i = 0; i < 4; ++i) q[i] = 512;
  TestBatch b(q, kv, spec);
  const Planned p(spec, capacity_of(b), gpu_config(132, Policy::automatic), b.batch);
  EXPECT_EQ(p.header().policy, Policy::fill);
  for (int32_t c = 0; c < 132; ++c) {
    for (int32_t i = p.view.cta_indptr[c] + 1; i < p.view.cta_indptr[c + 1]; ++i) {
      const int32_t before = p.view.items[i - 1].kernel_class, after = p.view.items[i].kernel_class;
      EXPECT_TRUE(before == after || (before == 0) == (c % 2 == 1)) << "CTA " << c;
    }
  }
}

TEST(Balance, SharedLevelsComeFirst) {
  const AttentionSpec spec = small_spec(8, 2);
  TestBatch b(std::vector<int32_t>(16, 1), std::vector<int32_t>(16, 900), spec);
  for (int32_t t = 0; t < 16; ++t) {
    b.groups.push_back({.level = 1, .list_begin = 40, .kv_end = 16 * 5 + t, .kv_pos0 = 640, .tokens = {}});
    b.group_tokens.push_back({t});
  }
  b.groups.push_back({.level = 0, .kv_end = 640, .tokens = {}});
  b.group_tokens.push_back({});
  for (int32_t t = 15; t >= 0; --t) b.group_tokens.back().push_back(t);
  b.bind();
  Capacity c = capacity_of(b);
  c.max_level_rows = 16;
  for (Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::automatic}) {
    const Planned p(spec, c, gpu_config(5, policy), b.batch);
    EXPECT_EQ(test::PlanExecutor(p.view, spec).check(), "");
    for (int32_t cta = 0; cta < 5; ++cta) {
      for (int32_t i = p.view.cta_indptr[cta] + 1; i < p.view.cta_indptr[cta + 1]; ++i) {
        EXPECT_LE(p.view.groups[p.view.items[i - 1].group].level, p.view.groups[p.view.items[i].group].level);
      }
    }
  }
}

/// `readers` requests of `kPrefix` shared keys, in `prefixes` of as many requests each, and `kOwn` of their own.
struct PrefixStep {
  static constexpr int32_t kPrefix = 8192, kOwn = 256;
  AttentionSpec spec = small_spec(32, 8);
  TestBatch b;
  Capacity capacity;

  PrefixStep(int32_t readers, int32_t prefixes) : b(std::vector<int32_t>(readers, 1), std::vector<int32_t>(readers, kPrefix + kOwn), spec) {
    const int32_t pages = kPrefix / spec.page_size, each = readers / prefixes;
    for (int32_t p = 0; p < prefixes; ++p) {
      b.groups.push_back({.level = 0, .list_begin = p * pages, .kv_end = kPrefix, .tokens = {}});
      b.group_tokens.push_back({});
      for (int32_t t = 0; t < each; ++t) b.group_tokens.back().push_back(p * each + t);
    }
    for (int32_t t = 0; t < readers; ++t) {
      b.groups.push_back({.level = 1, .list_begin = pages, .kv_end = kOwn, .kv_pos0 = kPrefix, .tokens = {}});
      b.group_tokens.push_back({t});
    }
    b.bind();
    capacity = capacity_of(b);
    capacity.max_level_rows = readers;
  }
};

TEST(Balance, OnePrefixOfAllIsFilledAround) {
  SchedulerConfig config = gpu_config(132, Policy::automatic);
  config.fill_from = 250'000;
  const auto policy = [&](int32_t prefixes, int64_t cost_shared) {
    PrefixStep s(64, prefixes);
    config.cost_shared = cost_shared;
    const Planned p(s.spec, s.capacity, config, s.b.batch);
    EXPECT_EQ(test::PlanExecutor(p.view, s.spec).check(), "");
    return p.header().policy;
  };
  EXPECT_EQ(policy(1, 10'000), Policy::fill);
  EXPECT_EQ(policy(1, 0), Policy::heap) << "merges cost nothing besides";
  EXPECT_EQ(policy(4, 10'000), Policy::heap);
}

// Whoever has a part of a shared prefix merges with all that read it, and so gets less of what is poured around it.
TEST(Balance, FillLeavesTimeForMergesOfSharedLevels) {
  const PrefixStep s(64, 1);
  const auto most_beside = [&](int64_t cost_shared) {  // keys of few rows of a CTA that has a part of the prefix
    SchedulerConfig config = gpu_config(132, Policy::fill);
    config.cost_shared = cost_shared;
    const Planned p(s.spec, s.capacity, config, s.b.batch);
    EXPECT_EQ(test::PlanExecutor(p.view, s.spec).check(), "");
    int64_t most = 0;
    for (int32_t cta = 0; cta < 132; ++cta) {
      int64_t keys = 0;
      bool shares = false;
      for (int32_t i = p.view.cta_indptr[cta]; i < p.view.cta_indptr[cta + 1]; ++i) {
        const WorkItem& item = p.view.items[i];
        if (item.kernel_class == 1) shares = true;
        else keys += item.kv_end - item.kv_begin;
      }
      if (shares) most = std::max(most, keys);
    }
    return most;
  };
  const int64_t before = most_beside(0);
  EXPECT_GT(before, 0);
  EXPECT_LT(most_beside(10'000), before);
}

TEST(Balance, AutomaticFollowsTheMix) {
  const AttentionSpec spec = small_spec(32, 8);
  auto chosen = [&](const std::vector<int32_t>& q, const std::vector<int32_t>& kv) {
    TestBatch b(q, kv, spec);
    return Planned(spec, capacity_of(b), gpu_config(132, Policy::automatic), b.batch).header().policy;
  };
  EXPECT_EQ(chosen(std::vector<int32_t>(64, 1), std::vector<int32_t>(64, 4096)), Policy::stream);
  EXPECT_EQ(chosen({1, 1}, {40000, 100}), Policy::heap);  // 16 units, 132 CTAs
  EXPECT_EQ(chosen({1, 300}, {4000, 300}), Policy::fill);
  EXPECT_EQ(chosen({300}, {300}), Policy::fill);
  EXPECT_EQ(chosen({}, {}), Policy::stream);
}

TEST(Balance, PaperTile) {
  EXPECT_EQ(plan::paper_tile_q(2 * 4, 1), 16);  // 2 tokens x 4 heads = 8 rows
  EXPECT_EQ(plan::paper_tile_q(16, 1), 16);
  EXPECT_EQ(plan::paper_tile_q(17, 1), 64);
  EXPECT_EQ(plan::paper_tile_q(64, 1), 64);
  EXPECT_EQ(plan::paper_tile_q(65, 1), 128);
  EXPECT_EQ(plan::paper_tile_q(33, 2), 64);  // a mean of 16.5 is above 16
}

}  // namespace
}  // namespace kvloom
