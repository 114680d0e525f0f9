// The stream: units laid end to end on a line of cost, cut into shares. Cut c has a target, the sum of the shares before it, and may
// miss it by what one KV tile costs: rounding to the tile grid, or snapping to the gap between two units where that avoids a sliver.
//
// Bound (equal shares M, tile cost T, fixed cost F of an item): a cut never lies further below its target than T inside a unit, or T + F
// at a unit's start, and never further above the previous cut than M + T (+ F where that cut is at a unit's start). So every CTA, the
// last one included, has at most M + T of the line, and F more where it continues a unit: M plus one item of one tile.
#include "kvloom/base/math.h"
#include "kvloom/plan/cuts.h"
#include "kvloom/plan/policy.h"

#include <algorithm>

namespace kvloom::plan {
namespace {

bool comes_before(const Place& a, const Place& b) {
  if (a.tile != b.tile) return a.tile < b.tile;
  return a.run != b.run ? a.run < b.run : a.kv < b.kv;
}

class Stream {
 public:
  Stream(const Work& work, ClassFilter filter, const StreamRules& rules)
      : tiles_(work.tiles.data()), end_(int32_t(work.tiles.size())), filter_(filter), fixed_split_(rules.split_tokens > 0) {
    partials_left_ = rules.max_partials < 0 ? INT64_MAX : rules.max_partials;
    for (int c = 0; c < 2; ++c) {
      rules_.grid[c] = fixed_split_ ? rules.split_tokens : rules.classes[c].tile_kv;
      rules_.snap[c] = rules.snap[c];
      if (!filter.take[c] || work.units[c] == 0) continue;
      rules_.max_tile = max_of(rules_.max_tile, rules.classes[c].cost_per_token * rules_.grid[c] * work.max_heads[c]);
      rules_.max_fixed = max_of(rules_.max_fixed, work.max_fixed_cost[c]);
      total_ += work.cost[c];
    }
    enter(next_tile(0));
  }

  Place begin() const { return start_of(index_, 0); }
  Place finish() const { return {end_, 0, 0, false, total_}; }

  /// The cut for `target`, not before `previous`, leaving at most `share` plus the grain between the two. Targets ascend.
  void cut(const Place& previous, int64_t target, int64_t share, Place& to);

 private:
  int32_t next_tile(int32_t tile) const {
    while (tile < end_ && !filter_(tiles_[tile])) ++tile;
    return tile;
  }
  /// Makes `tile` the one that targets are looked for in.
  void enter(int32_t tile) {
    index_ = tile;
    if (tile < end_) next_start_ = start_ + tiles_[tile].cost;
  }
  /// The gap before a tile.
  Place start_of(int32_t tile, int64_t position) const { return {tile, 0, tile < end_ ? tiles_[tile].kv_begin : 0, false, position}; }
  bool pay_partials(const Tile& t, int32_t run, int64_t kv);

