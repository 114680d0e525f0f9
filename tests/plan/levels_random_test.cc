// Shared prefixes, against brute force: the best choice of groups on small trees, and every key of every row on random ones.
#include "tests/plan/shared_steps.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>

namespace kvloom {
namespace {

using namespace test;

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
