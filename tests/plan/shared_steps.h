// Steps with shared page tables, the finder run on them, and what every result must satisfy.
#pragma once

#include "kvloom/attn/mask.h"
#include "kvloom/plan/levels.h"
#include "kvloom/plan/validate.h"
#include "tests/plan/naive_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace kvloom::test {

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

inline AttentionSpec spec_of(const Step& step, KeyRange range = {true, -1, -1}) {
  AttentionSpec spec;
  spec.num_qo_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = spec.head_dim_vo = 64;
  spec.page_size = step.page_size;
  spec.variant.range = range;
  return spec;
}

/// Tiles as a GPU has them: one pass takes 128 packed rows.
inline SchedulerConfig eager_config() {
  SchedulerConfig config;
  config.classes[1].tile_rows = 128;
  config.level_first_gain = 1;
  config.level_more_gain = 0;
  return config;
}

inline constexpr Capacity kRoomy{
    .max_requests = 1 << 20, .max_query_tokens = 1 << 20, .max_kv_tokens = 0, .max_level_rows = 1 << 20, .max_groups = 0};

/// A list that is `shared` followed by private pages up to `kv_len` tokens.
inline std::vector<int32_t> with_tail(std::vector<int32_t> shared, int32_t kv_len, int32_t page_size, int32_t& next_page) {
  while (int32_t(shared.size()) * page_size < kv_len) shared.push_back(next_page++);
  return shared;
}
inline std::vector<int32_t> run(int32_t first, int32_t count) {
  std::vector<int32_t> v(count);
  std::iota(v.begin(), v.end(), first);
  return v;
}
inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
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
inline void PrintTo(const Found& f, std::ostream* os) {
  *os << "level " << f.level << ", positions " << f.kv_pos0 << " + " << f.tokens << ", requests";
  for (int32_t r : f.requests) *os << ' ' << r;
}

inline std::vector<Found> shared_of(const plan::GroupList& list) {
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
inline void expect_same_keys(const AttentionSpec& spec, Step& step, const plan::GroupList& list) {
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
inline std::vector<Found> find(Step& step, const AttentionSpec& spec, const SchedulerConfig& config, const Capacity& capacity = kRoomy,
                               std::string* notes = nullptr) {
  plan::GroupList list;
  plan::PrefixFinder finder;
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
  NaiveOptions options{.tile_rows = 64, .tile_kv = 16, .chunk = 128};
  const auto words = NaivePlanner(spec, options).plan(list.groups, list.row_entries, list.num_levels, total).buffer();
  EXPECT_EQ(plan::validate_plan(words.data(), int64_t(words.size() * 8), spec), "");
  return shared_of(list);
}

}  // namespace kvloom::test
