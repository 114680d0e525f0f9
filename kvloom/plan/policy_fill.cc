// fill: steps with compute-bound tiles. Those are placed first, whole: list by list (by_list.cc), or longest first and done list by list (keys_together.cc).
// Then the memory-bound units, whole and longest first if that comes out within what cutting would cost, else poured as one stream into what is left of
// every CTA, up to one water level. Odd CTAs do their memory part first and even ones last, so that at any moment about half of the CTAs load and half
// compute: that overlap, not the balance, is what a mixed launch gains.
//
// Compute tiles are cut only where that lowers the finish by more than a merge costs (and keep_whole_margin): either the tiles longer
// than the mean are cut evenly, or the whole class is streamed, whichever finishes first. With no memory-bound units this is the policy
// of prefill steps. Cuts: fewer than CTAs in each class.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

constexpr ClassFilter kMemory{{true, false}};
constexpr ClassFilter kCompute{{false, true}};

/// The smallest level at which sum(max(0, level - load)) >= volume.
int64_t water_level(const std::vector<int64_t>& loads, int64_t volume, std::vector<int64_t>& sorted) {
  sorted = loads;
  std::sort(sorted.begin(), sorted.end());
  int64_t below = 0;  // sum of the k lowest loads
  for (size_t k = 1; k <= sorted.size(); ++k) {
    below += sorted[k - 1];
    const int64_t level = ceil_div<int64_t>(volume + below, int64_t(k));
    if (k == sorted.size() || level <= sorted[k]) return level;
  }
  return volume;
}

/// When the last CTA is done if the memory class is poured on top of `loads`.
int64_t finish_time(const std::vector<int64_t>& loads, int64_t volume, std::vector<int64_t>& sorted) {
  return std::max(max_load(loads), volume > 0 ? water_level(loads, volume, sorted) : 0);
}

/// Kinds of the compute tiles, those that cost more than `level` cut into equal chunks.
void cut_kinds(const Work& work, int64_t level, int32_t tile_kv, std::vector<Kind>& kinds) {
  kinds.clear();
  auto add = [&](int32_t i, int32_t run_begin, int32_t run_end) {
    const Tile& t = work.tiles[i];
    const int64_t tokens = int64_t(t.kv_end) - t.kv_begin;
    const int64_t wanted = ceil_div(unit_cost(t, run_begin), std::max<int64_t>(level, 1));
    const int64_t parts = clamp_to<int64_t>(wanted, 1, std::max<int64_t>(tokens, 1));
    int64_t begin = t.kv_begin;
    for (int64_t p = 1; p <= parts; ++p) {
      int64_t end = p == parts ? t.kv_end : (t.kv_begin + tokens * p / parts + tile_kv / 2) / tile_kv * tile_kv;
      end = std::min<int64_t>(end, t.kv_end);
      if (end <= begin && parts > 1) continue;
      kinds.push_back({run_cost(t, run_begin, end - begin), i, run_begin, run_end, int32_t(begin), int32_t(end), int32_t(end - begin)});
      begin = end;
    }
  };
  for (int32_t i = 0; i < int32_t(work.tiles.size()); ++i) {
    const Tile& t = work.tiles[i];
    if (!kCompute(t)) continue;
    const int32_t full = full_runs(t);
    if (full > 0) add(i, 0, full);
    if (full < t.runs) add(i, full, t.runs);
  }
}

/// What one cut of a compute tile costs the CTA that merges it: a partial written, two read.
int64_t merge_cost(const SchedulerConfig& config) {
  return config.cost_partial + config.cost_merge + 3 * config.cost_partial_row * config.classes[1].tile_rows;
}

/// Whole units of the compute class beside those of the memory class, list by list, if that ends hardly later than what is there.
bool keep_lists_together(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  constexpr int kShare = 32;  // what reading keys once is worth at least
  if (work.units[0] == 0) return false;
  memory.candidate.clear();
  memory.candidate_loads.assign(config.num_ctas, 0);
  if (!place_by_list(work, kCompute, memory, memory.candidate_loads, memory.candidate)) return false;
  const int64_t whole = finish_time(memory.loads, work.cost[0], memory.sorted);
  if (finish_time(memory.candidate_loads, work.cost[0], memory.sorted) > whole + whole / kShare) return false;
  out.pieces.swap(memory.candidate);
  memory.loads.swap(memory.candidate_loads);
  return true;
}

