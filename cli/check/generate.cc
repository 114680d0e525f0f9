#include "cli/check/generate.h"

#include "cli/check/generate_parts.h"

#include <algorithm>

namespace kvloom::check {
namespace {

constexpr int64_t kWork = 1500000;        // multiply-adds of an ordinary case
constexpr int64_t kLargeWork = 12000000;  // ... of one in sixteen, and of those that share prefixes

void choose_heads(Random& r, Case& c) {
  AttentionSpec& s = c.spec;
  s.num_kv_heads = r.pick({1, 1, 2, 2, 3, 4, 8});
  int32_t group = r.pick({1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 11, 16, 17, 32, 33, 48, 64});
  if (group >= 16) s.num_kv_heads = std::min(s.num_kv_heads, 2);
  s.num_qo_heads = s.num_kv_heads * group;
}

void choose_dims(Random& r, Case& c) {
  AttentionSpec& s = c.spec;
  const int32_t kind = r.below(100);
  if (kind < 62) {
    s.head_dim_qk = r.pick({16, 24, 32, 40, 48, 56, 64, 64, 72, 80, 96, 112, 128, 128, 128, 160, 192, 224, 256, 320, 512, 576});
    s.head_dim_vo = s.head_dim_qk;
  } else if (kind < 70) {
    s.head_dim_qk = r.pick({17, 33, 65, 100, 129});
    s.head_dim_vo = r.pick({17, 31, 64, 100, 130});
  } else if (kind < 78) {
    s.head_dim_qk = 576;
    s.head_dim_vo = 512;
    s.num_kv_heads = 1;
    s.num_qo_heads = r.pick({1, 16, 24});
    c.placement = r.percent(70) ? Placement::mla : Placement::separate;
  } else {
    s.head_dim_qk = r.pick({16, 64, 72, 128, 192, 256});
    s.head_dim_vo = r.pick({16, 64, 72, 128, 256, 576});
  }
}

void choose_types(Random& r, Case& c) {
  AttentionSpec& s = c.spec;
  s.q_dtype = r.pick({DType::f32, DType::f32, DType::f16, DType::bf16, DType::bf16});
  s.kv_dtype = r.percent(50) ? s.q_dtype : r.pick({DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e4m3, DType::e5m2});
  s.o_dtype = r.percent(50) ? s.q_dtype : r.pick({DType::f32, DType::f16, DType::bf16});
  if (r.percent(4)) {
    s.q_dtype = DType::e4m3;
    c.q_scale = r.pick({1.0f, 0.5f});
  }
  if (is_fp8(s.kv_dtype)) {
    c.k_scale = r.pick({1.0f, 0.5f, 0.25f, 1.5f});
    c.v_scale = r.pick({1.0f, 0.75f, 3.0f, 0.01f});
    c.scale_per_head = r.percent(30);
  }
  if (r.percent(25)) s.sm_scale = r.pick({0.03125f, 0.07f, 0.1f});
  c.q_gain = r.percent(8) ? 0.0f : r.percent(12) ? 2.0f : 1.0f;
}

void choose_memory(Random& r, Case& c) {
  AttentionSpec& s = c.spec;
  s.storage = r.percent(22) ? Storage::ragged : Storage::paged;
  s.page_size = r.pick({1, 1, 2, 3, 5, 16, 16, 17, 32, 64, 128, 256});
  c.dense_table = r.percent(40);
  c.index64 = r.percent(30);
  c.shuffle_pages = r.percent(85);
  c.batch_keeps_pages = r.percent(20);
  c.layout = r.percent(50) ? KvLayout::nhd : KvLayout::hnd;
  if (c.placement != Placement::mla) {
    c.placement = r.pick({Placement::separate, Placement::separate, Placement::kv_in_page, Placement::kv_in_row, Placement::padded});
  }
  c.q_view = r.pick({QView::dense, QView::dense, QView::fused_qkv, QView::head_major});
  c.o_view = r.pick({OView::dense, OView::dense, OView::every_other, OView::head_major});
  c.lse_head_major = r.percent(25);
  c.want_lse = r.percent(80);
  if (r.percent(40)) c.capacity_slack = r.between(1, 9);
}

void choose_lengths(Random& r, Case& c) {
  const int32_t requests = r.percent(2) ? 0 : r.pick({1, 1, 2, 3, 4, 5, 8, 13});
  const int32_t most_kv = r.pick({40, 150, 300, 600, 1100});
  const int32_t step = r.below(5);
  for (int32_t i = 0; i < requests; ++i) {
    int32_t q = 1;
    if (step == 1) q = r.between(0, 8);                                            // speculative verify
    if (step == 2) q = edge_length(r, c.spec.page_size, 130);                      // prefill
    if (step == 3) q = r.percent(70) ? 1 : edge_length(r, c.spec.page_size, 130);  // mixed
    int32_t kv = edge_length(r, c.spec.page_size, most_kv);
    if (step >= 2 && r.percent(70)) kv = std::max(kv, q);
    if (r.percent(6)) kv = 0;
    c.q_len.push_back(q);
    c.kv_len.push_back(kv);
  }
  if (r.percent(1)) std::fill(c.kv_len.begin(), c.kv_len.end(), 0);
}

void choose_range(Random& r, Case& c) {
  KeyRange& range = c.spec.variant.range;
  range.causal = r.percent(60);
  if (r.percent(25)) range.left = r.pick({0, 1, 2, 15, 16, 17, 63, 64, 100, 1000});
  if (r.percent(8)) range.right = r.pick({0, 1, 5, 64});
  if (r.percent(12)) {
    for (const int32_t n : c.kv_len) c.prefix.push_back(r.percent(30) ? 0 : r.between(0, n));
  }
  if (r.percent(12)) {
    for (int32_t i = 0; i < c.num_requests(); ++i) c.q_pos0.push_back(c.kv_len[i] - c.q_len[i] + r.between(-5, 20));
  }
}

void choose_variant(Random& r, Case& c) {
  VariantSpec& v = c.spec.variant;
  if (r.percent(18)) v.soft_cap = r.pick({2.0f, 30.0f, 50.0f});
  if (r.percent(15)) {
    v.alibi = true;
    // Far keys ahead of a row would have logits of hundreds, and an fp32 logit of 500 is only good to 3e-5.
    c.alibi_gain = v.range.causal && c.q_pos0.empty() ? 1.0f : 1.0f / 32.0f;
  }
  if (r.percent(12)) {
    v.reduction = Reduction::sum;
    v.sigmoid_bias = r.pick({0.0f, -1.0f, -3.0f});
  } else if (r.percent(18)) {
    v.sink = true;
    c.bare_state = r.percent(15);
  }
  if (r.percent(15)) choose_rope(r, c);
  if (r.percent(16)) choose_mask(r, c);
}

/// Halves the longest thing until the case is affordable.
void fit(Case& c, int64_t limit) {
  while (work_of(c) > limit) {
    auto longest_q = std::max_element(c.q_len.begin(), c.q_len.end());
    auto longest_kv = std::max_element(c.kv_len.begin(), c.kv_len.end());
    if (*longest_q > 8 && *longest_q * 4 >= *longest_kv) {
      *longest_q = (*longest_q + 1) / 2;
    } else if (*longest_kv > 40) {
      *longest_kv = *longest_kv * 5 / 8;
    } else if (c.num_requests() > 1) {
      c.q_len.pop_back();
      c.kv_len.pop_back();
    } else {
      return;
    }
  }
}

}  // namespace

int64_t work_of(const Case& c) {
  const int64_t lists = c.lists_per_kv_head ? c.spec.num_kv_heads : 1;
  int64_t pairs = 0;
  for (size_t i = 0; i < c.kv_len.size(); ++i) pairs += int64_t(c.q_len[i / size_t(lists)]) * c.kv_len[i];
  return pairs / lists * c.spec.num_qo_heads * (c.spec.head_dim_qk + c.spec.head_dim_vo);
}

Case random_case(uint64_t seed, int64_t index) {
  Random r(mix64(seed) ^ mix64(uint64_t(index) + 0x5eed));
  Case c;
  c.name = std::to_string(seed) + ":" + std::to_string(index);
  c.seed = r.next();
  const int64_t limit = index % 16 == 15 ? kLargeWork : kWork;
  choose_heads(r, c);
  choose_dims(r, c);
  choose_types(r, c);
  choose_memory(r, c);
  const int32_t kind = r.below(100);
  if (kind < 12) {
    choose_shared_prefixes(r, c);
    fit(c, kLargeWork);
    choose_range(r, c);
    choose_variant(r, c);
    return c;
  }
  choose_lengths(r, c);
  fit(c, limit);
  if (kind < 24) {
    choose_range(r, c);
    choose_variant(r, c);
    choose_levels(r, c);
  } else if (kind < 31) {
    choose_lists_per_head(r, c);
  } else if (kind < 37) {
    choose_block_sparse(r, c);
  } else if (kind < 43) {
    choose_rolling_cache(r, c);
  } else {
    choose_range(r, c);
    choose_variant(r, c);
  }
  return c;
}

}  // namespace kvloom::check
