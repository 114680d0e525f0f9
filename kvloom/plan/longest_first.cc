// Longest processing time first: units by falling cost, each to the CTA that has least so far. Heads and equal chunks of a tile share one
// entry of the sort, so that costs n log n of tiles, not of units.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"
#include "kvloom/plan/whole.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

/// The CTAs by load, and those that took units of the cost at hand in a second queue. Loads are taken in ascending order and each comes
/// back larger by the same cost, so the second queue is sorted as it grows: the least load is at the front of one of the two, as in Huffman
/// coding with two queues. Where the cost changes, the second goes back into the first from behind: under longest first a load that has
/// just grown is seldom far from the largest.
class CtaQueue {
 public:
  CtaQueue(std::vector<uint64_t>& memory, const std::vector<int64_t>& loads) : ctas_(loads.size()) {
    memory.resize((kRoom + 1) * ctas_);
    room_ = first_ = memory.data();
    grown_ = room_ + kRoom * ctas_;
    for (size_t c = 0; c < ctas_; ++c) first_[c] = uint64_t(loads[c]) << kCtaBits | c;
    std::sort(first_, first_ + ctas_);
  }

  /// Gives units of `cost` to the least loaded, one after the other: take(CTA) for each.
  template <class F>
  void give(int64_t units, int64_t cost, F&& take) {
    for (; units > 0; units -= int64_t(ctas_)) give_some(std::min(size_t(units), ctas_), uint64_t(cost) << kCtaBits, take);
  }
  int64_t largest() const { return int64_t(first_[ctas_ - 1] >> kCtaBits); }
  void read_loads(std::vector<int64_t>& loads) const {
    for (size_t i = 0; i < ctas_; ++i) loads[first_[i] & kCtaMask] = int64_t(first_[i] >> kCtaBits);
  }

 private:
  static constexpr size_t kRoom = 4;  // of the first queue, which moves through it, in multiples of its size

  template <class F>
  void give_some(size_t units, uint64_t cost, F&& take) {
    uint64_t* const end = first_ + ctas_;
    uint64_t* from = grown_;
    uint64_t* to = grown_;
    for (size_t i = 0; i < units; ++i) {
      const bool again = from < to && (first_ == end || *from < *first_);
      const uint64_t key = again ? *from++ : *first_++;
      take(int32_t(key & kCtaMask));
      *to++ = key + cost;
    }
    put_back(from, to, end);
  }

  /// Merges grown loads [from, to) into [first_, end), backwards, to end where both fit.
  void put_back(const uint64_t* from, const uint64_t* to, const uint64_t* end) {
    uint64_t* at = first_ + ctas_;
    while (from < to) *--at = end > first_ && end[-1] > to[-1] ? *--end : *--to;
    if (size_t(room_ + kRoom * ctas_ - first_) >= 2 * ctas_) return;
    std::copy(first_, first_ + ctas_, room_);
    first_ = room_;
  }

  const size_t ctas_;
  uint64_t* room_;
  uint64_t* first_;
  uint64_t* grown_;
};

void order_kinds(PolicyMemory& memory) {
  memory.order.resize(memory.kinds.size());
  for (size_t i = 0; i < memory.kinds.size(); ++i) memory.order[i] = {memory.kinds[i].cost, int32_t(i)};
  std::sort(memory.order.begin(), memory.order.end(),
            [](const KindOrder& a, const KindOrder& b) { return a.cost != b.cost ? a.cost > b.cost : a.index < b.index; });
}

int64_t units_of(const Kind& k) {
  const int64_t chunks = k.kv_end - k.kv_begin <= k.chunk ? 1 : ceil_div<int64_t>(int64_t(k.kv_end) - k.kv_begin, k.chunk);
  return (k.run_end - k.run_begin) * chunks;
}

}  // namespace

bool longest_first_fits(PolicyMemory& memory, const std::vector<int64_t>& loads, int64_t bound) {
  order_kinds(memory);
  CtaQueue queue(memory.queue, loads);
  for (const KindOrder& order : memory.order) {
    queue.give(units_of(memory.kinds[order.index]), order.cost, [](int32_t) {});
    if (queue.largest() > bound) return false;
  }
  return true;
}

void longest_first(PolicyMemory& memory, std::vector<int64_t>& loads, std::vector<Piece>& pieces, RunOrder run_order) {
  order_kinds(memory);
  CtaQueue queue(memory.queue, loads);
  // CTAs are gone through forth and back, so runs turn once there and back.
  int64_t given = 0;
  for (const KindOrder& order : memory.order) {
    const Kind& k = memory.kinds[order.index];
    const int64_t rounds = run_order == RunOrder::turning ? given / (2 * int64_t(loads.size())) : 0;
    int32_t run = k.run_begin + int32_t(rounds % std::max(k.run_end - k.run_begin, 1));
    int64_t begin = k.kv_begin;
    queue.give(units_of(k), k.cost, [&](int32_t cta) {
      const int64_t end = std::min<int64_t>(begin + k.chunk, k.kv_end);
      add_piece(pieces, k.tile, run, 1, begin, end, cta);
      const bool last = end == k.kv_end;
      if (last && ++run == k.run_end) run = k.run_begin;
      begin = last ? k.kv_begin : end;
    });
    given += units_of(k);
  }
  queue.read_loads(loads);
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
    largest = std::max(largest, grain_of_class(config.classes[c], work.max_fixed_cost[c], work.max_heads[c]));
  }
  return largest;
}

int64_t whole_bound(const Work& work, const SchedulerConfig& config) {
  const int64_t bound = whole_load_bound(work.total_cost(), config.num_ctas, config.keep_whole_margin, grain(work, config));
  const int64_t largest = std::max(work.max_unit_cost[0], work.max_unit_cost[1]);
  return shared_memory_bound(bound, work.units[0] + work.units[1], config.num_ctas, largest, work.min_unit_cost, config.saturating_ctas);
}

}  // namespace kvloom::plan
