#include "kvloom/plan/groups.h"
#include "kvloom/plan/layout.h"
#include "kvloom/support/check.h"

#include <algorithm>
#include <numeric>

namespace kvloom::plan {

void ExplicitGroups::map_tokens(const Batch& batch) {
  request_of_.clear();
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    request_of_.resize(size_t(batch.qo_indptr[r + 1]), r);
  }
}

RowEntry ExplicitGroups::entry_of(const Batch& batch, int32_t token) const {
  const int32_t r = request_of_[token];
  const int64_t begin = batch.qo_indptr[r];
  RowEntry e{token, r, int32_t(token - begin), 0, batch.prefix ? batch.prefix[r] : 0};
  if (batch.q_pos) {
    e.q_pos = batch.q_pos[token];
  } else {
    e.q_pos = e.q_index + (batch.q_pos0 ? batch.q_pos0[r] : default_q_pos0(batch.kv_len[r], batch.qo_indptr[r + 1] - begin));
  }
  return e;
}

/// Marks the group's (token, KV head) pairs as named by its level.
void ExplicitGroups::claim(const AttentionSpec& spec, const Batch& batch, int64_t index) {
  const LevelGroup& g = batch.groups[index];
  const int32_t first = heads_ == 1 || g.kv_head < 0 ? 0 : g.kv_head;
  const int32_t count = heads_ == 1 || g.kv_head >= 0 ? 1 : heads_;
  for (int32_t token : g.tokens) {
    for (int32_t h = first; h < first + count; ++h) {
      int32_t& level = claimed_[int64_t(token) * heads_ + h];
      require(level != g.level + 1,
              "plan: groups[{}].tokens: query token {}: got a second group of level {}, wanted one a level; give its other list a level of "
              "its own",
              index, token, g.level);
      level = g.level + 1;
    }
  }
  named_ += g.tokens.size * (g.kv_head < 0 ? spec.num_kv_heads : 1);
}

void ExplicitGroups::add(const Batch& batch, int64_t index, GroupList& out) {
  const LevelGroup& from = batch.groups[index];
  bool consecutive = !batch.q_pos;
  for (int64_t i = 1; consecutive && i < from.tokens.size; ++i) {
    consecutive = from.tokens[i] == from.tokens[0] + i && request_of_[from.tokens[i]] == request_of_[from.tokens[0]];
  }
  const RowEntry first = entry_of(batch, from.tokens[0]);
  RowGroup g{};
  g.list_begin = from.list_begin;
  g.token_begin = first.token;
  g.token_count = int32_t(from.tokens.size);
  g.request = first.request;
  g.q_index0 = first.q_index;
  g.q_pos0 = first.q_pos;
  g.prefix = first.prefix;
  g.kv_begin = from.kv_begin;
  g.kv_end = from.kv_end;
  g.kv_pos0 = from.kv_pos0;
  g.kv_index0 = from.kv_index0;
  g.kv_head = from.kv_head;
  g.level = from.level;
  g.kv_position = batch.kv_position;
  g.row_list = consecutive ? -1 : int32_t(out.row_entries.size());
  if (!consecutive) {
    for (int32_t token : from.tokens) out.row_entries.push_back(entry_of(batch, token));
  }
  out.groups.push_back(g);
}

/// Groups without keys for what no group names: one a run of tokens of a request (and KV head).
void ExplicitGroups::add_uncovered(const AttentionSpec& spec, const Batch& batch, int32_t level, GroupList& out) {
  const int32_t tokens = int32_t(request_of_.size());
  for (int32_t h = 0; h < heads_; ++h) {
    for (int32_t t = 0; t < tokens; ++t) {
      if (claimed_[int64_t(t) * heads_ + h] != 0) continue;
      RowGroup* last = out.groups.empty() ? nullptr : &out.groups.back();
      const bool grows = last && last->kv_end == 0 && last->level == level && last->row_list < 0 && last->request == request_of_[t] &&
                         last->kv_head == (heads_ == 1 ? -1 : h) && last->token_begin + last->token_count == t;
      if (grows) {
        ++last->token_count;
        continue;
      }
      const RowEntry e = entry_of(batch, t);
      RowGroup g{};
      g.row_list = -1;
      g.token_begin = t;
      g.token_count = 1;
      g.request = e.request;
      g.q_index0 = e.q_index;
      g.q_pos0 = e.q_pos;
      g.prefix = e.prefix;
      g.kv_head = heads_ == 1 ? -1 : h;
      g.level = level;
      g.kv_position = batch.kv_position;
      out.groups.push_back(g);
    }
  }
}

void ExplicitGroups::build(const AttentionSpec& spec, const Capacity& capacity, const Batch& batch, GroupList& out) {
  map_tokens(batch);
  order_.resize(size_t(batch.groups.size));
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {  // stable by the index; std::stable_sort allocates
    const int32_t level_a = batch.groups[a].level, level_b = batch.groups[b].level;
    return level_a != level_b ? level_a < level_b : a < b;
  });
  const bool per_head = std::any_of(batch.groups.begin(), batch.groups.end(), [](const LevelGroup& g) { return g.kv_head >= 0; });
  heads_ = per_head ? spec.num_kv_heads : 1;
  claimed_.assign(request_of_.size() * size_t(heads_), 0);
  named_ = 0;
  for (int32_t index : order_) {
    if (batch.groups[index].tokens.empty()) continue;
    claim(spec, batch, index);
    add(batch, index, out);
  }
  const int32_t levels = order_.empty() ? 1 : batch.groups[order_.back()].level + 1;
  out.num_levels = levels;

  const int64_t weight = heads_ == 1 ? spec.num_kv_heads : 1;
  const int64_t distinct = int64_t(std::count_if(claimed_.begin(), claimed_.end(), [](int32_t level) { return level != 0; })) * weight;
  const int64_t extra = (named_ - distinct + spec.num_kv_heads - 1) / spec.num_kv_heads;
  if (extra > capacity.max_level_rows) {
    fail(ErrorCode::over_capacity,
         "plan: groups: got {} namings of query tokens beyond the first of each, wanted at most Capacity.max_level_rows = {}; make the "
         "engine "
         "for a larger Capacity",
         extra, capacity.max_level_rows);
  }
  add_uncovered(spec, batch, levels - 1, out);
  int64_t group_heads = 0;
  for (const RowGroup& g : out.groups) group_heads += g.kv_head < 0 ? spec.num_kv_heads : 1;
  const int64_t limit = max_group_heads(spec, capacity);
  if (group_heads > limit) {
    fail(ErrorCode::over_capacity,
         "plan: row groups: got {} (times the KV heads of each: {}; tokens that no group names count as well), wanted at most {} in all; "
         "set "
         "Capacity.max_groups",
         out.groups.size(), group_heads, limit);
  }
}

}  // namespace kvloom::plan