/// Places the compute class in `out.pieces`, each CTA's in the order in which it does them, with its loads in `memory.loads`. `may_cut`: where that is
/// worth it.
void place_compute(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, bool may_cut, Schedule& out) {
  const int32_t ctas = config.num_ctas;
  memory.loads.assign(ctas, 0);
  whole_kinds(work, kCompute, memory.kinds);
  longest_first(memory, memory.loads, out.pieces, RunOrder::turning);
  const int64_t whole = finish_time(memory.loads, work.cost[0], memory.sorted);
  const int64_t mean = ceil_div<int64_t>(work.total_cost(), ctas);
  const int64_t margin = std::max(config.keep_whole_margin, merge_cost(config));
  if (whole <= mean + margin || !may_cut) {
    if (!keep_lists_together(work, config, memory, out)) keys_together(work, memory, out.pieces);
    return;
  }

  // A schedule that cuts can't finish before the mean, so only here can it win more than a merge.
  int64_t best = whole - margin;
  std::vector<int64_t>& loads = memory.candidate_loads;
  auto keep_if_better = [&] {
    const int64_t finish = finish_time(loads, work.cost[0], memory.sorted);
    if (finish >= best) return;
    best = finish;
    out.pieces.swap(memory.candidate);
    memory.loads.swap(loads);
  };
  if (work.max_unit_cost[1] > mean) {
    memory.candidate.clear();
    loads.assign(ctas, 0);
    cut_kinds(work, mean, config.classes[1].tile_kv, memory.kinds);
    longest_first(memory, loads, memory.candidate, RunOrder::turning);
    keep_if_better();
  }
  memory.candidate.clear();
  loads.assign(ctas, 0);
  equal_shares(work.cost[1], ctas, memory.shares);
  pour(work, kCompute, {config.classes, {config.snap_memory, config.snap_compute}}, memory.shares, memory.cuts);
  append_pieces(work, kCompute, memory.cuts, memory.candidate, loads);
  keep_if_better();
  keys_together(work, memory, out.pieces);
}

/// Units of the memory class whole, on top of what CTAs have: true if that ends no later than `level` and what cutting them would cost besides. Streams
/// that are poured in leave a CTA two parts of units at its ends, an item and a merge more.
bool place_memory_whole(const Work& work, const SchedulerConfig& config, int64_t level, PolicyMemory& memory, Schedule& out) {
  const int64_t cut = config.cost_partial + config.cost_merge + work.max_fixed_cost[0];
  whole_kinds(work, kMemory, memory.kinds);
  if (!longest_first_fits(memory, memory.loads, std::max(level + cut, max_load(memory.loads)))) return false;
  longest_first(memory, memory.loads, out.pieces, RunOrder::turning);
  return true;
}

}  // namespace

void schedule_fill(const Work& work, const SchedulerConfig& config, PolicyMemory& memory, Schedule& out) {
  if (work.units[1] == 0) {
    schedule_stream(work, config, memory, out);
    out.policy = Policy::fill;
    return;
  }
  out.policy = Policy::fill;
  fill_around(work, config, {config.classes, {config.snap_memory, config.snap_compute}}, true, memory, out);
}

void fill_around(const Work& work, const SchedulerConfig& config, const StreamRules& memory_rules, bool may_cut_compute, PolicyMemory& memory, Schedule& out) {
  out.order = CtaOrder::alternating;
  place_compute(work, config, memory, may_cut_compute, out);
  if (work.units[0] == 0) return;
  if (config.cost_shared > 0) {
    for (const Piece& p : out.pieces) {
      if (work.tiles[p.tile].shared) memory.loads[p.cta] += config.cost_shared;
    }
  }
  const int64_t level = water_level(memory.loads, work.cost[0], memory.sorted);
  if (may_cut_compute && place_memory_whole(work, config, level, memory, out)) return;
  memory.shares.resize(config.num_ctas);
  int64_t left = work.cost[0];
  for (int32_t c = 0; c < config.num_ctas; ++c) {
    memory.shares[c] = clamp_to<int64_t>(level - memory.loads[c], 0, left);
    left -= memory.shares[c];
  }
  pour(work, kMemory, memory_rules, memory.shares, memory.cuts);
  append_pieces(work, kMemory, memory.cuts, out.pieces, memory.loads);
}

}  // namespace kvloom::plan
