// Finding shared prefixes: readers with equal first pages are families, a family is grown into a tree of common page runs, and a dynamic
// program picks the nodes that become row groups.
#include "kvloom/plan/levels.h"

#include "kvloom/base/math.h"
#include "kvloom/plan/groups.h"
#include "kvloom/plan/tiles.h"
#include "kvloom/support/format.h"

#include <algorithm>
#include <cstring>

namespace kvloom::plan {
namespace {

/// Forks below this many are not followed: it bounds the memory of choose() for page tables made to be nasty.
constexpr int32_t kMaxDepth = 128;

/// Position of the first key that some row of request r may see past its prefix; 0 without a window.
int64_t window_begin(const AttentionSpec& spec, const Batch& batch, int32_t r, int64_t kv_len) {
  const KeyRange& range = spec.variant.range;
  if (range.left < 0 || (batch.prefix && batch.prefix[r] > 0)) return 0;
  const int64_t begin = batch.qo_indptr[r], end = batch.qo_indptr[r + 1];
  int64_t first = batch.q_pos0 ? batch.q_pos0[r] : kv_len - (end - begin);
  if (batch.q_pos) first = *std::min_element(batch.q_pos + begin, batch.q_pos + end);
  return max_of<int64_t>(0, first - range.left);
}

/// First index at which two lists of n ids differ, or n.
template <class T>
int32_t common_pages(const T* a, const T* b, int32_t n) {
  constexpr int32_t kBlock = 32;
  int32_t i = 0;
  while (i + kBlock <= n && std::memcmp(a + i, b + i, kBlock * sizeof(T)) == 0) i += kBlock;
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

/// Passes over a list of keys that `tokens` query tokens make: their row tiles.
int64_t passes_of(const TileRules& rules, int64_t tokens) {
  const int c = tokens * rules.group_size > rules.compute_rows_above ? 1 : 0;
  return rules.shape[c].tiles(tokens);
}

}  // namespace

/// Requests that can gain: some whole pages before their new tokens, and fewer rows than fill a tile by themselves.
void PrefixFinder::collect(const AttentionSpec& spec, const SchedulerConfig& config, const Batch& batch) {
  const TileRules rules(spec, config);
  const int64_t full = max_of(rules.shape[0].tokens, rules.shape[1].tokens);
  readers_.clear();
  own_groups_ = 0;
  int64_t begin = 0;
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    const int64_t end = batch.qo_indptr[r + 1], q_len = end - begin;
    begin = end;
    own_groups_ += q_len > 0;
    if (q_len == 0 || q_len >= full) continue;
    const int64_t kv_len = batch.kv_len[r];
    const int64_t last = (kv_len - q_len) / spec.page_size;
    if (last <= 0) continue;
    const int64_t first = window_begin(spec, batch, r, kv_len) / spec.page_size;
    if (first >= last) continue;
    const int64_t list = batch.table_stride > 0 ? r * batch.table_stride : batch.list_indptr[r];
    readers_.push_back({list, r, int32_t(first), int32_t(last), int32_t(q_len)});
  }
}

/// Sorts readers into families of equal (first page index, page id): order_ holds those of two and more, nodes_ one root each, its end not
/// known yet. Returns false if there are none. This is all that a step without sharing pays for.
bool PrefixFinder::group_by_first_page(const Batch& batch) {
  const int32_t n = int32_t(readers_.size());
  int bits = 4;
  while ((int64_t(1) << bits) < 2 * int64_t(n)) ++bits;
  const int64_t mask = (int64_t(1) << bits) - 1;
  slots_.assign(size_t(mask) + 1, -1);
  family_of_.resize(n);
  family_.clear();  // first reader of each
  keys_.clear();    // (members, next place) of each
  for (int32_t i = 0; i < n; ++i) {
    const Reader& a = readers_[i];
    const int64_t page = batch.pages[a.list + a.first_page];
    int64_t slot = int64_t((uint64_t(page) * 0x9e3779b97f4a7c15u + uint64_t(a.first_page) * 0xc2b2ae3d27d4eb4fu) >> (64 - bits));
    for (;; slot = (slot + 1) & mask) {
      if (slots_[slot] < 0) {
        slots_[slot] = int32_t(family_.size());
        family_.push_back(i);
        keys_.emplace_back(0, 0);
        break;
      }
      const Reader& b = readers_[family_[slots_[slot]]];
      if (a.first_page == b.first_page && page == batch.pages[b.list + b.first_page]) break;
    }
    family_of_[i] = slots_[slot];
    ++keys_[slots_[slot]].first;
  }
  nodes_.clear();
  int32_t total = 0;
  for (size_t f = 0; f < family_.size(); ++f) {
    if (keys_[f].first < 2) continue;
    keys_[f].second = total;
    Node root;
    root.begin = total;
    root.end = total += int32_t(keys_[f].first);
    root.first_page = root.page_begin = readers_[family_[f]].first_page;
    nodes_.push_back(root);
  }
  order_.resize(total);
  for (int32_t i = 0; i < n; ++i) {
    auto& [members, next] = keys_[family_of_[i]];
    if (members >= 2) order_[next++] = i;
  }
  return total > 0;
}

/// One past the last page that all readers of a node have in common.
template <class T>
int32_t PrefixFinder::common_end(const T* pages, const Node& node) const {
  const Reader& a = readers_[order_[node.begin]];
  int32_t end = a.last_page;
  for (int32_t i = node.begin + 1; i < node.end; ++i) {
    const Reader& b = readers_[order_[i]];
    end = min_of(end, b.last_page);
    end = node.page_begin + common_pages(pages + a.list + node.page_begin, pages + b.list + node.page_begin, end - node.page_begin);
  }
  return end;
}

/// Makes a child of every set of two and more readers that go on with the same page. A node keeps its readers in order_[begin, end): those
/// that go on come first, by page, so that its children are parts of that range.
template <class T>
void PrefixFinder::split(const T* pages, int32_t parent) {
  const Node node = nodes_[parent];
  const auto begin = order_.begin() + node.begin;
  auto goes_on = [&](int32_t i) { return readers_[i].last_page > node.page_end; };
  const auto end = std::stable_partition(begin, order_.begin() + node.end, goes_on);
  keys_.clear();
  for (auto i = begin; i != end; ++i) keys_.emplace_back(pages[readers_[*i].list + node.page_end], *i);
  std::sort(keys_.begin(), keys_.end());
  for (size_t i = 0; i < keys_.size(); ++i) begin[int64_t(i)] = keys_[i].second;
  for (size_t i = 0, next = 0; i < keys_.size(); i = next) {
    for (next = i + 1; next < keys_.size() && keys_[next].first == keys_[i].first;) ++next;
    if (next - i < 2) continue;
    Node child;
    child.begin = node.begin + int32_t(i);
    child.end = node.begin + int32_t(next);
    child.first_page = node.first_page;
    child.page_begin = child.page_end = node.page_end;
    child.parent = parent;
    child.depth = node.depth + 1;
    nodes_.push_back(child);
  }
}

/// From roots to the whole forest, breadth first.
template <class T>
void PrefixFinder::grow(const AttentionSpec& spec, const SchedulerConfig& config, const T* pages) {
  const TileRules rules(spec, config);
  for (int32_t v = 0; v < int32_t(nodes_.size()); ++v) {
    Node& node = nodes_[v];
    node.page_end = common_end(pages, node);
    for (int32_t i = node.begin; i < node.end; ++i) {
      const int32_t tokens = readers_[order_[i]].tokens;
      node.tokens += tokens;
      node.saved_passes += passes_of(rules, tokens);
    }
    node.saved_passes -= passes_of(rules, node.tokens);
    if (node.depth + 1 < kMaxDepth) split(pages, v);
  }
}

/// Tokens that levels must save: what partials and merges of rows that several groups have come to, and so much of the step's cost (in tokens
/// read by few rows) that what else they change of it, items and kernels, is not more.
int64_t first_gain(const AttentionSpec& spec, const SchedulerConfig& config, const Batch& batch) {
  const TileRules rules(spec, config);
  int64_t cost[2] = {0, 0};  // keys times passes over them
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    const int64_t tokens = batch.qo_indptr[r + 1] - batch.qo_indptr[r];
    cost[class_of_tokens(tokens, rules.group_size, rules.compute_rows_above)] += passes_of(rules, tokens) * batch.kv_len[r];
  }
  const int64_t most = int64_t(1) << 32;  // what is longer is refused for its cost later; products stay within 64 bits
  const int64_t many = min_of(cost[1], most) * config.classes[1].cost_per_token / max_of(1, config.classes[0].cost_per_token);
  return max_of(config.level_first_gain, (min_of(cost[0], most) + min_of(many, most)) * config.level_first_percent / 100);
}

