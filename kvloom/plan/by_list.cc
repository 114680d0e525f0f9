// Compute tiles beside memory-bound units: those that read the same keys, of one list and KV head, go to CTAs of one half (CtaOrder), to those that have
// least so far, so that they are done at about the same time and find each other's keys in the L2 cache. What CTAs stream beside them goes through
// that cache, too: a list that is gone through again a little later comes from memory again, which is what the others wait for.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

/// The CTAs of a half, least load first: load << 16 | CTA.
class Half {
 public:
  Half(uint64_t* memory, uint64_t* spare, const std::vector<int64_t>& loads, size_t first) : begin_(memory), spare_(spare), end_(memory) {
    for (size_t c = first; c < loads.size(); c += 2) *end_++ = uint64_t(loads[c]) << kCtaBits | c;
    std::sort(begin_, end_);
  }
  size_t size() const { return size_t(end_ - begin_); }

  /// `count` tiles, one a CTA, the next one to the least loaded: take(CTA) gives it away and says what it costs.
  template <class F>
  void give(size_t count, F&& take) {
    for (uint64_t* c = begin_; c < begin_ + count; ++c) *c += uint64_t(take(int32_t(*c & kCtaMask))) << kCtaBits;
    std::sort(begin_, begin_ + count);
    std::merge(begin_, begin_ + count, begin_ + count, end_, spare_);
    std::copy(spare_, spare_ + size(), begin_);
  }

 private:
  uint64_t* const begin_;
  uint64_t* const spare_;  // room for as many
  uint64_t* end_;
};

}  // namespace

bool place_by_list(const Work& work, ClassFilter filter, PolicyMemory& memory, std::vector<int64_t>& loads, std::vector<Piece>& pieces) {
  const auto takes = [&](const Tile& t, int32_t run) { return filter(t) && run < t.runs; };
  memory.kinds.clear();
  int64_t units = 0;
  for (size_t g = 0; g + 1 < work.group_tile.size(); ++g) {
    const int32_t begin = work.group_tile[g], end = work.group_tile[g + 1];
    int32_t runs = 0;
    for (int32_t i = begin; i < end; ++i) {
      if (!filter(work.tiles[i])) continue;
      runs = max_of(runs, int32_t(work.tiles[i].runs));
      units += work.tiles[i].runs;
    }
    for (int32_t run = 0; run < runs; ++run) {
      int64_t cost = 0;
      for (int32_t i = begin; i < end; ++i) cost += takes(work.tiles[i], run) ? unit_cost(work.tiles[i], run) : 0;
      memory.kinds.push_back({cost, begin, run, run + 1, 0, 0, end - begin});
    }
  }
  const int64_t lists = int64_t(memory.kinds.size());
  if (loads.size() < 2 || units < 2 * lists) return false;
  memory.order.resize(memory.kinds.size());
  for (size_t i = 0; i < memory.kinds.size(); ++i) memory.order[i] = {memory.kinds[i].cost, int32_t(i)};
  std::sort(memory.order.begin(), memory.order.end(), [](const KindOrder& a, const KindOrder& b) { return a.cost != b.cost ? a.cost > b.cost : a.index < b.index; });

  const size_t half_size = (loads.size() + 1) / 2;
  memory.queue.resize(3 * half_size);
  uint64_t* const queue = memory.queue.data();
  Half halves[2] = {Half(queue, queue + 2 * half_size, loads, 0), Half(queue + half_size, queue + 2 * half_size, loads, 1)};
  int64_t given[2] = {0, 0};
  for (const KindOrder& order : memory.order) {
    const Kind& list = memory.kinds[order.index];
    const int half = given[1] < given[0];
    given[half] += list.cost;
    int32_t next = list.tile;  // dearest first: last rows
    const int32_t end = list.tile + list.chunk;
    while (next < end) {
      halves[half].give(std::min(size_t(end - next), halves[half].size()), [&](int32_t cta) -> int64_t {
        const Tile& t = work.tiles[next];
        const int32_t tile = next++;
        if (!takes(t, list.run_begin)) return 0;
        add_piece(pieces, tile, list.run_begin, 1, t.kv_begin, t.kv_end, cta);
        const int64_t cost = unit_cost(t, list.run_begin);
        loads[cta] += cost;
        return cost;
      });
    }
  }
  return true;
}

}  // namespace kvloom::plan
