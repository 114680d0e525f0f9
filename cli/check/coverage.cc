#include "cli/check/coverage.h"

#include <algorithm>

namespace kvloom::check {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};
constexpr const char* kPlacements[] = {"separate", "kv_in_page", "kv_in_row", "mla", "padded"};
constexpr const char* kQViews[] = {"dense", "fused_qkv", "head_major"};
constexpr const char* kOViews[] = {"dense", "every_other", "head_major"};
constexpr const char* kMasks[] = {"none", "random", "tree", "empty_rows", "corner", "stripes"};
constexpr int32_t kPageSizes[] = {1, 2, 3, 5, 16, 17, 32, 64, 128, 256};

struct Words {
  std::vector<std::string> list;
  void add(const std::string& word) { list.push_back(word); }
  void add_if(bool condition, const char* word) {
    if (condition) list.push_back(word);
  }
};

void add_storage(const Case& c, Words& w) {
  const bool paged = c.spec.storage == Storage::paged;
  w.add(paged ? "storage.paged" : "storage.ragged");
  if (paged) w.add("page_size." + std::to_string(c.spec.page_size));
  if (paged) w.add(c.dense_table ? "table.dense" : "table.csr");
  w.add(c.index64 ? "index.int64" : "index.int32");
  w.add(c.layout == KvLayout::hnd ? "layout.hnd" : "layout.nhd");
  w.add(std::string("placement.") + kPlacements[int32_t(c.placement)]);
  w.add(std::string("q_view.") + kQViews[int32_t(c.q_view)]);
  w.add(std::string("o_view.") + kOViews[int32_t(c.o_view)]);
  w.add_if(c.lists_per_kv_head, "lists.per_kv_head");
  w.add_if(c.kv_position == KvPosition::page_id, "positions.page_id");
  w.add_if(c.kv_position == KvPosition::page_table && c.rolling_sinks >= 0, "positions.rolling");
  w.add_if(c.kv_position == KvPosition::page_table && c.rolling_sinks < 0, "positions.gaps");
  w.add_if(!c.shared.empty(), "levels.found");
  w.add_if(!c.groups.empty(), "levels.explicit");
  w.add_if(std::any_of(c.groups.begin(), c.groups.end(), [](const CaseGroup& g) { return g.kv_head >= 0; }), "levels.by_head");
}

void add_shape(const Case& c, Words& w) {
  const AttentionSpec& s = c.spec;
  w.add(std::string("q.") + name_of(s.q_dtype));
  w.add(std::string("kv.") + name_of(s.kv_dtype));
  w.add(std::string("o.") + name_of(s.o_dtype));
  w.add_if(s.head_dim_qk != s.head_dim_vo, "dims.unequal");
  w.add_if(s.head_dim_qk % 8 != 0, "dims.odd");
  w.add_if(s.head_dim_qk >= 512, "dims.large");
  w.add_if(s.head_dim_qk == 16, "dims.smallest");
  const int32_t group = s.group_size();
  w.add(group == 1 ? "group.one" : group <= 8 ? "group.small" : "group.large");
  w.add_if(group > 1 && group % 2 == 1, "group.odd");
  w.add_if(s.sm_scale != 0.0f, "sm_scale.given");
  w.add_if(c.scale_per_head, "scales.per_head");
}

void add_variant(const Case& c, Words& w) {
  const VariantSpec& v = c.spec.variant;
  w.add(v.range.causal ? "range.causal" : "range.full");
  w.add_if(v.range.left >= 0, "range.window");
  w.add_if(v.range.left == 0, "range.window_zero");
  w.add_if(v.range.right >= 0, "range.right");
  w.add_if(!c.prefix.empty(), "range.prefix");
  w.add_if(v.soft_cap > 0.0f, "variant.soft_cap");
  w.add_if(v.alibi, "variant.alibi");
  w.add_if(v.sink, "variant.sink");
  w.add_if(c.bare_state, "variant.bare_state");
  w.add_if(v.reduction == Reduction::sum, "variant.sum");
  w.add_if(v.rope.mode == RopeMode::interleaved, "rope.interleaved");
  w.add_if(v.rope.mode == RopeMode::half_split, "rope.half_split");
  w.add_if(v.rope.high_freq_factor > 0.0f, "rope.llama31");
  w.add_if(v.rope.rotary_dim > 0 && v.rope.rotary_dim < c.spec.head_dim_qk, "rope.partial");
  w.add(std::string("mask.") + kMasks[int32_t(c.mask)]);
  w.add_if(!c.q_pos0.empty(), "q_pos.by_request");
  w.add_if(!c.q_pos.empty(), "q_pos.by_token");
}

