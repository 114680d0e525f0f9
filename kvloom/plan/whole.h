// Whether a stream is worth cutting: an assignment of whole units has nothing to merge. Read by the host's planner and the device's.
#pragma once

#include "kvloom/base/math.h"
#include "kvloom/plan/cost.h"

namespace kvloom::plan {

/// Whole units beyond this many a CTA are not worth the search: a stream cuts at most one unit a CTA.
inline constexpr int32_t kWholeUnitsPerCta = 4;

/// The same where all of them cost the same and CTAs share a memory (SchedulerConfig::saturating_ctas): in all.
inline constexpr int32_t kMostWholeUnits = 2048;

/// ... nor where their costs differ by more than so many times what a CTA may have above the mean: of 8,000 random steps 0.7 % came out
/// balanced then (lab notes).
inline constexpr int64_t kWholeSpread = 32;

/// Cost of an item of one KV tile with every head of a run: the grain of balance, of a class.
KVLOOM_HD int64_t grain_of_class(const KernelClass& k, int64_t max_fixed_cost, int32_t max_heads) {
  return max_fixed_cost + int64_t(k.cost_per_token) * k.tile_kv * max_heads;
}

/// The load up to which an assignment that cuts nothing is preferred to a stream: the mean plus the margin or the grain, whichever is less.
KVLOOM_HD int64_t whole_load_bound(int64_t total, int32_t ctas, int64_t margin, int64_t grain) {
  return short_div(total, ctas) + min_of(margin, grain);
}

/// The same where CTAs share a memory that `saturating` of them read as fast as it goes (0: they don't): of units that all cost the same some CTAs may
/// have one more than others, as long as that many have.
KVLOOM_HD int64_t shared_memory_bound(int64_t bound, int64_t units, int32_t ctas, int64_t largest, int64_t smallest, int32_t saturating) {
  if (saturating == 0 || largest != smallest || units > kMostWholeUnits) return bound;
  const int64_t rest = units % ctas;
  return rest == 0 || rest >= saturating ? max_of(bound, ceil_div<int64_t>(units, ctas) * largest) : bound;
}

/// What a step's units are worth trying as wholes.
enum class WholeAttempt { none, in_turn, longest_first };

/// `placed`: units that there is something to do for; none of `units` else. `bound`: whole_load_bound() and shared_memory_bound(). in_turn: unit u on CTA
/// u modulo their number, which is what longest first comes to where all units cost the same. longest_first: a CTA may turn out to get more than the bound.
KVLOOM_HD WholeAttempt whole_attempt(int64_t units, int64_t placed, int32_t ctas, int64_t total, int64_t largest, int64_t smallest, int64_t bound,
                                     bool shared_memory) {
  const bool alike = shared_memory && largest == smallest && units <= kMostWholeUnits;
  if ((units > int64_t(kWholeUnitsPerCta) * ctas && !alike) || largest > bound) return WholeAttempt::none;
  if (units <= ctas) return WholeAttempt::in_turn;
  if (largest - smallest > kWholeSpread * (bound - short_div(total, ctas))) return WholeAttempt::none;
  // Some CTA gets so many units, each of which costs as much as the cheapest: with equal lengths nothing more has to be tried.
  if (ceil_div<int64_t>(placed, ctas) * smallest > bound) return WholeAttempt::none;
  return largest == smallest && largest > 0 && placed == units ? WholeAttempt::in_turn : WholeAttempt::longest_first;
}

}  // namespace kvloom::plan
