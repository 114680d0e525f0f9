#include "cli/replay/step_stats.h"

#include "kvloom/base/math.h"
#include "kvloom/plan/cost.h"
#include "kvloom/support/check.h"

namespace kvloom::replay {
namespace {

/// Sum over positions [begin, end) of min(position + 1, window).
int64_t sum_of_kept(int64_t begin, int64_t end, int64_t window) {
  const int64_t growing = clamp_to<int64_t>(window, begin, end);  // rows before this keep all keys up to their own
  const int64_t triangle = (begin + 1 + growing) * (growing - begin) / 2;
  return triangle + (end - growing) * window;
}

/// Bytes of K and V named by the groups: of each, the keys from its first item's to its last item's.
int64_t bytes_of_groups(const PlanView& plan, const AttentionSpec& spec, int64_t token_bytes) {
  struct Keys {
    int32_t begin = 0, end = 0;
  };
  std::vector<Keys> keys(size_t(plan.groups.size));
  for (const WorkItem& item : plan.items) {
    if (item.kv_end <= item.kv_begin) continue;
    Keys& k = keys[size_t(item.group)];
    const bool first = k.end == 0;
    k.begin = first ? item.kv_begin : min_of(k.begin, item.kv_begin);
    k.end = first ? item.kv_end : max_of(k.end, item.kv_end);
  }
  int64_t bytes = 0;
  for (size_t g = 0; g < keys.size(); ++g) {
    const int64_t heads = plan.groups[int64_t(g)].kv_head < 0 ? spec.num_kv_heads : 1;
    bytes += int64_t(keys[g].end - keys[g].begin) * heads * (token_bytes / spec.num_kv_heads);
  }
  return bytes;
}

/// Cost of one KV tile of an item's rows: by how much two CTAs may differ because work is cut at tiles.
uint64_t tile_cost(const PlanHeader& header, WorkItem item) {
  item.kv_end = item.kv_begin + min_of(item.kv_end - item.kv_begin, header.classes[item.kernel_class].tile_kv);
  return plan::work_cost(header, item);
}

void read_loads(const PlanView& plan, StepStats& s) {
  const PlanHeader& header = *plan.header;
  uint64_t worst = 0, total = 0, worst_tile = 0, largest_tile = 0;
  for (int32_t cta = 0; cta < header.num_ctas; ++cta) {
    uint64_t load = 0, tile = 0;
    for (int32_t i = plan.cta_indptr[cta]; i < plan.cta_indptr[cta + 1]; ++i) {
      load += plan::work_cost(header, plan.items[i]);
      tile = max_of(tile, tile_cost(header, plan.items[i]));
    }
    total += load;
    largest_tile = max_of(largest_tile, tile);
    if (load > worst) worst = load, worst_tile = tile;
  }
  const double mean = double(total) / header.num_ctas;
  s.tiles_per_cta = largest_tile > 0 ? mean / double(largest_tile) : 0.0;
  s.balance = mean > 0 ? double(worst) / mean : 1.0;
  s.excess_tiles = worst_tile > 0 ? (double(worst) - mean) / double(worst_tile) : 0.0;
}

}  // namespace

int64_t kept_keys(int64_t q_len, int64_t kv_len, int32_t left) {
  const int64_t window = left < 0 ? kv_len : int64_t(left) + 1;
  return sum_of_kept(kv_len - q_len, kv_len, window);
}

int64_t first_kept_key(int64_t q_len, int64_t kv_len, int32_t left) { return left < 0 ? 0 : max_of<int64_t>(0, kv_len - q_len - left); }

StepStats step_stats(const PlanView& plan, const AttentionSpec& spec, const std::vector<Slice>& slices, int64_t token_bytes) {
  StepStats s;
  s.policy = plan.header->policy;
  s.levels = plan.header->num_levels;
  s.can_split = s.policy == Policy::heap || s.policy == Policy::stream || s.policy == Policy::fill;
  read_loads(plan, s);
  s.read_bytes = bytes_of_groups(plan, spec, token_bytes);
  const int32_t left = spec.variant.range.left;
  int64_t pairs = 0;
  for (const Slice& slice : slices) {
    s.flat_bytes += (slice.kv_len - first_kept_key(slice.q_len, slice.kv_len, left)) * token_bytes;
    pairs += kept_keys(slice.q_len, slice.kv_len, left);
  }
  s.flop = 2.0 * double(pairs) * spec.num_qo_heads * (spec.head_dim_qk + spec.head_dim_vo);
  return s;
}

}  // namespace kvloom::replay
