#include "cli/check/page_lists.h"

#include "cli/check/random.h"

#include <algorithm>
#include <numeric>

namespace kvloom::check {
namespace {

int64_t pages_of(const Case& c, int64_t tokens) { return (tokens + c.page_size() - 1) / c.page_size(); }

/// 0 .. n-1 in an order of the case's own.
std::vector<int64_t> permutation(const Case& c, int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (!c.shuffle_pages) return order;
  for (int64_t i = n - 1; i > 0; --i) std::swap(order[i], order[stream_bits(c.seed, Stream::pages, i) % uint64_t(i + 1)]);
  return order;
}

/// `count` increasing numbers below `limit`, by Floyd-like selection: number i is taken with the chance that keeps the count exact.
std::vector<int64_t> increasing_choice(const Case& c, int64_t list, int64_t count, int64_t limit) {
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < limit && int64_t(chosen.size()) < count; ++i) {
    const uint64_t left = limit - i, wanted = count - int64_t(chosen.size());
    if (stream_bits(c.seed, Stream::lists, list * (int64_t(1) << 32) + i) % left < wanted) chosen.push_back(i);
  }
  return chosen;
}

void make_ragged(const Case& c, PageLists& out) {
  int64_t next = 0;
  for (size_t l = 0; l < c.kv_len.size(); ++l) {
    next += stream_bits(c.seed, Stream::lists, l) % 4;  // tokens that belong to nobody
    out.lists.push_back({next});
    next += c.kv_len[l];
  }
  out.num_pages = next;
}

void make_block_columns(const Case& c, PageLists& out) {
  for (size_t l = 0; l < c.kv_len.size(); ++l) out.lists.push_back(increasing_choice(c, l, pages_of(c, c.kv_len[l]), c.block_columns));
  out.num_pages = c.block_columns;
}

/// Every KV head keeps an increasing choice of its request's pages: a page's position is its place in the request.
void make_lists_per_head(const Case& c, PageLists& out) {
  const int32_t heads = c.spec.num_kv_heads;
  std::vector<int64_t> places(c.kv_len.size());
  for (int32_t r = 0; r < c.num_requests(); ++r) {
    int64_t most = 0;
    for (int32_t h = 0; h < heads; ++h) most = std::max(most, pages_of(c, c.kv_len[r * heads + h]));
    for (int32_t h = 0; h < heads; ++h) {
      const int64_t list = r * heads + h;
      const std::vector<int64_t> chosen = increasing_choice(c, list, pages_of(c, c.kv_len[list]), most + 2);
      out.lists.emplace_back();
      for (const int64_t place : chosen) out.lists.back().push_back(out.num_pages + place);
      if (c.kv_position != KvPosition::page_table) continue;
      out.page_pos.emplace_back();
      for (const int64_t place : chosen) out.page_pos.back().push_back(int32_t(place * c.page_size()));
    }
    out.num_pages += most + 2;
  }
}

void make_shared_lists(const Case& c, PageLists& out) {
  out.lists.resize(c.kv_len.size());
  std::vector<SharedPrefix> nodes = c.shared;
  std::stable_sort(nodes.begin(), nodes.end(), [](const SharedPrefix& a, const SharedPrefix& b) { return a.pages < b.pages; });
  for (const SharedPrefix& node : nodes) {
    if (node.requests.empty()) continue;
    std::vector<int64_t> lead = out.lists[node.requests[0]];
    while (int64_t(lead.size()) < node.pages) lead.push_back(out.num_pages++);
    for (const int32_t r : node.requests) out.lists[r] = lead;
  }
  for (size_t l = 0; l < c.kv_len.size(); ++l) {
    const int64_t count = pages_of(c, c.kv_len[l]);
    if (int64_t(out.lists[l].size()) > count) out.lists[l].resize(count);
    while (int64_t(out.lists[l].size()) < count) out.lists[l].push_back(out.num_pages++);
  }
}

/// Positions of rolling caches: sinks that stay, then a jump; or a gap of 0 .. 2 pages before each page.
void make_page_positions(const Case& c, PageLists& out) {
  for (size_t l = 0; l < out.lists.size(); ++l) {
    out.page_pos.emplace_back();
    int64_t pos = 0;
    for (size_t e = 0; e < out.lists[l].size(); ++e) {
      if (c.rolling_sinks < 0) pos += int64_t(stream_bits(c.seed, Stream::lists, l * (int64_t(1) << 32) + e) % 3) * c.page_size();
      if (int64_t(e) == c.rolling_sinks) pos += c.rolling_jump;
      out.page_pos.back().push_back(int32_t(pos));
      pos += c.page_size();
    }
  }
}

}  // namespace

PageLists make_page_lists(const Case& c) {
  PageLists out;
  if (c.spec.storage == Storage::ragged) {
    make_ragged(c, out);
    return out;
  }
  if (c.kv_position == KvPosition::page_id) {
    make_block_columns(c, out);
    return out;  // ids are columns: they stay as they are
  }
  if (c.lists_per_kv_head) {
    make_lists_per_head(c, out);
  } else {
    make_shared_lists(c, out);
    if (c.kv_position == KvPosition::page_table) make_page_positions(c, out);
  }
  out.num_pages += 3;
  const std::vector<int64_t> order = permutation(c, out.num_pages);
  for (std::vector<int64_t>& list : out.lists) {
    for (int64_t& page : list) page = order[page];
  }
  return out;
}

PageTable make_page_table(const Case& c, const PageLists& lists) {
  PageTable t;
  const bool positions = c.kv_position == KvPosition::page_table;
  if (c.spec.storage == Storage::ragged) {
    for (const std::vector<int64_t>& list : lists.lists) t.list_indptr.push_back(list[0]);
    return t;
  }
  size_t widest = 0;
  for (const std::vector<int64_t>& list : lists.lists) widest = std::max(widest, list.size());
  if (c.dense_table) t.table_stride = int64_t(widest) + 1 + int64_t(stream_bits(c.seed, Stream::lists, 1u << 20) % 3);
  for (size_t l = 0; l < lists.lists.size(); ++l) {
    const std::vector<int64_t>& list = lists.lists[l];
    if (!c.dense_table && stream_bits(c.seed, Stream::lists, (2u << 20) + l) % 4 == 0) t.pages.push_back(kNoPage);  // nobody's entry
    t.list_indptr.push_back(int64_t(t.pages.size()));
    t.pages.insert(t.pages.end(), list.begin(), list.end());
    if (positions) {
      t.page_pos.resize(t.list_indptr.back(), -1);
      t.page_pos.insert(t.page_pos.end(), lists.page_pos[l].begin(), lists.page_pos[l].end());
    }
    if (c.dense_table) t.pages.resize((l + 1) * t.table_stride, kNoPage);
    if (positions) t.page_pos.resize(t.pages.size(), -1);
  }
  if (c.seed % 2 == 0) t.list_indptr.push_back(int64_t(t.pages.size()));  // both [lists] and [lists + 1] are accepted
  return t;
}

}  // namespace kvloom::check
