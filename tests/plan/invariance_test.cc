// What must not change: the bytes of the same plan, the cover when requests are permuted, and under fixed_split the way a request's keys
// are folded, whatever its company (B92).
#include "random_batches.h"

#include <gtest/gtest.h>

namespace kvloom {
namespace {

using test::capacity_of;
using test::gpu_config;
using test::Planned;
using test::small_spec;
using test::TestBatch;

template <class T>
std::vector<char> bytes_of(Span<const T> s) {
  const char* p = reinterpret_cast<const char*>(s.data);
  return {p, p + s.size * int64_t(sizeof(T))};
}

std::vector<char> bytes_of(const PlanView& v) {
  std::vector<char> all = bytes_of(Span<const PlanHeader>{v.header, 1});
  for (const auto& part : {bytes_of(v.groups), bytes_of(v.row_entries), bytes_of(v.cta_indptr), bytes_of(v.items), bytes_of(v.units),
                           bytes_of(v.entries), bytes_of(v.touches)}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(Invariance, SameInputSameBytes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    const Planned fresh(c.spec, c.capacity, c.config, c.b.batch);
    // A planner with a past, and a buffer with other bytes in it.
    plan::Planner used(c.spec, c.capacity, c.config);
    const test::PlanBuffer buffer(used.layout().plan_bytes);
    std::memset(buffer.data, 0x5a, size_t(buffer.bytes));
    const TestBatch empty;
    used.plan(empty.batch, buffer.data, buffer.bytes);
    used.plan(c.b.batch, buffer.data, buffer.bytes);
    used.plan(c.b.batch, buffer.data, buffer.bytes);
    ASSERT_EQ(bytes_of(fresh.view), bytes_of(view_plan(buffer.data))) << "seed " << seed;
  }
}

/// How the keys of each output row of request `r` are folded: chunk by chunk.
std::vector<std::pair<int32_t, int32_t>> folds_of(test::PlanExecutor& run, int64_t row, int32_t head) {
  std::vector<std::pair<int32_t, int32_t>> v;
  for (const test::Segment& s : run.output(row, head)) {
    if (s.begin < s.end) v.push_back({s.begin, s.end});
  }
  return v;
}

/// Only what starts a row's keys may be folded into one partial: elsewhere the merge has to see each chunk.
void expect_only_beginnings_are_folded(const PlanView& v, const AttentionSpec& spec) {
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> first;
  for (const WorkItem& i : v.items) {
    const auto [at, fresh] = first.try_emplace({i.group, i.row_begin, i.kv_head}, i.kv_begin);
    at->second = std::min(at->second, i.kv_begin);
  }
  for (const WorkItem& i : v.items) EXPECT_EQ(i.chunked != 0, i.kv_begin > first[std::tuple(i.group, i.row_begin, i.kv_head)]);
}

TEST(Invariance, FixedSplitIsAFunctionOfTheRequest) {
  AttentionSpec spec = small_spec(8, 2);
  for (int32_t window : {-1, 700}) {
    spec.variant.range.causal = true;
    spec.variant.range.left = window;
    std::vector<std::pair<int32_t, int32_t>> alone;
    for (int32_t others : {0, 1, 2, 7, 31, 64}) {
      std::vector<int32_t> q(size_t(others) + 1, 1), kv(size_t(others) + 1, 0);
      for (int32_t i = 0; i <= others; ++i) kv[i] = 17 + 997 * i % 6000;
      const int32_t at = others / 2;
      kv[at] = 5000;
      for (int32_t ctas : {1, 7, 132}) {
        TestBatch b(q, kv, spec);
        const Planned p(spec, capacity_of(b), gpu_config(ctas, Policy::fixed_split), b.batch);
        test::PlanExecutor run(p.view, spec);
        ASSERT_EQ(run.check(), "");
        expect_only_beginnings_are_folded(p.view, spec);
        const auto folds = folds_of(run, int64_t(at) * 4, 1);
        if (alone.empty()) alone = folds;
        EXPECT_EQ(folds, alone) << others << " others, " << ctas << " CTAs";
      }
    }
    EXPECT_EQ(alone.size(), window < 0 ? 20u : 4u);  // chunks of 256 that 5000 keys touch, or the last 701 of them: 4299 .. 5000
  }
}

/// A prompt of 300 tokens at once, or in pieces: each row folds the keys it keeps in the same chunks.
TEST(Invariance, FixedSplitDoesNotSeeHowPrefillWasChunked) {
  AttentionSpec spec = small_spec(4, 1);
  spec.variant.range.causal = true;
  auto row_folds = [&](int32_t q_len, int32_t kv_len, int32_t index) {
    TestBatch b({3, q_len, 1}, {2000, kv_len, 40}, spec);
    const Planned p(spec, capacity_of(b), gpu_config(16, Policy::fixed_split), b.batch);
    test::PlanExecutor run(p.view, spec);
    EXPECT_EQ(run.check(), "");
    for (const WorkItem& i : p.view.items) EXPECT_EQ(i.kernel_class, 0);  // one kernel for every query length
    std::vector<std::pair<int32_t, int32_t>> kept;
    const int32_t pos = kv_len - q_len + index;
    for (auto [begin, end] : folds_of(run, int64_t(3 + index) * 4, 0)) {
      if (begin <= pos) kept.push_back({begin, std::min(end, pos + 1)});
    }
    return kept;
  };
  for (int32_t pos : {0, 63, 255, 256, 299}) {
    const auto whole = row_folds(300, 300, pos);
    EXPECT_EQ(row_folds(1, pos + 1, 0), whole) << pos;  // token by token
    const int32_t begin = pos / 100 * 100;
    EXPECT_EQ(row_folds(100, begin + 100, pos - begin), whole) << pos;
  }
}

TEST(Invariance, PermutedRequestsAreCoveredAlike) {
  test::Random r(3);
  const AttentionSpec spec = small_spec(8, 2);
  for (Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic}) {
    std::vector<int32_t> q{1, 1, 40, 1, 2, 0, 1}, kv{700, 3, 90, 1500, 0, 77, 512};
    uint64_t total = 0;
    for (int32_t round = 0; round < 10; ++round) {
      TestBatch b(q, kv, spec);
      SchedulerConfig config = gpu_config(7, policy);
      config.classes[0].cost_per_item = config.classes[1].cost_per_item = 0;  // else cuts cost
      const Planned p(spec, capacity_of(b), config, b.batch);
      ASSERT_EQ(test::PlanExecutor(p.view, spec).check(), "");
      if (round == 0) total = p.header().cost_total;
      EXPECT_EQ(p.header().cost_total, total);
      const int32_t i = r.in(0, 6), j = r.in(0, 6);
      std::swap(q[i], q[j]);
      std::swap(kv[i], kv[j]);
    }
  }
}

TEST(Invariance, GraphKeyIsOfTheShapeNotTheLengths) {  // B68, B71
  const AttentionSpec spec = small_spec(8, 2);
  Capacity c;
  c.max_requests = 8;
  c.max_query_tokens = 64;
  c.max_kv_tokens = 20000;
  c.max_level_rows = 8;
  auto key = [&](const AttentionSpec& s, const std::vector<int32_t>& q, const std::vector<int32_t>& kv, int32_t ctas = 7) {
    TestBatch b(q, kv, s);
    return Planned(s, c, gpu_config(ctas, Policy::automatic), b.batch).header().graph_key;
  };
  const uint64_t decode = key(spec, {1, 1, 1, 1}, {4096, 1, 1, 1});
  EXPECT_EQ(key(spec, {1, 1, 1, 1}, {300, 4096, 17, 2000}), decode);
  EXPECT_EQ(key(spec, {1, 1}, {5, 6}), decode);
  EXPECT_NE(key(spec, {1, 40}, {5, 60}), decode);   // a compute class as well
  EXPECT_NE(key(spec, {1, 1}, {5, 6}, 8), decode);  // another grid
  AttentionSpec other = spec;
  other.variant.soft_cap = 30.0f;
  EXPECT_NE(key(other, {1, 1}, {5, 6}), decode);
  TestBatch levels({1, 1}, {5, 6}, spec);
  for (int32_t level : {0, 1}) {
    levels.groups.push_back({.level = level, .kv_end = 5, .tokens = {}});
    levels.group_tokens.push_back({0, 1});
  }
  levels.bind();
  EXPECT_NE(Planned(spec, c, gpu_config(7, Policy::automatic), levels.batch).header().graph_key, decode);
}

}  // namespace
}  // namespace kvloom