namespace {

/// A request of compute class, by its own rows.
bool has_many_rows(const AttentionSpec& spec, const SchedulerConfig& config, const Batch& batch) {
  for (int32_t r = 0; r < batch.num_requests; ++r) {
    if (class_of_tokens(batch.qo_indptr[r + 1] - batch.qo_indptr[r], spec.group_size(), config.compute_rows_above) == 1) return true;
  }
  return false;
}

}  // namespace

bool PrefixFinder::find(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config, const Batch& batch,
                        GroupList& out) {
  if (spec.storage != Storage::paged || batch.lists_per_kv_head || batch.kv_position != KvPosition::linear) return false;
  if (batch.num_requests < 2) return false;
  collect(spec, config, batch);
  if (!group_by_first_page(batch)) return false;
  if (!config.levels_beside_many && has_many_rows(spec, config, batch)) {
    out.notes = format("levels: {} families of requests share prefixes, not taken: some request has more than {} packed rows, and steps with such requests are slower with levels on this kernel",
                       nodes_.size(), config.compute_rows_above);
    return false;
  }
  if (batch.pages.is_64) {
    grow(spec, config, static_cast<const int64_t*>(batch.pages.data));
  } else {
    grow(spec, config, static_cast<const int32_t*>(batch.pages.data));
  }
  choose(spec.page_size, {config.level_more_gain, config.level_reader_gain});
  if (!fit(spec, capacity, config, first_gain(spec, config, batch), out.notes)) return false;
  emit(spec, batch, out);
  return true;
}

}  // namespace kvloom::plan
