// Shared prefixes: known families are found exactly, and whatever is found, every row still sees its own keys once.
#include "kvloom/plan/levels.h"

#include "kvloom/attn/mask.h"
#include "kvloom/plan/validate.h"
#include "tests/plan/naive_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

namespace kvloom {
namespace {

using plan::GroupList;
using plan::PrefixFinder;

/// A step with its arrays. `lists` are page ids a request, as many as wanted beyond what kv_len needs.
struct Step {
  int32_t page_size = 16;
  std::vector<std::vector<int32_t>> lists;
  std::vector<int32_t> kv_len;
  std::vector<int32_t> q_len;  // empty: decode
  std::vector<int32_t> prefix, q_pos0, q_pos;
  bool dense = false;
  bool wide = false;  // int64 arrays

  std::vector<int32_t> qo_indptr_, pages32_, indptr32_;
  std::vector<int64_t> pages64_, indptr64_, kv64_, qo64_;
  Batch batch_;

  const Batch& batch() {
    const int32_t n = int32_t(lists.size());
    if (q_len.empty()) q_len.assign(n, 1);
    qo_indptr_ = {0};
    for (int32_t q : q_len) qo_indptr_.push_back(qo_indptr_.back() + q);
    size_t stride = 1;
    for (const auto& list : lists) stride = std::max(stride, list.size());
    pages32_.clear();
    indptr32_ = {0};
    for (const auto& list : lists) {
      pages32_.insert(pages32_.end(), list.begin(), list.end());
      if (dense) pages32_.resize(indptr32_.size() * stride, -1);
      indptr32_.push_back(int32_t(pages32_.size()));
    }
    pages64_.assign(pages32_.begin(), pages32_.end());
    indptr64_.assign(indptr32_.begin(), indptr32_.end());
    kv64_.assign(kv_len.begin(), kv_len.end());
    qo64_.assign(qo_indptr_.begin(), qo_indptr_.end());
    auto view = [&](const std::vector<int32_t>& a, const std::vector<int64_t>& b) {
      return wide ? IndexView(b.data(), int64_t(b.size())) : IndexView(a.data(), int64_t(a.size()));
    };
    batch_ = {};
    batch_.num_requests = n;
    batch_.qo_indptr = view(qo_indptr_, qo64_);
    batch_.kv_len = view(kv_len, kv64_);
    batch_.pages = view(pages32_, pages64_);
    if (dense) {
      batch_.table_stride = int64_t(stride);
    } else {
      batch_.list_indptr = view(indptr32_, indptr64_);
    }
    if (!prefix.empty()) batch_.prefix = prefix.data();
    if (!q_pos0.empty()) batch_.q_pos0 = q_pos0.data();
    if (!q_pos.empty()) batch_.q_pos = q_pos.data();
    return batch_;
  }
};

AttentionSpec spec_of(const Step& step, KeyRange range = {true, -1, -1}) {
  AttentionSpec spec;
  spec.num_qo_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = spec.head_dim_vo = 64;
  spec.page_size = step.page_size;
  spec.variant.range = range;
  return spec;
}

/// Tiles as a GPU has them: one pass takes 128 packed rows.
SchedulerConfig eager_config() {
  SchedulerConfig config;
  config.classes[1].tile_rows = 128;
  config.level_first_gain = 1;
  config.level_more_gain = 0;
  return config;
}

constexpr Capacity kRoomy{
    .max_requests = 1 << 20, .max_query_tokens = 1 << 20, .max_kv_tokens = 0, .max_level_rows = 1 << 20, .max_groups = 0};

/// A list that is `shared` followed by private pages up to `kv_len` tokens.
std::vector<int32_t> with_tail(std::vector<int32_t> shared, int32_t kv_len, int32_t page_size, int32_t& next_page) {
  while (int32_t(shared.size()) * page_size < kv_len) shared.push_back(next_page++);
  return shared;
}
std::vector<int32_t> run(int32_t first, int32_t count) {
  std::vector<int32_t> v(count);
  std::iota(v.begin(), v.end(), first);
  return v;
}
std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A shared group in short: what tests compare.
struct Found {
  int32_t level, kv_pos0, tokens;
  std::set<int32_t> requests;
  bool operator==(const Found&) const = default;
  auto operator<=>(const Found&) const = default;
};
void PrintTo(const Found& f, std::ostream* os) {
  *os << "level " << f.level << ", positions " << f.kv_pos0 << " + " << f.tokens << ", requests";
  for (int32_t r : f.requests) *os << ' ' << r;
}

std::vector<Found> shared_of(const GroupList& list) {
  std::vector<Found> found;
  for (const RowGroup& g : list.groups) {
    if (g.level == list.num_levels - 1) continue;
    Found f{g.level, g.kv_pos0, g.kv_end - g.kv_begin, {}};
    for (int32_t i = 0; i < g.token_count; ++i) f.requests.insert(list.row_entries[g.row_list + i].request);
    found.push_back(f);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// One query token's key: where it is stored, its position and its mask column.
using Key = std::tuple<int64_t, int32_t, int32_t>;

/// Every key that the token keeps, over all groups; tokens as they are numbered in `list`, with (request, q_index, q_pos, prefix) checked.
void expect_same_keys(const AttentionSpec& spec, Step& step, const GroupList& list) {
  const Batch& b = step.batch();
  const int32_t total = int32_t(b.qo_indptr[b.num_requests]);
  std::vector<std::vector<Key>> kept(total);
  std::vector<RowEntry> rows(total);
  for (int32_t r = 0; r < b.num_requests; ++r) {
    const int32_t begin = int32_t(b.qo_indptr[r]), end = int32_t(b.qo_indptr[r + 1]);
    for (int32_t t = begin; t < end; ++t) {
      const int32_t pos0 = b.q_pos0 ? b.q_pos0[r] : int32_t(b.kv_len[r]) - (end - begin);
      rows[t] = {t, r, t - begin, b.q_pos ? b.q_pos[t] : pos0 + t - begin, b.prefix ? b.prefix[r] : 0};
      for (int32_t j = 0; j < b.kv_len[r]; ++j) {
        if (!keeps(spec.variant.range, rows[t].prefix, rows[t].q_pos, j)) continue;
        kept[t].push_back({int64_t(step.lists[r][j / spec.page_size]) * spec.page_size + j % spec.page_size, j, j});
      }
    }
  }
  std::vector<std::vector<Key>> got(total);
  int32_t last_level = 0;
  for (const RowGroup& g : list.groups) {
    EXPECT_GE(g.level, last_level);
    EXPECT_LT(g.level, list.num_levels);
    last_level = g.level;
    for (int32_t i = 0; i < g.token_count; ++i) {
      const RowEntry e = g.row_list >= 0 ? list.row_entries[g.row_list + i]
                                         : RowEntry{g.token_begin + i, g.request, g.q_index0 + i, g.q_pos0 + i, g.prefix};
      ASSERT_LT(e.token, total);
      const RowEntry& want = rows[e.token];
      ASSERT_TRUE(e.request == want.request && e.q_index == want.q_index && e.q_pos == want.q_pos && e.prefix == want.prefix)
          << "token " << e.token;
      for (int32_t j = g.kv_begin; j < g.kv_end; ++j) {
        const int32_t pos = g.kv_pos0 + j;
        if (!keeps(spec.variant.range, e.prefix, e.q_pos, pos)) continue;
        const int64_t page = b.pages[g.list_begin + j / spec.page_size];
        got[e.token].push_back({page * spec.page_size + j % spec.page_size, pos, g.kv_index0 + j});
      }
    }
  }
  for (int32_t t = 0; t < total; ++t) {
    std::sort(got[t].begin(), got[t].end());
    std::sort(kept[t].begin(), kept[t].end());
    ASSERT_EQ(got[t], kept[t]) << "token " << t;
  }
}

/// Runs the finder, checks keys, and that its groups make a plan that validates.
std::vector<Found> find(Step& step, const AttentionSpec& spec, const SchedulerConfig& config, const Capacity& capacity = kRoomy,
                        std::string* notes = nullptr) {
  GroupList list;
  PrefixFinder finder;
  const bool found = finder.find(spec, capacity, config, step.batch(), list);
  if (notes) *notes = list.notes;
  if (!found) {
    EXPECT_TRUE(list.groups.empty() && list.row_entries.empty());
    EXPECT_EQ(list.num_levels, 1);
    return {};
  }
  EXPECT_GE(list.num_levels, 2);
  expect_same_keys(spec, step, list);
  const int32_t total = step.qo_indptr_.back();
  test::NaiveOptions options{.tile_rows = 64, .tile_kv = 16, .chunk = 128};
  const auto words = test::NaivePlanner(spec, options).plan(list.groups, list.row_entries, list.num_levels, total).buffer();
  EXPECT_EQ(plan::validate_plan(words.data(), int64_t(words.size() * 8), spec), "");
  return shared_of(list);
}

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

TEST(Levels, GainsDecide) {
  Step step;
  int32_t next = 5000;
  for (int32_t i = 0; i < 3; ++i) {
    step.lists.push_back(with_tail(run(0, 10), 200, 16, next));
    step.kv_len.push_back(200);
  }
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
  config.level_more_gain = 319;
  EXPECT_EQ(find(step, spec, config).size(), 1u);
  config.level_more_gain = 320;
  EXPECT_TRUE(find(step, spec, config, kRoomy, &notes).empty());
  EXPECT_NE(notes.find("320 tokens"), std::string::npos) << notes;
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
  EXPECT_TRUE(find(step, spec, eager_config(), capacity).empty());
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

/// All subsets of the nodes of a small tree, by brute force: none saves more than the one that is taken.
TEST(Levels, TheChoiceIsTheBest) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Step step;
    step.page_size = 8;
    int32_t next = 1000;
    const int32_t n = 2 + int32_t(random() % 6);
    for (int32_t i = 0; i < n; ++i) {
      // Digits of a random number choose the way down a binary tree with runs of 1 to 3 pages.
      std::vector<int32_t> list;
      uint32_t at = 1;
      for (int d = 0; d < 3; ++d) {
        list = joined(list, run(int32_t(at) * 10, 1 + int32_t((at * 2654435761u >> 13) % 3)));
        at = at * 2 + random() % 2;
      }
      step.lists.push_back(with_tail(list, 90, 8, next));
      step.kv_len.push_back(90);
    }
    SchedulerConfig config = eager_config();
    config.level_more_gain = int64_t(random() % 60);
    const AttentionSpec spec = spec_of(step);
    int64_t taken = 0;
    for (const Found& f : find(step, spec, config)) taken += int64_t(f.requests.size() - 1) * f.tokens - config.level_more_gain;
    // Every set of >= 2 requests that is a node: those sharing the first `pages` pages of request i.
    std::set<std::pair<std::set<int32_t>, int32_t>> nodes;
    for (int32_t i = 0; i < n; ++i) {
      for (int32_t pages = 1; pages <= 11; ++pages) {
        std::set<int32_t> who;
        for (int32_t j = 0; j < n; ++j) {
          if (std::equal(step.lists[i].begin(), step.lists[i].begin() + pages, step.lists[j].begin())) who.insert(j);
        }
        if (who.size() >= 2) nodes.insert({who, pages});
      }
    }
    std::map<std::set<int32_t>, int32_t> longest;
    for (const auto& [who, pages] : nodes) longest[who] = std::max(longest[who], pages);
    const std::vector<std::pair<std::set<int32_t>, int32_t>> all(longest.begin(), longest.end());
    ASSERT_LE(all.size(), 12u);
    int64_t best = 0;
    for (uint32_t choice = 1; choice < (1u << all.size()); ++choice) {
      int64_t value = 0;
      for (size_t v = 0; v < all.size(); ++v) {
        if (!(choice >> v & 1)) continue;
        int32_t from = 0;
        for (size_t a = 0; a < all.size(); ++a) {
          const bool above = a != v && (choice >> a & 1) && all[a].first.size() > all[v].first.size() &&
                             std::includes(all[a].first.begin(), all[a].first.end(), all[v].first.begin(), all[v].first.end());
          if (above) from = std::max(from, all[a].second);
        }
        value += int64_t(all[v].first.size() - 1) * (all[v].second - from) * 8 - config.level_more_gain;
      }
      best = std::max(best, value);
    }
    ASSERT_EQ(taken, best) << "round " << round;
  }
}

TEST(Levels, RandomTreesKeepEveryKey) {
  std::mt19937 random(11);
  auto below = [&](uint32_t n) { return int32_t(random() % n); };
  int32_t found = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    Step step;
    step.page_size = std::array{1, 2, 7, 16}[below(4)];
    step.dense = below(2), step.wide = below(2);
    int32_t next = 100000;
    const int32_t n = 1 + below(12), fan = 1 + below(3);
    for (int32_t i = 0; i < n; ++i) {
      std::vector<int32_t> list;
      int32_t at = below(fan);
      for (int32_t d = below(5); d > 0; --d) {
        list = joined(list, run(at * 16, 1 + at % 5));
        at = at * fan + 1 + below(fan);
      }
      const int32_t kv_len = below(int32_t(list.size() + 3) * step.page_size + 1);
      list = with_tail(std::move(list), kv_len, step.page_size, next);
      step.lists.push_back(list);
      step.kv_len.push_back(kv_len);
      step.q_len.push_back(below(4) ? 1 : below(6));
    }
    const int32_t total = std::accumulate(step.q_len.begin(), step.q_len.end(), 0);
    if (below(4) == 0) {
      for (int32_t i = 0; i < n; ++i) step.prefix.push_back(below(2) * below(20));
    }
    if (below(6) == 0) {
      for (int32_t i = 0; i < n; ++i) step.q_pos0.push_back(below(60));
    } else if (below(6) == 0) {
      for (int32_t t = 0; t < total; ++t) step.q_pos.push_back(below(60));
    }
    const KeyRange range =
        std::array<KeyRange, 5>{KeyRange{}, {true, -1, -1}, {true, below(40), -1}, {false, below(9), below(9)}, {false, -1, 3}}[below(5)];
    SchedulerConfig config = eager_config();
    config.level_more_gain = below(3) * 10;
    Capacity capacity = kRoomy;
    if (below(5) == 0) capacity.max_level_rows = below(8);
    found += !find(step, spec_of(step, range), config, capacity).empty();
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  EXPECT_GT(found, kRounds / 4);
}

}  // namespace
}  // namespace kvloom
