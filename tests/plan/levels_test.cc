// Shared prefixes: known families are found exactly, and whatever is found, every row still sees its own keys once.
#include "kvloom/plan/cost.h"
#include "tests/plan/plan_check.h"
#include "tests/plan/shared_steps.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace kvloom {
namespace {

using namespace test;
using plan::GroupList;
using plan::PrefixFinder;

TEST(Levels, FindsOnePrefix) {
  Step step;
  int32_t next = 1000;
  step.kv_len = {500, 700, 401, 900};
  for (int32_t n : step.kv_len) step.lists.push_back(with_tail(run(0, 20), n, 16, next));
  EXPECT_EQ(find(step, spec_of(step), eager_config()), (std::vector<Found>{{0, 0, 320, {0, 1, 2, 3}}}));
}

TEST(Levels, FindsTwoInterleavedFamiliesOfDepthThree) {
  // Family A on pages 0.., family B on pages 500..; even requests are A's. Each has a trunk, two branches, and two twigs on each branch.
  for (bool dense : {false, true}) {
    for (bool wide : {false, true}) {
      Step step;
      step.dense = dense;
      step.wide = wide;
      int32_t next = 5000;
      std::vector<Found> want;
      std::map<std::tuple<int, int, int>, std::set<int32_t>> members;
      for (int32_t i = 0; i < 16; ++i) {
        const int32_t family = i % 2, branch = i / 2 % 2, twig = i / 4 % 2, base = family * 500;
        std::vector<int32_t> list =
            joined(joined(run(base, 30), run(base + 100 + 50 * branch, 10)), run(base + 200 + 100 * branch + 50 * twig, 20));
        step.lists.push_back(with_tail(list, 60 * 16 + 33 + i, 16, next));
        step.kv_len.push_back(60 * 16 + 33 + i);
        members[{family, -1, -1}].insert(i);
        members[{family, branch, -1}].insert(i);
        members[{family, branch, twig}].insert(i);
      }
      for (const auto& [where, requests] : members) {
        const auto [family, branch, twig] = where;
        if (branch < 0) {
          want.push_back({0, 0, 30 * 16, requests});
        } else if (twig < 0) {
          want.push_back({1, 30 * 16, 10 * 16, requests});
        } else {
          want.push_back({2, 40 * 16, 20 * 16, requests});
        }
      }
      std::sort(want.begin(), want.end());
      EXPECT_EQ(find(step, spec_of(step), eager_config()), want);
    }
  }
}

TEST(Levels, SmallForksJoinTheirNeighbours) {
  // A trunk of 1 page for 4 requests, then two pairs of 100 pages each: the trunk is worth less than a group, and goes to the pairs.
  Step step;
  int32_t next = 5000;
  for (int32_t i = 0; i < 4; ++i) {
    step.lists.push_back(with_tail(joined(run(0, 1), run(100 + i / 2 * 200, 100)), 1700, 16, next));
    step.kv_len.push_back(1700);
  }
  SchedulerConfig config = eager_config();
  config.level_more_gain = 250;
  config.level_first_gain = 2000;
  EXPECT_EQ(find(step, spec_of(step), config), (std::vector<Found>{{0, 0, 1616, {0, 1}}, {0, 0, 1616, {2, 3}}}));
}

/// Three decodes with so many pages in common.
Step three_that_share(int32_t pages, int32_t kv_len) {
  Step step;
  int32_t next = 5000;
  for (int32_t i = 0; i < 3; ++i) {
    step.lists.push_back(with_tail(run(0, pages), kv_len, 16, next));
    step.kv_len.push_back(kv_len);
  }
  return step;
}

TEST(Levels, GainsDecide) {
  Step step = three_that_share(10, 200);
  const AttentionSpec spec = spec_of(step);  // saves 2 x 160 tokens
  SchedulerConfig config = eager_config();
  std::string notes;
  config.level_first_gain = 320;
  EXPECT_EQ(find(step, spec, config, kRoomy, &notes).size(), 1u);
  EXPECT_EQ(notes, "");
  config.level_first_gain = 321;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
  EXPECT_NE(notes.find("320 tokens"), std::string::npos) << notes;
  config.level_first_gain = 0;
  config.level_first_percent = 53;  // of the 600 that three decodes read
  EXPECT_EQ(find(step, spec, config, kRoomy, &notes).size(), 1u);
  config.level_first_percent = 54;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
  EXPECT_NE(notes.find("a first level must save 324"), std::string::npos) << notes;
  // With many rows beside them: what those cost counts, too: 4 row tiles of 200 keys beside 2 x 200. 160 tokens are saved.
  step.q_len = {100, 1, 1};
  config.level_first_percent = 14;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
  config.level_first_percent = 13;
  EXPECT_EQ(find(step, spec, config, kRoomy, &notes).size(), 1u) << notes;
  step.q_len.clear();
  config.level_first_percent = 0;
  config.level_more_gain = 319;
  EXPECT_EQ(find(step, spec, config).size(), 1u);
  config.level_more_gain = 320;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
  EXPECT_NE(notes.find("320 tokens"), std::string::npos) << notes;
}

TEST(Levels, TheFirstGroupAboveARequestSavesMore) {
  Step step;
  int32_t next = 5000;
  const auto add = [&](int32_t first, int32_t requests, int32_t more) {
    for (int32_t i = 0; i < requests; ++i) {
      std::vector<int32_t> pages = run(first, 10);
      for (int32_t p = 0; p < more; ++p) pages.push_back(first + 50 + p);
      step.lists.push_back(with_tail(pages, 400, 16, next));
      step.kv_len.push_back(400);
    }
  };
  add(0, 2, 0);    // 160 tokens are saved
  add(100, 3, 0);  // 320
  const AttentionSpec spec = spec_of(step);
  SchedulerConfig config = eager_config();
  std::string notes;
  config.level_more_gain = 10;
  config.level_reader_gain = 74;
  EXPECT_EQ(find(step, spec, config, kRoomy, &notes).size(), 2u) << notes;
  config.level_reader_gain = 75;
  EXPECT_EQ(find(step, spec, config, kRoomy, &notes).size(), 1u) << notes;
  config.level_reader_gain = 104;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
  EXPECT_NE(notes.find("and 104 for each request that reads it"), std::string::npos) << notes;
  step.q_len.clear();
  add(0, 2, 5);  // 480 by all four, and 80 below that: those two are partial already
  config.level_reader_gain = 134;
  EXPECT_EQ(find(step, spec, config, kRoomy, &notes).size(), 2u) << notes;
  config.level_reader_gain = 135;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
}

// Kernels that lose by them: no levels in steps with requests of many rows, and the reason is said.
TEST(Levels, NoneBesideManyRowsWhereThatIsSaid) {
  Step step = three_that_share(20, 400);
  step.q_len = {1, 1, 5};  // 20 rows
  const AttentionSpec spec = spec_of(step);
  SchedulerConfig config = eager_config();
  std::string notes;
  EXPECT_FALSE(find(step, spec, config, kRoomy, &notes).empty()) << notes;
  config.levels_beside_many = false;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
  EXPECT_NE(notes.find("1 families of requests share prefixes, not taken: some request has more than 16 packed rows"), std::string::npos) << notes;
  step.q_len[2] = 4;
  EXPECT_FALSE(find(step, spec, config, kRoomy, &notes).empty()) << notes;
}

// Steps of few rows alone: other costs where they have levels, found once.
TEST(Levels, FewRowsAloneCostMoreAnItem) {
  const auto families = [](int32_t readers) {
    Step step;
    int32_t next = 5000;
    for (int32_t i = 0; i < 3 * readers; ++i) {
      const int32_t kv_len = 640 + 1 + i * 53 % 200;
      step.lists.push_back(with_tail(run(i / readers * 100, 40), kv_len, 16, next));
      step.kv_len.push_back(kv_len);
    }
    return step;
  };
  const Capacity capacity{.max_requests = 64, .max_query_tokens = 64, .max_kv_tokens = 100000, .max_level_rows = 64, .max_groups = 0};
  for (const int32_t readers : {1, 4, 5}) {
    Step step = families(readers);
    const AttentionSpec spec = spec_of(step);
    SchedulerConfig config = eager_config();
    config.num_ctas = 7;
    config.classes[0].cost_per_item = 100;
    config.cost_level_item = 5000;
    const bool levels = readers > 1, few = readers * spec.group_size() <= config.compute_rows_above;
    plan::Planner planner(spec, capacity, config), other(spec, capacity, config);
    PlanBuffer plan(planner.layout().plan_bytes), same(planner.layout().plan_bytes);
    std::memset(plan.data, 0, size_t(plan.bytes)), std::memset(same.data, 0, size_t(same.bytes));
    planner.plan(step.batch(), plan.data, plan.bytes);
    const PlanView view = view_plan(plan.data);
    EXPECT_EQ(view.header->num_levels, levels ? 2 : 1);
    EXPECT_EQ(view.header->classes[0].cost_per_item, levels && few ? 5100 : 100) << readers;
    EXPECT_EQ(plan::validate_plan(plan.data, plan.bytes, spec), "");
    uint64_t total = 0;
    for (const WorkItem& item : view.items) total += plan::work_cost(*view.header, item);
    EXPECT_EQ(view.header->cost_total, total);
    EXPECT_EQ(other.plan_flat(step.batch(), same.data, same.bytes), !levels);
    if (levels) {
      EXPECT_EQ(static_cast<const PlanHeader*>(same.data)->magic, 0u) << "nothing is written";
      planner.plan_levels_of(other, step.batch(), same.data, same.bytes);
    }
    EXPECT_EQ(std::memcmp(plan.data, same.data, size_t(view.header->total_bytes)), 0) << readers;
  }
}

TEST(Levels, WhatDoesNotFitIsDroppedAndSaid) {
  // Pair (0, 1) shares 40 pages, pair (2, 3) shares 20.
  Step step;
  int32_t next = 5000;
  for (int32_t i = 0; i < 4; ++i) {
    step.lists.push_back(with_tail(i < 2 ? run(0, 40) : run(100, 20), 700, 16, next));
    step.kv_len.push_back(700);
  }
  const AttentionSpec spec = spec_of(step);
  const Found large{0, 0, 640, {0, 1}}, small{0, 0, 320, {2, 3}};
  std::string notes;
  Capacity capacity = kRoomy;
  capacity.max_level_rows = 4;
  EXPECT_EQ(find(step, spec, eager_config(), capacity, &notes), (std::vector<Found>{small, large}));
  EXPECT_EQ(notes, "");
  capacity.max_level_rows = 3;
  EXPECT_EQ(find(step, spec, eager_config(), capacity, &notes), (std::vector<Found>{large}));
  EXPECT_NE(notes.find("1 of 2"), std::string::npos) << notes;
  capacity.max_level_rows = 1;
  EXPECT_TRUE(find(step, spec, eager_config(), capacity, &notes).empty());
  EXPECT_NE(notes.find("2 of 2 shared prefixes dropped: they need Capacity.max_level_rows 4, got 1"), std::string::npos) << notes;
  EXPECT_EQ(notes.find("none saves"), std::string::npos) << "they save enough: " << notes;
  capacity = kRoomy;
  capacity.max_groups = 5;  // four own groups and one
  EXPECT_EQ(find(step, spec, eager_config(), capacity, &notes), (std::vector<Found>{large}));
  EXPECT_NE(notes.find("groups"), std::string::npos) << notes;
}

TEST(Levels, NewTokensKeepTheirPages) {
  // Identical page tables: everything but the pages of the new tokens is shared.
  Step step;
  step.lists.assign(5, run(0, 10));
  step.kv_len = {160, 160, 145, 144, 160};
  step.q_len = {1, 17, 1, 1, 0};
  // Whole pages before the new tokens: 9, 8, 9, 8; the request without query tokens is nobody's reader.
  EXPECT_EQ(find(step, spec_of(step), eager_config()), (std::vector<Found>{{0, 0, 128, {0, 1, 2, 3}}, {1, 128, 16, {0, 2}}}));
}

TEST(Levels, PrefixEqualToTheWholeKv) {
  Step step;
  step.page_size = 1;
  step.lists = {run(0, 64), run(0, 64), run(0, 80)};
  step.kv_len = {64, 64, 80};
  EXPECT_EQ(find(step, spec_of(step), eager_config()), (std::vector<Found>{{0, 0, 63, {0, 1, 2}}}));
}

TEST(Levels, KvShorterThanItsPages) {
  Step step;
  step.lists = {run(0, 50), run(0, 50)};
  step.kv_len = {100, 90};
  EXPECT_EQ(find(step, spec_of(step), eager_config()), (std::vector<Found>{{0, 0, 80, {0, 1}}}));
}

TEST(Levels, FlatWhereNothingIsShared) {
  Step step;
  int32_t next = 0;
  step.kv_len = {100, 300, 0, 17, 1};
  for (int32_t n : step.kv_len) step.lists.push_back(with_tail({}, n, 16, next));
  EXPECT_TRUE(find(step, spec_of(step), eager_config()).empty());
  Step single;
  single.lists = {run(0, 10)};
  single.kv_len = {160};
  EXPECT_TRUE(find(single, spec_of(single), eager_config()).empty());
  Step none;
  EXPECT_TRUE(find(none, spec_of(none), eager_config()).empty());
}

TEST(Levels, EqualPagesAtOtherPlacesAreNotAPrefix) {
  Step step;
  step.lists = {{7, 1, 2, 3}, {8, 1, 2, 3}, {1, 2, 3, 4}, {9, 7, 1, 2}};
  step.kv_len = {64, 64, 64, 64};
  EXPECT_TRUE(find(step, spec_of(step), eager_config()).empty());
}

TEST(Levels, LongPrefillsGainNothing) {
  Step step;
  int32_t next = 1000;
  step.kv_len = {2000, 2000, 2000, 2000};
  step.q_len = {64, 64, 1, 1};  // 64 tokens x 4 heads fill two tiles of 128 rows alone
  for (int32_t n : step.kv_len) step.lists.push_back(with_tail(run(0, 60), n, 16, next));
  EXPECT_EQ(find(step, spec_of(step), eager_config()), (std::vector<Found>{{0, 0, 960, {2, 3}}}));
}

TEST(Levels, AWindowSharesOnlyWhatItSees) {
  Step step;
  int32_t next = 1000;
  step.kv_len = {1000, 1000, 1003, 1100};
  for (int32_t n : step.kv_len) step.lists.push_back(with_tail(run(0, 60), n, 16, next));
  const AttentionSpec spec = spec_of(step, {true, 255, -1});
  // Windows begin at 744, 744, 747 (page 46) and 844: the last one begins elsewhere.
  EXPECT_EQ(find(step, spec, eager_config()), (std::vector<Found>{{0, 46 * 16, 14 * 16, {0, 1, 2}}}));
  for (auto& list : step.lists) std::fill(list.begin(), list.begin() + 46, -1);  // an engine may free what no window sees
  step.lists[1][0] = 77;
  EXPECT_EQ(find(step, spec, eager_config()), (std::vector<Found>{{0, 46 * 16, 14 * 16, {0, 1, 2}}}));
  for (auto& list : step.lists) list[0] = 3;
  step.prefix = {4, 4, 0, 4};  // a kept prefix is seen, so the list counts from its first page
  std::vector<Found> found = find(step, spec, eager_config());
  EXPECT_EQ(found, (std::vector<Found>{{0, 0, 60 * 16, {0, 1, 3}}}));
}

TEST(Levels, OtherFormsAreLeftAlone) {
  Step step;
  step.lists.assign(4, run(0, 100));
  step.kv_len.assign(4, 1600);
  const SchedulerConfig config = eager_config();
  PrefixFinder finder;
  GroupList list;
  AttentionSpec spec = spec_of(step);
  Batch batch = step.batch();
  batch.kv_position = KvPosition::page_id;
  EXPECT_FALSE(finder.find(spec, kRoomy, config, batch, list));
  batch = step.batch();
  batch.lists_per_kv_head = true;
  EXPECT_FALSE(finder.find(spec, kRoomy, config, batch, list));
  batch = step.batch();
  spec.storage = Storage::ragged;
  EXPECT_FALSE(finder.find(spec, kRoomy, config, batch, list));
  EXPECT_TRUE(list.groups.empty());
}

TEST(Levels, ManyRequestsAndNastyTrees) {
  constexpr int32_t kRequests = 8192;
  Step step;
  step.page_size = 1;
  int32_t next = 1 << 20;
  for (int32_t i = 0; i < kRequests; ++i) {
    step.lists.push_back(with_tail(run(i % 64 * 1000, 40), 60, 1, next));
    step.kv_len.push_back(60);
  }
  EXPECT_EQ(find(step, spec_of(step), eager_config()).size(), 64u);

  // A comb: request i shares i pages. Every page forks; all of them are found as far as forks are followed.
  Step comb;
  comb.page_size = 1;
  for (int32_t i = 1; i <= 200; ++i) {
    comb.lists.push_back(with_tail(run(0, i), i + 3, 1, next));
    comb.kv_len.push_back(i + 3);
  }
  SchedulerConfig config = eager_config();
  EXPECT_GE(find(comb, spec_of(comb), config).size(), 100u);
  config.level_more_gain = 250;
  const std::vector<Found> found = find(comb, spec_of(comb), config);
  EXPECT_GE(found.size(), 2u);
  EXPECT_LE(found.size(), 40u);
}

}  // namespace
}  // namespace kvloom
