// What every plan has in common, whatever the batch: it validates under every policy, on few CTAs and many, with shared levels and without,
// and it is cut no more often than its policy promises.
#include "kvloom/plan/validate.h"
#include "tests/plan/random_batches.h"
#include "tests/plan/shared_steps.h"

#include <gtest/gtest.h>

#include <set>

namespace kvloom {
namespace {

using test::Planned;

constexpr Policy kPolicies[] = {Policy::none, Policy::heap, Policy::stream, Policy::fill, Policy::fixed_split, Policy::automatic};
constexpr int32_t kCtas[] = {1, 7, 132};

/// Units of work before cuts: distinct (group, row tile, first KV head).
int64_t units_of_work(const PlanView& plan) {
  std::set<std::tuple<int32_t, int32_t, int32_t>> units;
  for (const WorkItem& w : plan.items) units.insert({w.group, w.row_begin, w.kv_head});
  return int64_t(units.size());
}

/// Most cuts that a policy makes (docs/plan_format.md).
int64_t cuts_allowed(Policy policy, int32_t ctas) {
  if (policy == Policy::none) return 0;
  const bool each_class = policy == Policy::fill || policy == Policy::automatic;
  return (each_class ? 2 : 1) * int64_t(ctas - 1);
}

std::string validate(const Planned& p, const AttentionSpec& spec) { return plan::validate_plan(p.buffer.data, p.buffer.bytes, spec, true); }

// CTAs do their compute tiles list by list and head by head, so that they find each other's keys in the cache: with nothing else in the order of lists,
// beside decodes in any, but never one a second time.
TEST(Properties, FillGoesThroughListsInOrder) {
  int32_t followed = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    c.config.policy = Policy::fill, c.config.num_ctas = 7, c.config.levels = LevelMode::off;
    const Planned p(c.spec, c.capacity, c.config, c.b.batch);
    bool mixed = false;
    for (const WorkItem& item : p.view.items) mixed |= item.kernel_class == 0;
    for (int32_t cta = 0; cta < 7; ++cta) {
      std::vector<std::pair<int32_t, int32_t>> lists;
      for (int32_t i = p.view.cta_indptr[cta]; i < p.view.cta_indptr[cta + 1]; ++i) {
        const WorkItem& item = p.view.items[i];
        if (item.kernel_class != 1 || p.view.groups[item.group].level + 1 < p.header().num_levels) continue;  // shared levels come first
        const std::pair<int32_t, int32_t> list(item.group, item.kv_head);
        if (!lists.empty()) ++followed;
        if (lists.empty() || lists.back() != list) lists.push_back(list);
      }
      if (!mixed) {
        EXPECT_TRUE(std::is_sorted(lists.begin(), lists.end())) << "seed " << seed << ", CTA " << cta;
      }
      std::sort(lists.begin(), lists.end());
      EXPECT_EQ(std::adjacent_find(lists.begin(), lists.end()), lists.end()) << "seed " << seed << ", CTA " << cta << ": a list comes back";
    }
  }
  EXPECT_GT(followed, 1000);
}

TEST(Properties, EveryPolicyOnAnyNumberOfCtas) {
  int32_t with_levels = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    test::RandomCase c;
    test::make_random(seed, c);
    if (c.b.groups.empty()) c.capacity.max_level_rows = 4 * c.b.tokens();
    c.config.level_first_gain = c.config.level_more_gain = 1;
    for (Policy policy : kPolicies) {
      for (int32_t ctas : kCtas) {
        for (LevelMode levels : {LevelMode::off, LevelMode::automatic}) {
          c.config.policy = policy, c.config.num_ctas = ctas, c.config.levels = levels;
          const Planned p(c.spec, c.capacity, c.config, c.b.batch);
          const std::string where = fmt::format("seed {}, policy {}, {} CTAs, levels {}", seed, int(policy), ctas, int(levels));
          ASSERT_EQ(validate(p, c.spec), "") << where;
          ASSERT_LE(p.header().num_items - units_of_work(p.view), cuts_allowed(policy, ctas)) << where;
          with_levels += levels == LevelMode::automatic && c.b.groups.empty() && p.header().num_levels > 1;
        }
      }
    }
  }
  EXPECT_GT(with_levels, 20);
}

TEST(Properties, CutsBoundPartialsAndMerges) {
  test::Random r(17);
  for (int round = 0; round < 150; ++round) {
    const AttentionSpec spec = test::small_spec(8, r.of({1, 2, 8}));
    std::vector<int32_t> kv;
    for (int32_t n = r.of({1, 2, 9, 60, 200}); n > 0; --n) kv.push_back(r.chance(10) ? r.in(1, 60000) : r.in(0, 4000));
    const test::TestBatch b(std::vector<int32_t>(kv.size(), 1), kv, spec);
    for (Policy policy : {Policy::none, Policy::heap, Policy::stream, Policy::fill}) {
      const int32_t ctas = r.of({1, 7, 132});
      const Planned p(spec, test::capacity_of(b), test::gpu_config(ctas, policy), b.batch);
      int64_t partials = 0;
      for (const WorkItem& w : p.view.items) partials += w.partial_row >= 0;
      const int64_t cuts = p.header().num_items - units_of_work(p.view);
      ASSERT_LE(cuts, policy == Policy::none ? 0 : ctas - 1) << "round " << round << " policy " << int(policy);
      ASSERT_LE(partials, 2 * cuts);
      ASSERT_LE(p.header().num_units, cuts);  // decode: a unit of work is one merge unit
      ASSERT_EQ(validate(p, spec), "");
    }
  }
}

/// A shared prefix is read once: the plan's items have exactly the keys that the groups have, and no row loses one.
TEST(Properties, LevelsReadASharedPrefixOnce) {
  test::Step step;
  int32_t next = 100000;
  for (int32_t i = 0; i < 24; ++i) {
    step.lists.push_back(test::with_tail(test::joined(test::run(0, 40), test::run(1000 + i % 2 * 100, 20)), 1000 + 7 * i, 16, next));
    step.kv_len.push_back(1000 + 7 * i);
  }
  const AttentionSpec spec = test::spec_of(step);
  Capacity capacity;
  capacity.max_requests = 24, capacity.max_query_tokens = 24, capacity.max_kv_tokens = 100000, capacity.max_level_rows = 48;
  const int64_t flat = 24 * 1000 + 7 * 276, saved = 23 * 640 + 2 * 11 * 320;
  for (Policy policy : kPolicies) {
    for (int32_t ctas : kCtas) {
      for (LevelMode levels : {LevelMode::off, LevelMode::automatic}) {
        SchedulerConfig config = test::gpu_config(ctas, policy);
        config.levels = levels;
        const Planned p(spec, capacity, config, step.batch());
        ASSERT_EQ(validate(p, spec), "") << int(policy) << ", " << ctas;
        int64_t keys = 0;
        for (const WorkItem& w : p.view.items) keys += int64_t(w.kv_end - w.kv_begin) * w.kv_head_count;
        const bool shares = levels == LevelMode::automatic && policy != Policy::fixed_split;
        EXPECT_EQ(keys, (flat - (shares ? saved : 0)) * spec.num_kv_heads) << int(policy) << ", " << ctas;
        EXPECT_EQ(p.header().num_levels, shares ? 3 : 1);
        EXPECT_STREQ(p.planner.level_notes(), "");
      }
    }
  }
}

}  // namespace
}  // namespace kvloom
