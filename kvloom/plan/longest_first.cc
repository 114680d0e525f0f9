// Longest processing time first: units by falling cost, each to the CTA that has least so far. Heads and equal chunks of a tile share one
// entry of the sort, so that costs n log n of tiles, not of units.
#include "kvloom/plan/policy.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

constexpr int kCtaBits = 16;

/// Restores the min-heap after its top was replaced.
void sift_down(uint64_t* heap, size_t n) {
  const uint64_t key = heap[0];
  size_t hole = 0;
  for (size_t child = 1; child < n; child = 2 * hole + 1) {
    if (child + 1 < n) child += heap[child + 1] < heap[child];
    if (key <= heap[child]) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = key;
}

bool goes_first(const Kind& a, const Kind& b) {
  if (a.cost != b.cost) return a.cost > b.cost;
  if (a.tile != b.tile) return a.tile < b.tile;
  return a.run_begin != b.run_begin ? a.run_begin < b.run_begin : a.kv_begin < b.kv_begin;
}

}  // namespace

void longest_first(const Work& work, std::vector<Kind>& kinds, std::vector<uint64_t>& heap, std::vector<int64_t>& loads,
                   std::vector<Piece>& pieces) {
  std::sort(kinds.begin(), kinds.end(), goes_first);
  heap.resize(loads.size());
  for (size_t c = 0; c < loads.size(); ++c) heap[c] = uint64_t(loads[c]) << kCtaBits | c;
  std::sort(heap.begin(), heap.end());
  for (const Kind& k : kinds) {
    for (int32_t run = k.run_begin; run < k.run_end; ++run) {
      int64_t begin = k.kv_begin;
      do {  // once, where there are no keys
        const int64_t end = std::min<int64_t>(begin + k.chunk, k.kv_end);
        const int32_t cta = int32_t(heap[0] & ((1u << kCtaBits) - 1));
        pieces.push_back({k.tile, run, int32_t(begin), int32_t(end), cta});
        heap[0] += uint64_t(k.cost) << kCtaBits;
        sift_down(heap.data(), heap.size());
        begin = end;
      } while (begin < k.kv_end);
    }
  }
  for (uint64_t key : heap) loads[key & ((1u << kCtaBits) - 1)] = int64_t(key >> kCtaBits);
}

void whole_kinds(const Work& work, ClassFilter filter, std::vector<Kind>& kinds) {
  kinds.clear();
  for (int32_t i = 0; i < int32_t(work.tiles.size()); ++i) {
    const Tile& t = work.tiles[i];
    if (!filter(t)) continue;
    const int32_t full = t.last_heads == t.heads ? t.runs : t.runs - 1;
    const int32_t tokens = t.kv_end - t.kv_begin;
    kinds.push_back({unit_cost(t, 0), i, 0, full, t.kv_begin, t.kv_end, tokens});
    if (full < t.runs) kinds.push_back({unit_cost(t, full), i, full, t.runs, t.kv_begin, t.kv_end, tokens});
  }
}

int64_t max_load(const std::vector<int64_t>& loads) { return loads.empty() ? 0 : *std::max_element(loads.begin(), loads.end()); }

int64_t grain(const Work& work, const SchedulerConfig& config) {
  int64_t largest = 0;
  for (int c = 0; c < 2; ++c) {
    if (work.units[c] == 0) continue;
    const KernelClass& k = config.classes[c];
    largest = std::max(largest, work.max_fixed_cost[c] + int64_t(k.cost_per_token) * k.tile_kv * work.max_heads[c]);
  }
  return largest;
}

int64_t whole_bound(const Work& work, const SchedulerConfig& config) {
  return work.total_cost() / config.num_ctas + std::min<int64_t>(config.keep_whole_margin, grain(work, config));
}

}  // namespace kvloom::plan
