// Where a stream is cut: units laid end to end on a line of cost, and for every cut a target, which it may miss by what one KV tile costs. The
// bound that follows is at the head of pour.cc. Read by the host's planner and the device's.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/plan/cost.h"

namespace kvloom::plan {

/// Sum of the first `count` of `ctas` shares that add up to `total`, equal but for rounding: the remainder is spread evenly.
KVLOOM_HD int64_t equal_shares_sum(int64_t total, int32_t ctas, int32_t count) {
  const int64_t each = short_div(total, ctas), rest = total - each * ctas;
  return each * count + short_div(rest * count, ctas);
}

/// How far a cut may lie.
struct CutLimit {
  int64_t at;
  KVLOOM_HD bool allows(int64_t position) const { return position <= at; }
};
/// The same, and which limits would have given the same answers: those in [from, to).
struct CutLimits {
  int64_t at;
  int64_t from, to;
  KVLOOM_HD explicit CutLimits(int64_t limit) : at(limit), from(-0x7fffffffffffffff - 1), to(0x7fffffffffffffff) {}
  KVLOOM_HD bool allows(int64_t position) {
    const bool allowed = position <= at;
    if (allowed) from = max_of(from, position);
    else to = min_of(to, position);
    return allowed;
  }
};

/// What all cuts of a stream keep to.
struct CutRules {
  int64_t grid[2];        // of a class: cuts lie on multiples of it, in tokens
  int64_t snap[2];        // of a class: a cut moves up to this far to fall between units
  int64_t max_tile = 0;   // cost of one KV tile of the widest run
  int64_t max_fixed = 0;  // of an item without keys
};

/// A tile on the line.
struct TileOnLine {
  int64_t start;       // position of its first run
  RunCost full;        // of its runs ...
  RunCost last;        // ... but the last, where `narrow` says that it has fewer heads
  bool narrow;
  int32_t last_run;
  int32_t kv_begin, kv_end;
  int32_t kernel_class;
  bool pinned;  // not to be cut inside a unit
};

/// A cut in a tile: before token kv of a run.
struct TileCut {
  int32_t run;  // last_run + 1: behind the tile, and kv means nothing
  int32_t kv;
  bool inside;  // of a unit; else in the gap before it
  int64_t position;
};

/// How far a cut may lie, if the one before it is at `previous` (inside a unit or not) and the CTA between them has `share`.
KVLOOM_HD int64_t cut_limit(const CutRules& rules, int64_t previous, bool inside, int64_t share) {
  return previous + share + rules.max_tile + (inside ? 0 : rules.max_fixed);
}

/// The cut for a target in a unit, away from its ends. Of the multiples of the grid around it the nearer: a coin toss, so no branch.
template <class Limit>
KVLOOM_HD TileCut cut_on_grid(const CutRules& rules, const TileOnLine& t, int32_t run, const RunCost& cost, int64_t unit_start, int64_t target,
                              Limit& limit) {
  const int64_t grid = rules.grid[t.kernel_class];
  const int64_t zero = unit_start + cost.fixed - cost.token * t.kv_begin;  // position of token 0, if the unit had it
  const int64_t low = short_div(max_of(target - zero, cost.token * t.kv_begin), cost.token * grid) * grid;
  const int64_t high = low + grid;
  const int64_t low_distance = low > t.kv_begin ? target - (zero + cost.token * low) : target - unit_start;
  const bool high_is_end = high >= t.kv_end;
  const int64_t high_position = high_is_end ? unit_start + cost.unit : zero + cost.token * high;
  const bool up = limit.allows(high_position) & (high_position - target < low_distance);
  if (up & high_is_end) return {run + 1, t.kv_begin, false, high_position};
  const int64_t kv = low + grid * up;
  if (kv <= t.kv_begin) return {run, t.kv_begin, false, unit_start};
  return {run, int32_t(kv), true, zero + cost.token * kv};
}

/// The cut for a target in tile `t`: start <= target < start of the next. `limit`: CutLimit or CutLimits.
template <class Limit>
KVLOOM_HD TileCut cut_tile(const CutRules& rules, const TileOnLine& t, int64_t target, Limit& limit) {
  const int32_t run = int32_t(min_of<int64_t>(short_div(target - t.start, t.full.unit), t.last_run));
  const int64_t unit_start = t.start + run * t.full.unit, offset = target - unit_start;
  const bool fewer = t.narrow && run == t.last_run;
  const RunCost cost = {fewer ? t.last.unit : t.full.unit, fewer ? t.last.fixed : t.full.fixed, fewer ? t.last.token : t.full.token};
  const int64_t snap = rules.snap[t.kernel_class], left = cost.unit - offset;
  const bool near_start = offset <= min_of(snap, rules.max_tile + rules.max_fixed);
  const bool end_allowed = limit.allows(unit_start + cost.unit);
  const TileCut start = {run, t.kv_begin, false, unit_start}, end = {run + 1, t.kv_begin, false, unit_start + cost.unit};
  const bool near_end = (left <= snap) & end_allowed;
  if (near_start | near_end) return near_start && (!near_end || offset <= left) ? start : end;
  if (t.pinned) [[unlikely]]
    return end_allowed && left < offset ? end : start;  // whole, to the side that is nearer and allowed
  return cut_on_grid(rules, t, run, cost, unit_start, target, limit);
}

}  // namespace kvloom::plan
