// The stream: units laid end to end on a line of cost, cut into shares. Cut c has a target, the sum of the shares before it, and may
// miss it by what one KV tile costs: rounding to the tile grid, or snapping to the gap between two units where that avoids a sliver.
//
// Bound (equal shares M, tile cost T, fixed cost F of an item): a cut never lies further below its target than T inside a unit, or T + F
// at a unit's start, and never further above the previous cut than M + T (+ F where that cut is at a unit's start). So every CTA, the
// last one included, has at most M + T of the line, and F more where it continues a unit: M plus one item of one tile.
#include "kvloom/base/math.h"
#include "kvloom/plan/policy.h"

namespace kvloom::plan {
namespace {

/// A place on the line: before token kv of a unit; kv == the tile's kv_begin is the gap before the unit.
struct Place {
  int32_t tile;
  int32_t run;
  int32_t kv;
  int64_t position;
  bool inside;  // of a unit: who continues there pays the fixed cost again
};

bool comes_before(const Place& a, const Place& b) {
  if (a.tile != b.tile) return a.tile < b.tile;
  return a.run != b.run ? a.run < b.run : a.kv < b.kv;
}

class Stream {
 public:
  Stream(const Work& work, ClassFilter filter, const StreamRules& rules)
      : tiles_(work.tiles.data()), end_(int32_t(work.tiles.size())), filter_(filter), rules_(rules) {
    partials_left_ = rules.max_partials < 0 ? INT64_MAX : rules.max_partials;
    for (int c = 0; c < 2; ++c) {
      if (!filter.take[c] || work.units[c] == 0) continue;
      const int64_t grid = rules.split_tokens > 0 ? rules.split_tokens : rules.classes[c].tile_kv;
      max_tile_ = max_of(max_tile_, rules.classes[c].cost_per_token * grid * work.max_heads[c]);
      max_fixed_ = max_of(max_fixed_, work.max_fixed_cost[c]);
    }
    skip();
  }

  Place begin() const { return {index_, 0, index_ < end() ? tiles_[index_].kv_begin : 0, 0, false}; }
  Place finish() const { return {end(), 0, 0, INT64_MAX, false}; }

  /// The cut for `target`, not before `previous`, leaving at most `share` plus the grain between the two.
  Place cut(const Place& previous, int64_t target, int64_t share);

 private:
  int32_t end() const { return end_; }
  int64_t grid(const Tile& t) const { return rules_.split_tokens > 0 ? rules_.split_tokens : rules_.classes[t.kernel_class].tile_kv; }
  void skip() {
    while (index_ < end() && !filter_(tiles_[index_])) ++index_;
  }
  Place after(int32_t run, int64_t position) const;
  bool pay_partials(const Tile& t, int32_t run, int64_t kv);
  Place inside(const Tile& t, int32_t run, int64_t unit_start, int64_t offset, int64_t limit);

