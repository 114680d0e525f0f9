#include "cli/check/gpu_case.h"

#include "kvloom/base/math.h"
#include "kvloom/contract/kernel_key.h"

#include <algorithm>
#include <iterator>

namespace kvloom::check {
namespace {

/// Without causal, window and sink: those are data of every kernel, and the bent case keeps its own.
/// A case with a mask takes the next key that has one, so keys with masks stand apart.
constexpr const char* kKeys[] = {
    "attend.sm80.bf16.d128.paged",
    "attend.sm80.bf16.d128.ragged",
    "attend.sm80.f16.d64.paged",
    "attend.sm80.f16.d64.ragged.alibi",
    "attend.sm80.bf16.o-f32.d16.paged",
    "attend.sm80.bf16.o-f16.d80.paged",
    "attend.sm80.bf16.d256.paged",
    "attend.sm80.bf16.d192-128.paged",
    "attend.sm80.f16.o-f32.d96-240.ragged",
    "attend.sm80.bf16.d512.paged",
    "attend.sm80.bf16.d576-512.paged",
    "attend.sm80.bf16.kv-e4m3.d128.paged",
    "attend.sm80.f16.kv-e5m2.d128.paged",
    "attend.sm80.bf16.kv-e4m3.o-f32.d80-48.paged",
    "attend.sm80.f16.kv-e4m3.d512.ragged",
    "attend.sm80.bf16.kv-e4m3.d576-512.paged",
    "attend.sm80.bf16.d128.paged.alibi",
    "attend.sm80.bf16.d128.paged.softcap",
    "attend.sm80.bf16.d128.paged.mask",
    "attend.sm90.bf16.d128.paged.rope-half",
    "attend.sm90.f16.d64.paged.rope-interleaved",
    "attend.sm80.f16.o-f32.d64.ragged.mask",
    "attend.sm80.bf16.kv-e4m3.d64.paged.alibi.softcap.mask",
    "attend.sm80.bf16.d128.paged.sigmoid",
    "attend.sm80.f16.o-f32.d64.paged.softcap.mask.sigmoid",
    "attend.sm80.bf16.d128.paged.rope-half",
    "attend.sm80.f16.d64.paged.rope-interleaved",
    "attend.sm80.bf16.kv-e4m3.d128.paged.rope-half",
    "attend.sm90.bf16.d128.paged",
    "attend.sm90.bf16.d128.ragged",
    "attend.sm90.f16.d64.paged",
    "attend.sm90.f16.d64.ragged.alibi",
    "attend.sm90.bf16.o-f16.d96.paged",
    "attend.sm90.bf16.d256.paged",
    "attend.sm90.bf16.o-f32.d192.ragged",
    "attend.sm90.bf16.d192-128.paged",
    "attend.sm90.bf16.d128.paged.alibi",
    "attend.sm90.bf16.d128.paged.softcap",
    "attend.sm90.bf16.d128.paged.mask",
    "attend.sm90.f16.o-f32.d64.ragged.mask",
    "attend.sm90.bf16.d128.paged.sigmoid",
    "attend.sm90.f16.o-f32.d64.paged.softcap.mask.sigmoid",
    "attend.sm90.bf16.kv-e4m3.d128.paged",
    "attend.sm90.f16.kv-e5m2.d64.paged.softcap",
    "attend.sm90.bf16.kv-e4m3.d256.ragged",
};

bool needs_pages(const Case& c) {
  return !c.shared.empty() || !c.groups.empty() || c.lists_per_kv_head || c.kv_position != KvPosition::linear;
}

/// True if the case can take on a key: what its lengths and tables are made for stays.
bool can_be(const Case& c, const AttentionSpec& key, bool for_user) {
  if (key.storage == Storage::ragged && needs_pages(c)) return false;
  const VariantSpec& v = key.variant;
  if (for_user && (v.alibi || v.soft_cap > 0.0f || v.reduction == Reduction::sum)) return false;
  return v.custom_mask == c.spec.variant.custom_mask;  // masks come with rows of their own
}

void bend_variant(Case& c, const VariantSpec& key, int64_t index) {
  VariantSpec& v = c.spec.variant;
  if (key.alibi && !v.alibi) c.alibi_gain = 1.0f / 32.0f;
  v.alibi = key.alibi;
  v.soft_cap = key.soft_cap <= 0.0f ? 0.0f : v.soft_cap > 0.0f ? v.soft_cap : 30.0f;
  v.reduction = key.reduction;
  if (key.reduction == Reduction::sum) {
    c.want_lse = false;
    v.sink = false;
  } else {
    v.sigmoid_bias = 0.0f;
  }
  const RopeMode mode = key.rope.mode;
  if (mode == RopeMode::none) v.rope = RopeSpec();
  v.rope.mode = mode;
  if (mode != RopeMode::none) {
    const int32_t dims[4] = {0, c.spec.head_dim_qk / 2, c.spec.head_dim_qk / 8 * 2, c.spec.head_dim_qk - 2};
    v.rope.rotary_dim = dims[index % 4];
  }
}

void bend_memory(Case& c) {
  if (c.placement == Placement::mla && c.spec.head_dim_vo > c.spec.head_dim_qk) c.placement = Placement::separate;
  c.batch_keeps_pages = false;  // they are in host memory there
  c.pad = 16;                   // bytes of a copy, whatever the type
  c.q_scale = 1.0f;
  if (is_fp8(c.spec.kv_dtype)) return;
  c.k_scale = c.v_scale = 1.0f;
  c.scale_per_head = false;
}

}  // namespace

std::string family_under(bool fixed_split, const std::string& family, const AttentionSpec& spec) {
  return fixed_split && !family.empty() && spec.variant.rope.mode != RopeMode::none ? "sm80" : family;
}

std::vector<std::string> gpu_check_keys() {
  std::vector<std::string> keys;
  for (const char* key : kKeys) {
    keys.emplace_back(key);
    const ParsedKey k = parse_kernel_key(key);
    keys.push_back(kernel_key(k.task.c_str(), family_under(true, k.family, k.spec).c_str(), k.spec, true));
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

void put_on_gpu(Case& c) {
  AttentionSpec& s = c.spec;
  if (s.q_dtype != DType::f16) s.q_dtype = DType::bf16;
  if (!is_fp8(s.kv_dtype)) s.kv_dtype = s.q_dtype;
  bend_memory(c);
}

void bend_for_gpu(Case& c, int64_t index, bool for_user) {
  constexpr int64_t kCount = int64_t(std::size(kKeys));
  for (int64_t i = 0; i < kCount; ++i) {
    const ParsedKey key = parse_kernel_key(kKeys[(index + i) % kCount]);
    if (!can_be(c, key.spec, for_user)) continue;
    c.kernel = key.family;
    AttentionSpec& s = c.spec;
    s.head_dim_qk = key.spec.head_dim_qk;
    s.head_dim_vo = key.spec.head_dim_vo;
    s.q_dtype = key.spec.q_dtype;
    s.kv_dtype = key.spec.kv_dtype;
    s.o_dtype = key.spec.o_dtype;
    if (s.storage != key.spec.storage) c.groups.clear();  // they count pages, or tokens
    s.storage = key.spec.storage;
    if (s.storage == Storage::ragged) c.dense_table = false;
    bend_variant(c, key.spec.variant, index);
    bend_memory(c);
    return;
  }
}

}  // namespace kvloom::check
