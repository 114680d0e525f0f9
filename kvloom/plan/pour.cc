// The stream: units laid end to end on a line of cost, cut into shares. Cut c has a target, the sum of the shares before it, and may
// miss it by what one KV tile costs: rounding to the tile grid, or snapping to the gap between two units where that avoids a sliver.
//
// Bound (equal shares M, tile cost T, fixed cost F of an item): a cut never lies further below its target than T inside a unit, or T + F
// at a unit's start, and never further above the previous cut than M + T (+ F where that cut is at a unit's start). So every CTA, the
// last one included, has at most M + T of the line, and F more where it continues a unit: M plus one item of one tile.
#include "kvloom/base/math.h"
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
      grid_[c] = fixed_split_ ? rules.split_tokens : rules.classes[c].tile_kv;
      snap_[c] = rules.snap[c];
      if (!filter.take[c] || work.units[c] == 0) continue;
      max_tile_ = max_of(max_tile_, rules.classes[c].cost_per_token * grid_[c] * work.max_heads[c]);
      max_fixed_ = max_of(max_fixed_, work.max_fixed_cost[c]);
      total_ += work.cost[c];
    }
    enter(next_tile(0));
  }

  Place begin() const { return start_of(index_, 0); }
  Place finish() const { return {end_, 0, 0, false, total_}; }

  /// The cut for `target`, not before `previous`, leaving at most `share` plus the grain between the two. Targets ascend.
  void cut(const Place& previous, int64_t target, int64_t share, Place& to);

 private:
  /// Costs of a run of the tile at hand.
  struct Run {
    int64_t unit, fixed, token;
  };

  int32_t next_tile(int32_t tile) const {
    while (tile < end_ && !filter_(tiles_[tile])) ++tile;
    return tile;
  }
  /// Makes `tile` the one that targets are looked for in.
  void enter(int32_t tile) {
    index_ = tile;
    if (tile == end_) return;
    const Tile& t = tiles_[tile];
    full_ = {t.unit_cost, fixed_cost(t, 0), int64_t(t.token_cost) * t.kv_head_count};
    last_run_ = t.runs - 1;
    next_start_ = start_ + t.cost;
  }
  /// The gap before a tile.
  Place start_of(int32_t tile, int64_t position) const { return {tile, 0, tile < end_ ? tiles_[tile].kv_begin : 0, false, position}; }
  /// The gap after `run` of the tile at hand.
  Place after(int32_t run, int64_t position) const {
    if (run < last_run_) return {index_, run + 1, tiles_[index_].kv_begin, false, position};
    return start_of(next_tile(index_ + 1), position);
  }
  bool pay_partials(const Tile& t, int32_t run, int64_t kv);
  Place on_grid(const Tile& t, int32_t run, const Run& cost, int64_t unit_start, int64_t target, int64_t limit);

  const Tile* const tiles_;
  const int32_t end_;
  const ClassFilter filter_;
  const bool fixed_split_;
  int64_t grid_[2];  // cuts lie on multiples of it, in tokens
  int64_t snap_[2];
  int64_t max_tile_ = 0;
  int64_t max_fixed_ = 0;
  int64_t total_ = 0;
  int64_t partials_left_;
  int64_t last_cut_ = -1;  // unit of the last cut inside one: its chunks are paid for
  int32_t index_ = 0;      // tile that holds the target
  int32_t last_run_ = 0;   // of it
  int64_t start_ = 0;      // its position
  int64_t next_start_ = 0;
  Run full_;  // of its runs, but where the last has fewer heads
};

/// fixed_split: a cut makes one partial of what is before it and one of every chunk behind it. False: there is no room for them.
bool Stream::pay_partials(const Tile& t, int32_t run, int64_t kv) {
  const int64_t unit = int64_t(t.first_unit) + run;
  if (unit == last_cut_) return true;
  const int64_t partials = (1 + ceil_div<int64_t>(t.kv_end - kv, grid_[t.kernel_class])) * run_heads(t, run);
  if (partials > partials_left_) return false;
  partials_left_ -= partials;
  last_cut_ = unit;
  return true;
}

/// The cut for a target in a unit, away from its ends. Of the multiples of the grid around it the nearer: a coin toss, so no branch.
inline Place Stream::on_grid(const Tile& t, int32_t run, const Run& cost, int64_t unit_start, int64_t target, int64_t limit) {
  const int64_t grid = grid_[t.kernel_class];
  const int64_t zero = unit_start + cost.fixed - cost.token * t.kv_begin;  // position of token 0, if the unit had it
  const int64_t low = short_div(max_of(target - zero, cost.token * t.kv_begin), cost.token * grid) * grid;
  const int64_t high = low + grid;
  const int64_t low_distance = low > t.kv_begin ? target - (zero + cost.token * low) : target - unit_start;
  const bool high_is_end = high >= t.kv_end;
  const int64_t high_position = high_is_end ? unit_start + cost.unit : zero + cost.token * high;
  const bool up = (high_position <= limit) & (high_position - target < low_distance);
  if (up & high_is_end) return after(run, high_position);
  const int64_t kv = low + grid * up;
  if (kv <= t.kv_begin || (fixed_split_ && !pay_partials(t, run, kv))) return {index_, run, t.kv_begin, false, unit_start};
  return {index_, run, int32_t(kv), true, zero + cost.token * kv};
}

inline void Stream::cut(const Place& previous, int64_t target, int64_t share, Place& to) {
  const int64_t limit = previous.position + share + max_tile_ + (previous.inside ? 0 : max_fixed_);
  while (index_ < end_ && next_start_ <= target) {
    start_ = next_start_;
    enter(next_tile(index_ + 1));
  }
  if (index_ == end_) {
    to = finish();
    return;
  }
  const Tile& t = tiles_[index_];
  const int32_t run = int32_t(min_of<int64_t>(short_div(target - start_, full_.unit), last_run_));
  const int64_t unit_start = start_ + run * full_.unit, offset = target - unit_start;
  Run cost = full_;
  if (run == last_run_ && t.last_heads != t.kv_head_count) {
    cost = {unit_cost(t, run), fixed_cost(t, run), int64_t(t.token_cost) * t.last_heads};
  }
  const int64_t snap = snap_[t.kernel_class], left = cost.unit - offset;
  const bool near_start = offset <= min_of(snap, max_tile_ + max_fixed_);
  const bool near_end = (left <= snap) & (unit_start + cost.unit <= limit);
  if (near_start | near_end) {
    to = near_start && (!near_end || offset <= left) ? Place{index_, run, t.kv_begin, false, unit_start}
                                                     : after(run, unit_start + cost.unit);
  } else if (t.pinned) [[unlikely]] {  // whole, to the side that is nearer and allowed
    to = unit_start + cost.unit <= limit && left < offset ? after(run, unit_start + cost.unit)
                                                          : Place{index_, run, t.kv_begin, false, unit_start};
  } else {
    to = on_grid(t, run, cost, unit_start, target, limit);
  }
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
  for (int64_t& share : shares) {  // the remainder is spread evenly
    carry += rest;
    share = each + (carry >= num_ctas);
    if (carry >= num_ctas) carry -= num_ctas;
  }
}

}  // namespace kvloom::plan