  const Tile* const tiles_;
  const int32_t end_;
  const ClassFilter filter_;
  const StreamRules& rules_;
  int64_t max_tile_ = 0;
  int64_t max_fixed_ = 0;
  int64_t partials_left_;
  int64_t last_cut_ = -1;  // unit of the last cut inside one: its chunks are paid for
  int32_t index_ = 0;      // tile that holds the target
  int64_t start_ = 0;      // its position
};

/// The gap after `run` of the current tile.
Place Stream::after(int32_t run, int64_t position) const {
  const Tile& t = tiles_[index_];
  if (run + 1 < t.runs) return {index_, run + 1, t.kv_begin, position, false};
  int32_t next = index_ + 1;
  while (next < end() && !filter_(tiles_[next])) ++next;
  return {next, 0, next < end() ? tiles_[next].kv_begin : 0, position, false};
}

/// fixed_split: a cut makes one partial of what is before it and one of every chunk behind it. False: there is no room for them.
bool Stream::pay_partials(const Tile& t, int32_t run, int64_t kv) {
  const int64_t unit = int64_t(t.first_unit) + run;
  if (unit == last_cut_) return true;
  const int64_t partials = (1 + ceil_div<int64_t>(t.kv_end - kv, grid(t))) * run_heads(t, run);
  if (partials > partials_left_) return false;
  partials_left_ -= partials;
  last_cut_ = unit;
  return true;
}

Place Stream::inside(const Tile& t, int32_t run, int64_t unit_start, int64_t offset, int64_t limit) {
  const int64_t per_token = int64_t(t.token_cost) * run_heads(t, run);
  const int64_t cost = unit_cost(t, run);
  const int64_t snap = rules_.snap[t.kernel_class];
  const Place start{index_, run, t.kv_begin, unit_start, false};
  const bool near_start = offset <= snap && offset <= max_tile_ + max_fixed_;
  const bool near_end = cost - offset <= snap && unit_start + cost <= limit;
  if (near_start && (!near_end || offset <= cost - offset)) return start;
  if (near_end) return after(run, unit_start + cost);
  if (t.pinned) {  // whole, to the side that is nearer and allowed
    return unit_start + cost <= limit && cost - offset < offset ? after(run, unit_start + cost) : start;
  }
  const int64_t g = grid(t);
  const int64_t fixed = fixed_cost(t, run);
  const int64_t token = t.kv_begin + (offset > fixed ? short_div(offset - fixed, per_token) : 0);
  const int64_t low = short_div(token, g) * g;
  const int64_t high = low + g;
  auto position = [&](int64_t kv) { return unit_start + fixed + per_token * (kv - t.kv_begin); };
  const int64_t target = unit_start + offset;
  const int64_t low_distance = low > t.kv_begin ? target - position(low) : offset;
  const bool high_is_end = high >= t.kv_end;
  const int64_t high_position = high_is_end ? unit_start + cost : position(high);
  int64_t kv = low;
  if (high_position <= limit && high_position - target < low_distance) {
    if (high_is_end) return after(run, high_position);
    kv = high;
  }
  if (kv <= t.kv_begin) return start;
  if (rules_.split_tokens > 0 && !pay_partials(t, run, kv)) return start;
  return {index_, run, int32_t(kv), position(kv), true};
}

Place Stream::cut(const Place& previous, int64_t target, int64_t share) {
  const int64_t limit = previous.position + share + max_tile_ + (previous.inside ? 0 : max_fixed_);
  while (index_ < end()) {
    const int64_t cost = tiles_[index_].cost;
    if (start_ + cost > target) break;
    start_ += cost;
    ++index_;
    skip();
  }
  if (index_ >= end()) return {end(), 0, 0, start_, false};
  const Tile& t = tiles_[index_];
  const int64_t each = t.unit_cost;
  const int64_t offset = target - start_;
  const int32_t run = int32_t(min_of<int64_t>(each > 0 ? short_div(offset, each) : 0, t.runs - 1));
  const Place place = inside(t, run, start_ + run * each, offset - run * each, limit);
  return comes_before(place, previous) ? previous : place;
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

void pour(const Work& work, ClassFilter filter, const StreamRules& rules, const std::vector<int64_t>& shares, std::vector<Piece>& pieces,
          std::vector<int64_t>& loads) {
  Stream stream(work, filter, rules);
  const int32_t num_ctas = int32_t(shares.size());
  int32_t last = num_ctas - 1;  // takes what is left
  while (last > 0 && shares[last] == 0) --last;
  Place from = stream.begin();
  int64_t target = 0;
  for (int32_t cta = 0; cta <= last; ++cta) {
    if (shares[cta] == 0 && cta < last) continue;
    target += shares[cta];
    const Place to = cta < last ? stream.cut(from, target, shares[cta]) : stream.finish();
    append(work, filter, from, to, cta, pieces, loads[cta]);
    from = to;
  }
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
