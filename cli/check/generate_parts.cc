#include "cli/check/generate_parts.h"

#include <algorithm>
#include <numeric>

namespace kvloom::check {
namespace {

int64_t first_token(const Case& c, int32_t request) { return std::accumulate(c.q_len.begin(), c.q_len.begin() + request, int64_t(0)); }

void add_tokens(const Case& c, int32_t request, std::vector<int32_t>& tokens) {
  const int64_t first = first_token(c, request);
  for (int32_t i = 0; i < c.q_len[request]; ++i) tokens.push_back(int32_t(first + i));
}

/// Tokens [begin, end) of `list`, stated from the list's start or from the page that holds `begin`.
CaseGroup part_of(Random& r, const Case& c, int32_t level, int32_t list, int32_t begin, int32_t end) {
  CaseGroup g;
  g.level = level;
  g.list = list;
  g.list_skip = r.percent(50) ? begin / c.page_size() : 0;
  const int32_t skipped = g.list_skip * c.page_size();
  g.kv_begin = begin - skipped;
  g.kv_end = end - skipped;
  g.kv_pos0 = g.kv_index0 = skipped;
  return g;
}

/// A part of one request's own keys, for all heads at once or head by head.
void add_own(Random& r, Case& c, int32_t level, int32_t request, int32_t begin, int32_t end) {
  const int32_t heads = r.percent(15) ? c.spec.num_kv_heads : 1;
  for (int32_t h = 0; h < heads; ++h) {
    CaseGroup g = part_of(r, c, level, request, begin, end);
    if (heads > 1) g.kv_head = h;
    add_tokens(c, request, g.tokens);
    c.groups.push_back(g);
  }
}

}  // namespace

int32_t edge_length(Random& r, int32_t page_size, int32_t most) {
  int32_t n = 0;
  switch (r.below(5)) {
    case 0:
      n = r.pick({0, 1, 2, 3});
      break;
    case 1:
      n = page_size * r.between(1, 4) + r.between(-1, 1);
      break;
    case 2:
    case 3:
      n = r.pick({16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024}) + r.between(-1, 1);
      break;
    default:
      n = r.between(0, most);
      break;
  }
  return std::clamp(n, 0, most);
}

void choose_rope(Random& r, Case& c) {
  RopeSpec& rope = c.spec.variant.rope;
  const int32_t dim = c.spec.head_dim_qk;
  rope.mode = r.pick({RopeMode::interleaved, RopeMode::half_split});
  rope.rotary_dim = dim % 2 == 0 && r.percent(50) ? 0 : r.pick({dim / 2, dim / 4, dim - 1}) / 2 * 2;
  if (rope.rotary_dim == 0 && dim % 2 != 0) rope.rotary_dim = dim - 1;
  rope.theta = r.pick({10000.0f, 500000.0f});
  if (r.percent(30)) rope.scaling = 2.0f;
  if (r.percent(40)) {
    rope.scaling = 8.0f;
    rope.low_freq_factor = 1.0f;
    rope.high_freq_factor = 4.0f;
  }
}

void choose_mask(Random& r, Case& c) {
  c.spec.variant.custom_mask = true;
  c.mask = r.pick({MaskKind::random, MaskKind::random, MaskKind::tree, MaskKind::empty_rows, MaskKind::corner, MaskKind::stripes});
  c.mask_percent = r.pick({2, 50, 70, 99});
  if (c.mask != MaskKind::tree) return;
  c.spec.variant.range = KeyRange{};
  c.prefix.clear();
  c.q_pos0.clear();
  for (int32_t i = 0; i < c.num_requests(); ++i) {
    for (int32_t t = 0; t < c.q_len[i]; ++t) {
      int32_t depth = 0;
      for (int32_t up = tree_parent(c, i, t); up >= 0; up = tree_parent(c, i, up)) ++depth;
      c.q_pos.push_back(c.kv_len[i] - c.q_len[i] + depth);
    }
  }
}

void choose_shared_prefixes(Random& r, Case& c) {
  AttentionSpec& s = c.spec;
  s.storage = Storage::paged;
  s.page_size = r.pick({1, 3, 16, 16, 32, 64});
  s.num_kv_heads = std::min(s.num_kv_heads, 2);
  s.num_qo_heads = s.num_kv_heads * r.pick({1, 2, 4, 5});
  if (s.head_dim_qk > 192) s.head_dim_qk = s.head_dim_vo = 64, c.placement = Placement::separate;
  const int32_t families = r.between(1, 2), members = r.between(2, 6);
  std::vector<SharedPrefix> top(families), middle(families), deep(families);
  for (int32_t f = 0; f < families; ++f) {
    top[f].pages = r.between(200, 900) / s.page_size + 1;
    middle[f].pages = top[f].pages + r.between(50, 400) / s.page_size + 1;
    deep[f].pages = middle[f].pages + r.between(50, 200) / s.page_size + 1;
  }
  for (int32_t i = 0; i < families * members; ++i) {
    const int32_t f = i % families;  // interleaved
    const int32_t depth = r.below(4);
    int32_t pages = top[f].pages;
    top[f].requests.push_back(i);
    if (depth >= 1) middle[f].requests.push_back(i), pages = middle[f].pages;
    if (depth >= 2) deep[f].requests.push_back(i), pages = deep[f].pages;
    c.q_len.push_back(r.percent(70) ? 1 : r.between(0, 5));
    // From just after the shared pages to well past them; now and then the request ends inside them.
    c.kv_len.push_back(std::max(0, pages * s.page_size + (r.percent(20) ? -r.between(0, 40) : r.between(0, 100))));
  }
  for (const auto* level : {&top, &middle, &deep}) c.shared.insert(c.shared.end(), level->begin(), level->end());
}

void choose_levels(Random& r, Case& c) {
  if (c.num_requests() == 0 || c.mask == MaskKind::tree) return;
  std::vector<int32_t> members, others;
  for (int32_t i = 0; i < c.num_requests(); ++i) (r.percent(70) ? members : others).push_back(i);
  int32_t shared = 0;
  if (!members.empty()) {
    shared = c.kv_len[members[0]];
    for (const int32_t i : members) shared = std::min(shared, c.kv_len[i]);
    shared = r.percent(50) ? shared / c.page_size() * c.page_size() : r.between(0, shared);
    CaseGroup g = part_of(r, c, 0, members[0], 0, shared);
    for (const int32_t i : members) add_tokens(c, i, g.tokens);
    if (r.percent(30)) std::reverse(g.tokens.begin(), g.tokens.end());
    if (!g.tokens.empty()) c.groups.push_back(g);
  }
  const bool three = r.percent(40);
  std::vector<int32_t> cuts(c.num_requests());
  for (int32_t i = 0; i < c.num_requests(); ++i) {
    const bool member = std::find(members.begin(), members.end(), i) != members.end();
    cuts[i] = member ? shared : 0;
    if (!three) continue;
    const int32_t next = r.between(cuts[i], c.kv_len[i]);
    if (c.q_len[i] > 0) add_own(r, c, 1, i, cuts[i], next);
    cuts[i] = next;
  }
  for (int32_t i = 0; i < c.num_requests(); ++i) {
    if (c.q_len[i] == 0 || (c.kv_len[i] == cuts[i] && r.percent(50))) continue;  // an empty remainder may be left out
    add_own(r, c, three ? 2 : 1, i, cuts[i], c.kv_len[i]);
  }
}

void choose_lists_per_head(Random& r, Case& c) {
  c.spec.storage = Storage::paged;
  c.lists_per_kv_head = true;
  const bool gaps = r.percent(60);
  c.kv_position = gaps ? KvPosition::page_table : KvPosition::linear;
  const std::vector<int32_t> longest = c.kv_len;
  c.kv_len.clear();
  for (const int32_t n : longest) {
    for (int32_t h = 0; h < c.spec.num_kv_heads; ++h) c.kv_len.push_back(r.percent(10) ? 0 : r.between(n / 2, n));
  }
  c.spec.variant.range.causal = r.percent(50);
  if (gaps) {
    for (int32_t i = 0; i < c.num_requests(); ++i) c.q_pos0.push_back(longest[i] - c.q_len[i] + r.between(0, 2 * c.spec.page_size));
  }
  if (r.percent(20)) c.spec.variant.range.left = r.pick({0, 16, 100});
  if (r.percent(20)) c.spec.variant.sink = true;
  if (r.percent(20)) c.spec.variant.soft_cap = 30.0f;
  if (r.percent(20)) choose_rope(r, c);
}

void choose_block_sparse(Random& r, Case& c) {
  c.spec.storage = Storage::paged;
  c.kv_position = KvPosition::page_id;
  const int32_t page_size = c.spec.page_size, rows = r.pick({1, 3, 16, 64, 70});
  int32_t widest = 0;
  for (int32_t i = 0; i < c.num_requests(); ++i) {
    c.q_len[i] = std::min(rows, std::max(1, c.q_len[i]));
    const int32_t blocks = c.kv_len[i] / page_size;  // whole blocks, but for now and then a ragged last one
    c.kv_len[i] = blocks * page_size + (r.percent(15) ? r.below(page_size) : 0);
    widest = std::max(widest, blocks + 1);
    c.q_pos0.push_back(i * rows);
  }
  c.block_columns = widest + r.between(0, 6);
  c.spec.variant.range.causal = r.percent(40);
  if (r.percent(20)) c.spec.variant.range.left = r.pick({0, 16, 100});
  if (r.percent(20)) c.spec.variant.soft_cap = 30.0f;
  if (r.percent(20)) choose_rope(r, c);
  if (r.percent(15)) {
    c.spec.variant.custom_mask = true;
    c.mask = MaskKind::random;
  }
}

void choose_rolling_cache(Random& r, Case& c) {
  c.spec.storage = Storage::paged;
  c.kv_position = KvPosition::page_table;
  if (r.percent(60)) {
    c.rolling_sinks = r.between(0, 2);
    c.rolling_jump = r.between(0, 3000);
  }
  for (int32_t i = 0; i < c.num_requests(); ++i) {
    const int32_t ahead = c.rolling_sinks >= 0 ? c.rolling_jump : c.kv_len[i];
    c.q_pos0.push_back(c.kv_len[i] - c.q_len[i] + ahead);
  }
  c.spec.variant.range.causal = r.percent(70);
  if (r.percent(40)) c.spec.variant.range.left = r.pick({0, 16, 100, 700});
  if (r.percent(30)) c.prefix.assign(c.q_len.size(), r.between(0, 2 * c.spec.page_size));
  if (r.percent(20)) c.spec.variant.sink = true;
  if (r.percent(30)) choose_rope(r, c);
}

}  // namespace kvloom::check
