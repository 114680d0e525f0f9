// Longest processing time first: units by falling cost, each to the CTA that has least so far. Heads and equal chunks of a tile share one
// entry of the sort, so that costs n log n of tiles, not of units.
#include "kvloom/plan/policy.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

constexpr int kCtaBits = 16;
constexpr uint64_t kCtaMask = (uint64_t(1) << kCtaBits) - 1;

/// A min-heap in which the hole walks all the way down and the key back up: a new load is seldom among the least, and the walk has no
/// branch to mispredict. Full levels only, the rest filled with keys that never come up.
class CtaHeap {
 public:
  CtaHeap(std::vector<uint64_t>& keys, const std::vector<int64_t>& loads) : keys_(keys) {
    size_t size = 1;
    while (size < loads.size()) size = 2 * size + 1;
    keys_.assign(size, UINT64_MAX);
    for (size_t c = 0; c < loads.size(); ++c) keys_[c] = uint64_t(loads[c]) << kCtaBits | c;
    std::sort(keys_.begin(), keys_.begin() + std::ptrdiff_t(loads.size()));
    first_leaf_ = size / 2;
  }
  int32_t least() const { return int32_t(keys_[0] & kCtaMask); }
  void add_to_least(int64_t cost) {
    uint64_t* const keys = keys_.data();
    const uint64_t key = keys[0] + (uint64_t(cost) << kCtaBits);
    size_t hole = 0;
    while (hole < first_leaf_) {
      const size_t left = 2 * hole + 1;
      const size_t child = left + size_t(keys[left + 1] < keys[left]);
      keys[hole] = keys[child];
      hole = child;
    }
    for (; hole > 0 && key < keys[(hole - 1) / 2]; hole = (hole - 1) / 2) keys[hole] = keys[(hole - 1) / 2];
    keys[hole] = key;
  }
  void read_loads(std::vector<int64_t>& loads) const {
    for (uint64_t key : keys_) {
      if (key != UINT64_MAX) loads[key & kCtaMask] = int64_t(key >> kCtaBits);
    }
  }

 private:
  std::vector<uint64_t>& keys_;
  size_t first_leaf_;
};

}  // namespace

void longest_first(PolicyMemory& memory, std::vector<int64_t>& loads, std::vector<Piece>& pieces) {
  memory.order.resize(memory.kinds.size());
  for (size_t i = 0; i < memory.kinds.size(); ++i) memory.order[i] = {memory.kinds[i].cost, int32_t(i)};
  std::sort(memory.order.begin(), memory.order.end(),
            [](const KindOrder& a, const KindOrder& b) { return a.cost != b.cost ? a.cost > b.cost : a.index < b.index; });
  CtaHeap heap(memory.heap, loads);
  for (const KindOrder& order : memory.order) {
    const Kind& k = memory.kinds[order.index];
    for (int32_t run = k.run_begin; run < k.run_end; ++run) {
      int64_t begin = k.kv_begin;
      do {  // once, where there are no keys
        const int64_t end = std::min<int64_t>(begin + k.chunk, k.kv_end);
        add_piece(pieces, k.tile, run, 1, begin, end, heap.least());
        heap.add_to_least(k.cost);
        begin = end;
      } while (begin < k.kv_end);
    }
  }
  heap.read_loads(loads);
}

void whole_kinds(const Work& work, ClassFilter filter, std::vector<Kind>& kinds) {
  kinds.clear();
  for (int32_t i = 0; i < int32_t(work.tiles.size()); ++i) {
    const Tile& t = work.tiles[i];
    if (!filter(t)) continue;
    const int32_t full = full_runs(t);
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
