// A step planned: the bytes that plan/planner.cc writes for policy `stream`, or the header of a plan that can't be run.
#pragma once

#include "kvloom/device/plan/cuts.h"
#include "kvloom/device/plan/emit.h"
#include "kvloom/device/plan/one_tile.h"
#include "kvloom/device/plan/whole.h"

namespace kvloom::device_plan {

template <class Step>
KVLOOM_HD int64_t bound_of_whole(const Step& s, const Totals& totals) {
  int64_t grain = 0;
  for (int32_t c = 0; c < 2; ++c) {
    if (totals.class_units[c] > 0) grain = max_of(grain, plan::grain_of_class(s.kernel_class(c), max_fixed_cost(s, totals, c), s.runs(c).heads));
  }
  const int64_t bound = plan::whole_load_bound(totals.cost, s.num_ctas(), s.args.keep_whole_margin, grain);
  return plan::shared_memory_bound(bound, totals.units, s.num_ctas(), totals.max_unit_cost, totals.min_unit_cost, s.args.saturating_ctas);
}

template <class Block, class Step>
KVLOOM_HD Counts schedule(Block& block, Step& s, const Totals& totals) {
  const bool alike = totals.max_unit_cost == totals.min_unit_cost && s.args.saturating_ctas > 0;
  int64_t bound = 0;
  plan::WholeAttempt attempt = plan::WholeAttempt::none;
  if (alike || totals.units <= plan::kWholeUnitsPerCta * s.num_ctas()) {  // else nothing but the cost has to be known
    bound = bound_of_whole(s, totals);
    attempt = plan::whole_attempt(totals.units, totals.units, s.num_ctas(), totals.cost, totals.max_unit_cost, totals.min_unit_cost, bound,
                                  s.args.saturating_ctas > 0);
  }
  if (attempt == plan::WholeAttempt::in_turn) return emit_in_turn(block, s, totals);
  Counts counts;
  if (attempt == plan::WholeAttempt::longest_first && emit_longest_first(block, s, totals, bound, counts)) return counts;
  find_cuts(block, s, totals);
  return emit_cuts(block, s, totals);
}

/// No item for anybody: CTAs that find none look at the status, and make all rows NaN.
template <class Block, class Step>
KVLOOM_HD void put_refusal(Block& block, Step& s, const plan::PlanVerdict& verdict) {
  block.each_out(s.num_ctas() + 1, [&](int32_t c) { s.cta_indptr()[c] = 0; });
  block.once([&] {
    PlanHeader h = s.args.header;
    h.status = verdict.fault == plan::PlanFault::query_tokens || verdict.fault == plan::PlanFault::query_length || verdict.fault == plan::PlanFault::kv_tokens ||
                       verdict.fault == plan::PlanFault::cost
                   ? PlanStatus::over_capacity
                   : PlanStatus::malformed;
    h.total_tokens = s.args.num_tokens;
    *s.header() = h;
    *s.args.verdict = verdict;
  });
}

/// What only a step that is planned says; the rest was written when it began.
template <class Block, class Step>
KVLOOM_HD void put_counts(Block& block, Step& s, const Totals& totals, const Counts& counts) {
  block.once([&] {
    PlanHeader& h = *s.header();
    h.num_groups = totals.groups;
    h.num_items = counts.items;
    h.num_units = counts.units;
    h.num_entries = h.num_touches = counts.touches;
    h.scratch_rows = counts.scratch_rows;
    if (totals.groups > 0) h.total_tokens = s.groups[totals.groups - 1].token_begin + s.groups[totals.groups - 1].token_count;
    h.graph_key = s.args.graph_keys[(totals.class_units[0] > 0 ? 1 : 0) + (totals.class_units[1] > 0 ? 2 : 0)];
    h.cost_total = uint64_t(counts.cost_total);
    h.cost_max = uint64_t(counts.cost_max);
    *s.args.verdict = {plan::PlanFault::none, -1, -1, 0, 0, 0};
  });
}

/// Kernels find the plan where the planner left it, in the L2 cache.
template <class Block, class Step>
KVLOOM_HD void put_starts(Block& block, Step& s) {
  if (s.args.starts != nullptr) block.each_out(s.num_ctas(), [&](int32_t c) { s.args.starts[c].items = -1; });
}

/// Groups and tiles of the step.
template <class Block, class Step>
KVLOOM_HD plan::PlanVerdict make_tables(Block& block, Step& s, Totals& totals) {
  if constexpr (Step::kOneTileEach) {
    return make_one_tile_each(block, s, totals);
  } else {
    const plan::PlanVerdict verdict = make_groups(block, s, totals);
    if (verdict.fault == plan::PlanFault::none) make_tiles(block, s, totals);
    return verdict;
  }
}

template <bool kOneTile, class Block>
KVLOOM_HD void plan_step_of(Block& block, const plan::DeviceArgs& args, Memory& memory, char* tables) {
  StepOf<kOneTile> s(args, memory, tables);
  put_starts(block, s);
  Totals totals;
  block.once([&] { *s.header() = args.header; });
  const plan::PlanVerdict verdict = make_tables(block, s, totals);
  if (verdict.fault != plan::PlanFault::none) return put_refusal(block, s, verdict);
  if (totals.cost > plan::kMaxStepCost) return put_refusal(block, s, {plan::PlanFault::cost, -1, -1, 0, totals.cost, plan::kMaxStepCost});
  put_counts(block, s, totals, schedule(block, s, totals));
}

/// `near`: kPlanTableBytes of shared memory, for the tables of a step that args.tables is not given for.
template <class Block>
KVLOOM_HD void plan_step(Block& block, const plan::DeviceArgs& args, Memory& memory, char* near) {
  if (args.one_tile && args.tables == nullptr) plan_step_of<true>(block, args, memory, near);
  else plan_step_of<false>(block, args, memory, args.tables != nullptr ? args.tables : near);
}

}  // namespace kvloom::device_plan
