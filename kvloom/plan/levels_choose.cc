// Which nodes of the prefix tree become row groups, and the groups themselves.
#include "kvloom/base/math.h"
#include "kvloom/plan/groups.h"
#include "kvloom/plan/levels.h"
#include "kvloom/support/format.h"


#include <algorithm>

namespace kvloom::plan {

/// Value of taking a node when pages up to `from_page` are covered by a node above it, if that is `below` one.
int64_t PrefixFinder::value_of_taking(const Node& v, int32_t from_page, bool below, int32_t page_size, const Gains& gains) const {
  const int64_t readers = below ? 0 : v.end - v.begin;
  return v.saved_passes * (int64_t(v.page_end - from_page) * page_size) - gains.more - readers * gains.reader + best_[v.best + v.depth + 1];
}

/// Takes the nodes that maximise the sum of (saved tokens - gains.more), less gains.reader for each request below one. A taken node's group covers the
/// pages from the end of the nearest taken node above it to its own end, so what it saves depends on which node that is, and on nothing else outside its
/// subtree:
///   f(v, a) = the best that v's subtree can do when a is the nearest taken node above it
///           = max(sum over v's children c of f(c, a),  value of v's own group from a's end on + sum over c of f(c, v))
/// best_ holds for every v the sum over its children: at index 0 for no a, at k for the a at depth k - 1, and last for a = v. Children come
/// after parents in nodes_: one pass backwards fills it, one pass forwards decides.
void PrefixFinder::choose(int32_t page_size, Gains gains) {
  gains.more = clamp_to<int64_t>(gains.more, 0, int64_t(1) << 40);
  int64_t total = 0;
  for (Node& v : nodes_) {
    v.best = total;
    total += v.depth + 2;
  }
  best_.assign(size_t(total), 0);
  for (auto v = nodes_.rbegin(); v != nodes_.rend(); ++v) {
    if (v->parent < 0) continue;
    int64_t* const sums = best_.data() + nodes_[v->parent].best;
    int32_t a = v->parent;
    for (int32_t k = v->depth; k >= 0; --k) {
      const int32_t from_page = k > 0 ? nodes_[a].page_end : v->first_page;
      sums[k] += max_of(best_[v->best + k], value_of_taking(*v, from_page, k > 0, page_size, gains));
      if (k > 0) a = nodes_[a].parent;
    }
  }
  for (Node& v : nodes_) {
    v.above = v.parent >= 0 ? (nodes_[v.parent].taken ? v.parent : nodes_[v.parent].above) : -1;
    const int32_t k = v.above >= 0 ? nodes_[v.above].depth + 1 : 0;
    const int32_t from_page = v.above >= 0 ? nodes_[v.above].page_end : v.first_page;
    v.taken = value_of_taking(v, from_page, k > 0, page_size, gains) > best_[v.best + k];
  }
}

/// Follows a change of `taken`: nearest taken nodes and levels.
void PrefixFinder::settle() {
  for (Node& v : nodes_) {
    v.above = v.parent >= 0 ? (nodes_[v.parent].taken ? v.parent : nodes_[v.parent].above) : -1;
    v.level = v.above >= 0 ? nodes_[v.above].level + 1 : 0;
  }
}

/// Tokens whose reading the group of a taken node saves.
int64_t PrefixFinder::saved_tokens(const Node& v, int32_t page_size) const {
  const int32_t from_page = v.above >= 0 ? nodes_[v.above].page_end : v.first_page;
  return v.saved_passes * (int64_t(v.page_end - from_page) * page_size);
}

/// Drops taken nodes, those that save least a row first, until the rest fits. Nodes below a dropped one take its pages over.
void PrefixFinder::drop(const Capacity& capacity, int64_t max_groups, int32_t page_size, std::string& notes) {
  int64_t rows = 0, groups = 0;
  keys_.clear();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& v = nodes_[i];
    if (!v.taken) continue;
    rows += v.tokens;
    ++groups;
    keys_.emplace_back(saved_tokens(v, page_size) / v.tokens, int32_t(i));
  }
  if (rows <= capacity.max_level_rows && groups <= max_groups) return;
  const int64_t rows_found = rows, groups_found = groups;
  std::sort(keys_.begin(), keys_.end());
  for (const auto& [saving, i] : keys_) {
    if (rows <= capacity.max_level_rows && groups <= max_groups) break;
    nodes_[i].taken = false;
    rows -= nodes_[i].tokens;
    --groups;
  }
  settle();
  notes = format("levels: {} of {} shared prefixes dropped: they need Capacity.max_level_rows {}, got {}", groups_found - groups, groups_found, rows_found, capacity.max_level_rows);
  if (groups_found > max_groups) notes += format("; and {} groups, got room for {} (Capacity.max_groups)", groups_found, max_groups);
}

