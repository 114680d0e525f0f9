#include "kvloom/plan/batch_check.h"
#include "kvloom/plan/layout.h"
#include "kvloom/support/check.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxCtas = 65535;  // a CTA number fits 16 bits
constexpr int64_t kMaxTileRows = 4096;
constexpr int64_t kMaxTileKv = 1 << 20;
constexpr int64_t kMaxTokenCost = 1 << 16;
constexpr int64_t kMaxItemCost = 1 << 30;
constexpr int64_t kMaxKvTokens = int64_t(1) << 36;

void check_range(const char* what, int64_t got, int64_t low, int64_t high) {
  require(got >= low && got <= high, "plan: {}: got {}, wanted {} to {}", what, got, low, high);
}

void check_class(int index, const KernelClass& k) {
  auto check = [&](const char* what, int64_t got, int64_t low, int64_t high) {
    require(got >= low && got <= high, "plan: classes[{}].{}: got {}, wanted {} to {}", index, what, got, low, high);
  };
  check("tile_rows", k.tile_rows, 1, kMaxTileRows);
  check("tile_kv", k.tile_kv, 1, kMaxTileKv);
  check("heads_per_item", k.heads_per_item, 1, kMaxHeadsPerItem);
  check("cost_per_token", k.cost_per_token, 1, kMaxTokenCost);
  check("cost_per_tile_row", k.cost_per_tile_row, 0, kMaxTokenCost);
  check("cost_per_item", k.cost_per_item, 0, kMaxItemCost);
  require(int64_t(k.tile_rows) * k.heads_per_item <= kMaxRowsPerItem, "plan: classes[{}]: got {} rows x {} heads an item, wanted at most {}",
          index, k.tile_rows, k.heads_per_item, kMaxRowsPerItem);
}

void check_spec(const AttentionSpec& spec) {
  check_range("num_kv_heads", spec.num_kv_heads, 1, kMaxHeads);
  require(spec.num_qo_heads > 0 && spec.num_qo_heads % spec.num_kv_heads == 0,
          "plan: num_qo_heads: got {}, wanted a positive multiple of num_kv_heads = {}", spec.num_qo_heads, spec.num_kv_heads);
  check_range("head_dim_vo", spec.head_dim_vo, 1, 1 << 16);
  check_range("page_size", spec.page_size, 1, 1 << 30);
}

void check_capacity(const AttentionSpec& spec, const Capacity& capacity) {
  const int64_t max_tokens = std::min<int64_t>(INT32_MAX / spec.group_size(), kMaxListTokens);  // packed rows and positions are int32
  check_range("Capacity.max_requests", capacity.max_requests, 0, INT32_MAX);
  check_range("Capacity.max_query_tokens", capacity.max_query_tokens, 0, max_tokens);
  check_range("Capacity.max_kv_tokens", capacity.max_kv_tokens, 0, kMaxKvTokens);
  check_range("Capacity.max_level_rows", capacity.max_level_rows, 0, max_tokens);
  check_range("Capacity.max_groups", capacity.max_groups, 0, INT32_MAX);
}

}  // namespace

void check_config(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config) {
  check_spec(spec);
  check_capacity(spec, capacity);
  require(config.num_ctas >= 1, "plan: num_ctas: got {}, wanted at least 1; a kernel that fits no CTA on the device cannot be planned for",
          config.num_ctas);
  check_range("num_ctas", config.num_ctas, 1, kMaxCtas);
  check_range("policy", int64_t(config.policy), int64_t(Policy::none), int64_t(Policy::automatic));
  check_range("compute_rows_above", config.compute_rows_above, 0, INT32_MAX);
  for (int c = 0; c < 2; ++c) check_class(c, config.classes[c]);
  for (int64_t cost : {config.cost_partial, config.cost_partial_row, config.cost_merge, config.snap_memory, config.snap_compute,
                       config.keep_whole_margin, config.fill_from, config.cost_shared}) {
    check_range("a cost, snap or margin of SchedulerConfig", cost, 0, int64_t(1) << 40);
  }
  check_range("saturating_ctas", config.saturating_ctas, 0, kMaxCtas);
  check_range("level_reader_gain", config.level_reader_gain, 0, int64_t(1) << 31);
  check_range("cost_level_item", config.cost_level_item, 0, kMaxItemCost - config.classes[0].cost_per_item);
  if (config.policy != Policy::fixed_split) return;
  const int32_t tile_kv = config.classes[0].tile_kv;
  require(config.split_tokens > 0 && config.split_tokens % tile_kv == 0,
          "plan: split_tokens: got {}, wanted a positive multiple of the KV tile of class 0, {}", config.split_tokens, tile_kv);
  require(capacity.max_kv_tokens > 0,
          "plan: Capacity.max_kv_tokens: got {}, wanted the most KV tokens of a step; fixed_split needs it to bound its partials",
          capacity.max_kv_tokens);
}

}  // namespace kvloom::plan
