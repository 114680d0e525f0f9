// heap: algorithm 1 of the FlashInfer paper (arXiv 2501.01005). No chunk costs more than an even share of the reading,
// cap = ceil(sum of token costs / CTAs), rounded up to the class's KV tile; chunks by falling cost, each to the CTA with the least load.
//
// A unit is cut only where it is longer than the cap, and a chunk costs at least the share, so there are fewer cuts than CTAs.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"
#include "kvloom/plan/whole.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

/// Longest chunk of a run, in tokens, of a class whose KV tile is `tile_kv`.
int64_t cap_tokens(int64_t cap_cost, int64_t cost_per_token, int64_t tile_kv) {
  return std::max(round_up(short_div(cap_cost + cost_per_token - 1, cost_per_token), tile_kv), tile_kv);
}

/// Chunks of runs [run_begin, run_end), which all have the same number of KV heads.
void add_kinds(const Tile& t, int32_t index, int32_t run_begin, int32_t run_end, int64_t cap, int64_t tile_kv, std::vector<Kind>& kinds) {
  auto add = [&](int64_t begin, int64_t end, int64_t chunk) {
    const int64_t cost = run_cost(t, run_begin, chunk);
    kinds.push_back({cost, index, run_begin, run_end, int32_t(begin), int32_t(end), int32_t(chunk)});
  };
  int64_t begin = t.kv_begin;
  const int64_t end = t.kv_end;
  const int64_t aligned = round_up(begin, tile_kv);  // chunks lie on the tile grid; a window may begin off it
  if (end <= aligned + cap) return add(begin, end, end - begin);
  if (begin < aligned) {
    add(begin, aligned + cap, aligned + cap - begin);
    begin = aligned + cap;
  }
  const int64_t full = begin + (end - begin) / cap * cap;
  if (full > begin) add(begin, full, cap);
  if (end > full) add(full, end, end - full);
}

/// The load up to which heap is preferred to a stream. Longest first can leave a whole chunk on top of a CTA that is full; a stream can't leave more than
/// a tile. But every cut costs two partials and a merge behind everything else, and where `saturating_ctas` have all of the memory's bandwidth, the last
/// CTAs go faster: half of that is counted on.
int64_t heap_bound(const Work& work, const SchedulerConfig& config) {
  const int64_t mean = ceil_div<int64_t>(work.total_cost(), config.num_ctas), tile = mean + grain(work, config);
  if (config.saturating_ctas <= 0 || config.saturating_ctas >= config.num_ctas) return tile;
  return std::max(tile, mean + mean * (config.num_ctas - config.saturating_ctas) / (2 * int64_t(config.saturating_ctas)));
}

void cut_heap(const Work& work, const SchedulerConfig& config, const int64_t (&grid)[2], PolicyMemory& memory, Schedule& out) {
  out.policy = Policy::heap;
  int64_t fixed = 0;
  for (const Tile& t : work.tiles) {
    for (int32_t run = 0; run < t.runs; ++run) fixed += fixed_cost(t, run);
  }
  const int64_t cap_cost = ceil_div<int64_t>(work.total_cost() - fixed, config.num_ctas);

  memory.kinds.clear();
  int64_t cap_of_class[2] = {0, 0};
  for (int32_t i = 0; i < int32_t(work.tiles.size()); ++i) {
    const Tile& t = work.tiles[i];
    if (t.runs == 0) continue;
    const int64_t tile_kv = grid[t.kernel_class];
    const int64_t cap = cap_tokens(cap_cost, int64_t(t.token_cost) * t.kv_head_count, tile_kv);
    cap_of_class[t.kernel_class] = std::max(cap_of_class[t.kernel_class], cap);
    const int32_t full = full_runs(t);
    if (full > 0) add_kinds(t, i, 0, full, cap, tile_kv, memory.kinds);
    if (full < t.runs) {
      add_kinds(t, i, full, t.runs, cap_tokens(cap_cost, int64_t(t.token_cost) * t.last_heads, tile_kv), tile_kv, memory.kinds);
    }
  }
  out.chunk_cap = int32_t(std::min<int64_t>(work.units[0] > 0 ? cap_of_class[0] : cap_of_class[1], INT32_MAX));
  memory.loads.assign(config.num_ctas, 0);
  longest_first(memory, memory.loads, out.pieces);
}

}  // namespace

void schedule_heap(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  cut_heap(work, config, {config.classes[0].tile_kv, config.classes[1].tile_kv}, memory, out);
}

bool heap_within(int64_t bound, const Work& work, const SchedulerConfig& config, const int64_t (&grid)[2], PolicyMemory& memory, Schedule& out) {
  cut_heap(work, config, grid, memory, out);
  if (max_load(memory.loads) <= bound) return true;
  out.pieces.clear();
  out.chunk_cap = 0;
  return false;
}

bool place_heap(const Work& work, const SchedulerConfig& config, const int64_t (&grid)[2], PolicyMemory& memory, Schedule& out) {
  // Of more units a cut is a small part of the step, and longest first takes the host longer than that.
  const bool shares_memory = config.saturating_ctas > 0 && config.saturating_ctas < config.num_ctas;
  if (work.num_units > config.num_ctas && !(shares_memory && work.num_units <= int64_t(kWholeUnitsPerCta) * config.num_ctas)) return false;
  return heap_within(heap_bound(work, config), work, config, grid, memory, out);
}

}  // namespace kvloom::plan