void add_lengths(const Case& c, Words& w) {
  auto any = [](const std::vector<int32_t>& x, auto test) { return std::any_of(x.begin(), x.end(), test); };
  w.add_if(c.num_requests() == 0, "length.no_requests");
  w.add_if(c.num_requests() == 1, "length.one_request");
  w.add_if(any(c.q_len, [](int32_t n) { return n == 0; }), "length.q_zero");
  w.add_if(any(c.kv_len, [](int32_t n) { return n == 0; }), "length.kv_zero");
  w.add_if(any(c.kv_len, [](int32_t n) { return n == 1; }), "length.kv_one");
  w.add_if(any(c.kv_len, [](int32_t n) { return n > 512; }), "length.kv_over_512");
  w.add_if(any(c.q_len, [](int32_t n) { return n > 64; }), "length.q_over_64");
  w.add_if(!c.q_len.empty() && !any(c.q_len, [](int32_t n) { return n != 1; }), "length.decode");
  w.add_if(c.total_tokens() > 0 && !any(c.kv_len, [](int32_t n) { return n != 0; }), "length.all_kv_zero");
  const auto rows = [&](int32_t n) { return int64_t(n) * c.spec.group_size(); };
  w.add_if(any(c.q_len, [&](int32_t n) { return rows(n) > 16; }) && !any(c.q_len, [&](int32_t n) { return rows(n) > 32; }), "length.rows_17_to_32");
  if (c.lists_per_kv_head) return;
  for (int32_t r = 0; r < c.num_requests(); ++r) {
    if (c.q_len[size_t(r)] > c.kv_len[size_t(r)]) return w.add("length.q_over_kv");
  }
}

}  // namespace

std::vector<std::string> features_of(const Case& c) {
  Words w;
  add_storage(c, w);
  add_shape(c, w);
  add_variant(c, w);
  add_lengths(c, w);
  return w.list;
}

std::vector<std::string> all_features() {
  Words w;
  for (const int32_t n : kPageSizes) w.add("page_size." + std::to_string(n));
  for (const DType t : kTypes) w.add(std::string("kv.") + name_of(t));
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) w.add(std::string("q.") + name_of(t));
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) w.add(std::string("o.") + name_of(t));
  for (const char* p : kPlacements) w.add(std::string("placement.") + p);
  for (const char* p : kQViews) w.add(std::string("q_view.") + p);
  for (const char* p : kOViews) w.add(std::string("o_view.") + p);
  for (const char* p : kMasks) w.add(std::string("mask.") + p);
  for (const char* word :
       {"storage.ragged",     "storage.paged",      "table.dense",        "table.csr",         "index.int32",        "index.int64",
        "layout.nhd",         "layout.hnd",         "lists.per_kv_head",  "positions.page_id", "positions.rolling",  "positions.gaps",
        "levels.found",       "levels.explicit",    "levels.by_head",     "dims.unequal",      "dims.odd",           "dims.large",
        "dims.smallest",      "group.one",          "group.small",        "group.large",       "group.odd",          "sm_scale.given",
        "scales.per_head",    "range.causal",       "range.full",         "range.window",      "range.window_zero",  "range.right",
        "range.prefix",       "variant.soft_cap",   "variant.alibi",      "variant.sink",      "variant.bare_state", "variant.sum",
        "rope.interleaved",   "rope.half_split",    "rope.llama31",       "rope.partial",      "q_pos.by_request",   "q_pos.by_token",
        "length.no_requests", "length.one_request", "length.q_zero",      "length.kv_zero",    "length.kv_one",      "length.kv_over_512",
        "length.q_over_64",   "length.decode",      "length.all_kv_zero", "length.q_over_kv",
        "length.rows_17_to_32"}) {
    w.add(word);
  }
  return w.list;
}

}  // namespace kvloom::check