  const Tile* const tiles_;
  const int32_t end_;
  const ClassFilter filter_;
  const bool fixed_split_;
  CutRules rules_{};
  int64_t total_ = 0;
  int64_t partials_left_;
  int64_t last_cut_ = -1;  // unit of the last cut inside one: its chunks are paid for
  int32_t index_ = 0;      // tile that holds the target
  int64_t start_ = 0;      // its position
  int64_t next_start_ = 0;
};

/// fixed_split: a cut makes one partial of what is before it and one of every chunk behind it. False: there is no room for them.
bool Stream::pay_partials(const Tile& t, int32_t run, int64_t kv) {
  const int64_t unit = int64_t(t.first_unit) + run;
  if (unit == last_cut_) return true;
  const int64_t partials = (1 + ceil_div<int64_t>(t.kv_end - kv, rules_.grid[t.kernel_class])) * run_heads(t, run);
  if (partials > partials_left_) return false;
  partials_left_ -= partials;
  last_cut_ = unit;
  return true;
}

inline void Stream::cut(const Place& previous, int64_t target, int64_t share, Place& to) {
  while (index_ < end_ && next_start_ <= target) {
    start_ = next_start_;
    enter(next_tile(index_ + 1));
  }
  if (index_ == end_) {
    to = finish();
    return;
  }
  const Tile& t = tiles_[index_];
  const RunCost full = {t.unit_cost, fixed_cost(t, 0), int64_t(t.token_cost) * t.kv_head_count};
  const int32_t last_run = t.runs - 1;
  const bool narrow = t.last_heads != t.kv_head_count;
  RunCost last{};
  if (narrow) last = {unit_cost(t, last_run), fixed_cost(t, last_run), int64_t(t.token_cost) * t.last_heads};
  const TileOnLine line = {start_, full, last, narrow, last_run, t.kv_begin, t.kv_end, t.kernel_class, t.pinned};
  CutLimit limit{cut_limit(rules_, previous.position, previous.inside, share)};
  TileCut c = cut_tile(rules_, line, target, limit);
  if (c.inside && fixed_split_ && !pay_partials(t, c.run, c.kv)) c = {c.run, t.kv_begin, false, start_ + c.run * full.unit};
  to = c.run > last_run ? start_of(next_tile(index_ + 1), c.position) : Place{index_, c.run, c.kv, c.inside, c.position};
  if (comes_before(to, previous)) to = previous;
}

/// Appends the pieces between two places: part of a unit, whole runs tile by tile, part of a unit.
void append(const Work& work, ClassFilter filter, Place from, const Place& to, int32_t cta, std::vector<Piece>& pieces, int64_t& load) {
  const int32_t end = int32_t(work.tiles.size());
  auto add = [&](const Tile& t, int32_t run, int32_t count, int32_t kv_begin, int32_t kv_end) {
    add_piece(pieces, from.tile, run, count, kv_begin, kv_end, cta);
    load += count * run_cost(t, run, int64_t(kv_end) - kv_begin);
  };
  while (comes_before(from, to)) {
    const Tile& t = work.tiles[from.tile];
    const bool last = from.tile == to.tile;
    if (last && from.run == to.run) return add(t, from.run, 1, from.kv, to.kv);
    if (from.kv > t.kv_begin) {
      add(t, from.run++, 1, from.kv, t.kv_end);
    } else {
      const int32_t stop = last ? to.run : t.runs;
      const int32_t alike = min_of(stop, full_runs(t));
      if (alike > from.run) add(t, from.run, alike - from.run, t.kv_begin, t.kv_end);
      if (stop > max_of(alike, from.run)) add(t, stop - 1, 1, t.kv_begin, t.kv_end);
      from.run = stop;
    }
    if (from.run == t.runs) {
      from.run = 0;
      do ++from.tile;
      while (from.tile < end && !filter(work.tiles[from.tile]));
    }
    from.kv = from.tile < end ? work.tiles[from.tile].kv_begin : 0;
  }
}

}  // namespace

void pour(const Work& work, ClassFilter filter, const StreamRules& rules, const std::vector<int64_t>& shares, std::vector<Place>& cuts) {
  Stream stream(work, filter, rules);
  const int32_t num_ctas = int32_t(shares.size());
  int32_t last = num_ctas - 1;  // takes what is left
  while (last > 0 && shares[last] == 0) --last;
  cuts.resize(size_t(num_ctas) + 1);
  cuts[0] = stream.begin();
  int64_t target = 0;
  for (int32_t cta = 0; cta < last; ++cta) {
    target += shares[cta];
    if (shares[cta] == 0) {
      cuts[cta + 1] = cuts[cta];
    } else {
      stream.cut(cuts[cta], target, shares[cta], cuts[cta + 1]);
    }
  }
  std::fill(cuts.begin() + last + 1, cuts.end(), stream.finish());
}

void append_pieces(const Work& work, ClassFilter filter, const std::vector<Place>& cuts, std::vector<Piece>& pieces,
                   std::vector<int64_t>& loads) {
  for (int32_t cta = 0; cta + 1 < int32_t(cuts.size()); ++cta) append(work, filter, cuts[cta], cuts[cta + 1], cta, pieces, loads[cta]);
}

void schedule_cuts(const Work& work, const StreamRules& rules, int32_t num_ctas, PolicyMemory& memory, Schedule& out) {
  equal_shares(work.total_cost(), num_ctas, memory.shares);
  pour(work, {}, rules, memory.shares, memory.cuts);
  if (!work.shared && !work.levels && !work.scattered) {
    out.cuts = {memory.cuts.data(), int64_t(memory.cuts.size())};
    return;
  }
  // Shared levels go first in their CTA, so items do not lie in the order of the line; gathered tokens are merged row by row.
  memory.loads.assign(num_ctas, 0);
  append_pieces(work, {}, memory.cuts, out.pieces, memory.loads);
}

void equal_shares(int64_t total, int32_t num_ctas, std::vector<int64_t>& shares) {
  shares.resize(num_ctas);
  const int64_t each = total / num_ctas;
  const int64_t rest = total % num_ctas;
  int64_t carry = 0;
  for (int64_t& share : shares) {  // equal_shares_sum(), one by one
    carry += rest;
    share = each + (carry >= num_ctas);
    if (carry >= num_ctas) carry -= num_ctas;
  }
}

}  // namespace kvloom::plan
