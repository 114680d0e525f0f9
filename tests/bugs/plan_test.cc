// PLAN and GRAPH: one set of buffers, step after step. What breaks a captured graph (sizes, offsets or work that depend on the contents of
// a step) is a property of the plan, and is tested here without a GPU; replay itself is for the GPU tests.
#include "tests/bugs/bug_case.h"

#include <numeric>

namespace kvloom::bugs {
namespace {

/// A step with these lengths, of a spec that all steps of a test share.
Case step(std::vector<int32_t> q_len, std::vector<int32_t> kv_len) {
  Case c;
  c.seed = 68;
  c.spec.num_qo_heads = 4;
  c.spec.num_kv_heads = 1;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 32;
  c.spec.q_dtype = c.spec.kv_dtype = c.spec.o_dtype = DType::bf16;
  c.spec.page_size = 16;
  c.spec.variant.range.causal = true;
  c.q_len = std::move(q_len);
  c.kv_len = std::move(kv_len);
  return c;
}

struct Sections {
  int64_t offsets[7];
  int64_t bytes;
  int32_t ctas;
  bool operator==(const Sections&) const = default;
};
Sections sections_of(const Plan& plan) {
  const PlanHeader& h = *plan.view().header;
  return {{h.groups_offset, h.row_entries_offset, h.cta_indptr_offset, h.items_offset, h.units_offset, h.entries_offset, h.touches_offset},
          h.total_bytes,
          h.num_ctas};
}

/// One engine runs the steps one after another: each is right, and every plan has its sections where the first had them.
void expect_replannable(const std::vector<Case>& steps, const Capacity& capacity, Policy policy) {
  Engine engine(steps[0].spec, capacity, with_policy(policy, 13));
  Sections first{};
  for (size_t i = 0; i < steps.size(); ++i) {
    CaseData data(steps[i]);
    const Plan plan = engine.plan(data.batch());
    if (i == 0) first = sections_of(plan);
    EXPECT_EQ(sections_of(plan), first) << i;
    std::vector<double> o, lse;
    data.reference(o, lse);
    const Output got = run_plan(engine, plan, data);
    EXPECT_EQ(check::compare(steps[i], got.o, got.lse, o, lse).fault, "") << "step " << i << ", " << name_of(policy);
  }
}

constexpr Policy kSplitting[] = {Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic};

TEST(Graph, B68_APlanOfOtherLengthsIsAsGoodAsTheFirst) {
  for (const int32_t left : {-1, 64}) {
    std::vector<Case> steps{step({1, 1, 1, 1}, {4096, 1, 1, 1}), step({1, 1, 1, 1}, {300, 4096, 17, 2000}),
                            step({1, 1, 1, 1}, {0, 1, 0, 5})};
    for (Case& c : steps) c.spec.variant.range.left = left;
    for (const Policy policy : kSplitting) expect_replannable(steps, {4, 4, 8192, 0, 0}, policy);
  }
}

TEST(Graph, B69_SizesDependOnTotalsAndNotOnWhoOwnsTheTokens) {
  const std::vector<int32_t> kv(8, 80);
  const std::vector<Case> steps{step(std::vector<int32_t>(8, 8), kv), step({57, 1, 1, 1, 1, 1, 1, 1}, kv),
                                step({0, 0, 0, 0, 0, 0, 0, 64}, kv)};
  for (const Policy policy : kSplitting) expect_replannable(steps, {8, 64, 640, 0, 0}, policy);
}

TEST(Graph, B70_MergesCoverARequestThatTookAllTheTokens) {
  std::vector<int32_t> one(64, 1), all(64, 0);
  all[0] = 64;
  const std::vector<int32_t> kv(64, 128);
  for (const Policy policy : kSplitting) expect_replannable({step(one, kv), step(all, kv)}, {64, 64, 64 * 128, 0, 0}, policy);
}

TEST(Graph, B71_FewerRequestsThanTheCapacityIsLessWork) {
  std::vector<Case> steps;
  for (const int32_t n : {64, 40, 1, 0}) steps.push_back(step(std::vector<int32_t>(size_t(n), 1), std::vector<int32_t>(size_t(n), 100)));
  for (const Policy policy : kSplitting) expect_replannable(steps, {64, 64, 6400, 0, 0}, policy);
}

TEST(Graph, B72_BitsDoNotDependOnAnUpperBound) {
  CaseData data(step({1, 3}, {1000, 40}));
  for (const Policy policy : kSplitting) {
    std::vector<Output> outputs;
    for (const int64_t bound : {1040, 131072}) {
      Engine engine(data.what().spec, {2, 4, bound, 0, 0}, with_policy(policy));
      outputs.push_back(run_plan(engine, engine.plan(data.batch()), data));
    }
    expect_same_bits(outputs[0], outputs[1]);
  }
}

TEST(Plan, B75_TheLongestQueryIsADifferenceAndNotAnEnd) {
  // indptr [0, 3, 6, 9]: three tokens each, 12 packed rows, so memory-class tiles; a planner that took 9 would think of 36.
  expect_right("B75");
  CaseData data(bug_case("B75.three_queries_each"));
  Engine engine(data.what().spec, data.capacity(), with_policy(Policy::stream));
  const Plan plan = engine.plan(data.batch());
  for (const WorkItem& item : plan.view().items) {
    EXPECT_EQ(item.kernel_class, 0);
    EXPECT_LE(item.row_count, 12);
  }
}

TEST(Plan, B76_SeveralTokensARequestAreAllPlannedAndCausalAmongThemselves) { expect_right("B76"); }

TEST(Plan, B77_PackedTokensStandWhereTheyStand) { expect_right("B77"); }

TEST(Plan, B78_AnyMixOfLengthsPlans) {
  expect_right("B78");
  // Planning alone at the entry's sizes: 200 short requests beside 131072 keys, and a request of a million.
  for (const std::vector<int32_t>& lengths : {[] {
                                                std::vector<int32_t> mix(200, 1);
                                                mix.push_back(131072);
                                                return mix;
                                              }(),
                                              std::vector<int32_t>{1 << 20}}) {
    const int32_t n = int32_t(lengths.size());
    AttentionSpec spec = step({}, {}).spec;
    std::vector<int32_t> qo_indptr(size_t(n) + 1), starts;
    std::iota(qo_indptr.begin(), qo_indptr.end(), 0);
    int32_t entries = 0;
    int64_t total = 0;
    for (const int32_t length : lengths) {
      starts.push_back(entries);
      entries += (length + 15) / 16;
      total += length;
    }
    std::vector<int32_t> pages(size_t(entries), 0);
    std::iota(pages.begin(), pages.end(), 0);
    Batch batch;
    batch.num_requests = n;
    batch.qo_indptr = IndexView(qo_indptr.data(), n + 1);
    batch.kv_len = IndexView(lengths.data(), n);
    batch.list_indptr = IndexView(starts.data(), n);
    batch.pages = IndexView(pages.data(), entries);
    for (const Policy policy : kSplitting) {
      Engine engine(spec, {n, n, total, 0, 0}, with_policy(policy, 132));
      const Plan plan = engine.plan(batch);
      int64_t covered = 0;
      for (const WorkItem& item : plan.view().items) covered += int64_t(item.kv_end - item.kv_begin) * item.kv_head_count;
      EXPECT_EQ(covered, total) << name_of(policy);
    }
  }
}

TEST(Plan, B90_TheAutomaticChoiceIsTheSameAsAskingForIt) {
  expect_right("B90");
  // Every length 1 .. 1100 once, in one step; and the automatic plan is byte for byte that of the policy which it names.
  Case c = bug_case("B90.page_256");
  c.q_len.assign(1100, 1);
  c.kv_len.resize(1100);
  std::iota(c.kv_len.begin(), c.kv_len.end(), 1);
  c.spec.page_size = 16;
  c.spec.num_qo_heads = 2;
  c.spec.num_kv_heads = 1;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 16;
  CaseData data(c);
  Engine automatic(c.spec, data.capacity(), with_policy(Policy::automatic, 32));
  const Plan chosen = automatic.plan(data.batch());
  const Policy policy = chosen.view().header->policy;
  ASSERT_NE(policy, Policy::automatic);
  const Output got = run_plan(automatic, chosen, data);
  std::vector<double> o, lse;
  data.reference(o, lse);
  EXPECT_EQ(check::compare(c, got.o, got.lse, o, lse).fault, "");
  expect_same_bits(run_once(data, with_policy(policy, 32)), got);
}

TEST(Deterministic, B92_FixedSplitBitsDoNotDependOnTheBatch) {
  for (const int32_t left : {-1, 700}) {
    std::vector<float> alone_o;
    for (const int32_t others : {0, 1, 7, 63}) {
      Case c = step({}, {});
      c.shuffle_pages = false;  // the first request's pages are the same pages in every batch
      c.spec.variant.range.left = left;
      for (int32_t r = 0; r <= others; ++r) {
        c.q_len.push_back(r % 3 == 2 ? 5 : 1);
        c.kv_len.push_back(r == 0 ? 5000 : 40 + 37 * r);
      }
      CaseData data(c);
      const Output got = run_once(data, with_policy(Policy::fixed_split, 5 + others));
      const std::vector<float> first(got.o.begin(), got.o.begin() + 4 * 32);
      if (others == 0) alone_o = first;
      EXPECT_TRUE(same_bits(first, alone_o)) << others << " others, window " << left;
    }
  }
}

}  // namespace
}  // namespace kvloom::bugs