/// Cuts the choice down to the capacity, and asks whether what is left is worth a level at all, which it is from `first_gain` on.
bool PrefixFinder::fit(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, int64_t first_gain, std::string& notes) {
  settle();
  const int64_t max_groups = capacity.max_groups > 0 ? capacity.max_groups - own_groups_ : int64_t(INT32_MAX);
  drop(capacity, max_groups, spec.page_size, notes);
  int64_t saved = 0, groups = 0;
  for (const Node& v : nodes_) {
    if (!v.taken) continue;
    saved += saved_tokens(v, spec.page_size);
    ++groups;
  }
  if (groups > 0 && saved >= first_gain) return true;
  if (groups == 0 && !notes.empty()) return false;  // all were dropped
  if (!notes.empty()) notes += "; ";
  if (groups == 0) {
    notes += format("levels: {} shared prefix{} found, none taken: none saves more than {} tokens of reading by itself, and {} for each request that reads it",
                         nodes_.size(), nodes_.size() == 1 ? "" : "es", config.level_more_gain, config.level_reader_gain);
  } else {
    notes += format("levels: {} shared prefix{} not taken: {} {} tokens of reading, a first level must save {}", groups, groups == 1 ? "" : "es",
                    groups == 1 ? "it saves" : "they save", saved, first_gain);
  }
  return false;
}

/// The group of a taken node: the rows of all its readers, by token, on the list of the first of them.
RowGroup PrefixFinder::emit_shared(const Node& v, const AttentionSpec& spec, const Batch& batch, GroupList& out) {
  const int32_t from_page = v.above >= 0 ? nodes_[v.above].page_end : v.first_page;
  RowGroup g{};
  g.list_begin = readers_[order_[v.begin]].list + from_page;
  g.row_list = int32_t(out.row_entries.size());
  g.token_count = v.tokens;
  g.kv_end = (v.page_end - from_page) * spec.page_size;
  g.kv_pos0 = g.kv_index0 = from_page * spec.page_size;
  g.kv_head = -1;
  g.level = v.level;
  g.kv_position = KvPosition::linear;
  keys_.clear();  // order_ stays as it is: nodes below own parts of this range
  for (int32_t i = v.begin; i < v.end; ++i) keys_.emplace_back(readers_[order_[i]].request, i);
  std::sort(keys_.begin(), keys_.end());
  for (const auto& [request, unused] : keys_) {
    const int32_t r = int32_t(request);
    const int32_t begin = int32_t(batch.qo_indptr[r]), end = int32_t(batch.qo_indptr[r + 1]);
    const int32_t q_pos0 = batch.q_pos0 ? batch.q_pos0[r] : default_q_pos0(batch.kv_len[r], end - begin);
    for (int32_t t = begin; t < end; ++t) {
      const int32_t q_pos = batch.q_pos ? batch.q_pos[t] : q_pos0 + (t - begin);
      out.row_entries.push_back({t, r, t - begin, q_pos, batch.prefix ? batch.prefix[r] : 0});
    }
    shared_pages_[r] = max_of(shared_pages_[r], v.page_end);
  }
  return g;
}

/// Appends shared groups by level, then the requests' own groups, which begin where the deepest shared group of the request ends.
void PrefixFinder::emit(const AttentionSpec& spec, const Batch& batch, GroupList& out) {
  shared_pages_.assign(batch.num_requests, 0);
  int32_t levels = 0;
  for (const Node& v : nodes_) levels = v.taken ? max_of(levels, v.level + 1) : levels;
  const size_t first = out.groups.size();
  flat_groups(spec, batch, out);
  const size_t own = out.groups.size() - first;
  for (int32_t level = 0; level < levels; ++level) {
    for (const Node& v : nodes_) {
      if (v.taken && v.level == level) out.groups.push_back(emit_shared(v, spec, batch, out));
    }
  }
  for (size_t i = first; i < first + own; ++i) {
    RowGroup& g = out.groups[i];
    const int32_t pages = shared_pages_[g.request], tokens = pages * spec.page_size;
    g.list_begin += pages;
    g.kv_end -= tokens;
    g.kv_pos0 += tokens;
    g.kv_index0 += tokens;
    g.level = levels;
  }
  std::rotate(out.groups.begin() + int64_t(first), out.groups.begin() + int64_t(first + own), out.groups.end());
  out.num_levels = levels + 1;
}

}  // namespace kvloom::plan
