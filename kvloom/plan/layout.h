// Bounds of a plan within a capacity, and what they are derived from.
#pragma once

#include "kvloom/plan/planner.h"

namespace kvloom::plan {

/// Most groups that a step may have, counted once a KV head that they stand for.
int64_t max_group_heads(const AttentionSpec& spec, const Capacity& capacity);
/// fixed_split: partials of one chunk and one head that cuts may make in a step.
int64_t max_chunk_partials(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config);

/// Byte offsets of the sections, written into `header` with total_bytes; they depend on the layout's bounds and the number of CTAs only.
void place_sections(const PlanLayout& layout, int32_t num_ctas, PlanHeader& header);

/// Throws invalid_argument unless planner can work with these: what is wrong, and the remedy.
void check_config(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config);

/// What a captured graph must match: shapes, kernel classes, CTAs, section offsets, levels, and which classes and row lists the step uses.
uint64_t graph_key(const AttentionSpec& spec, const PlanHeader& header, bool uses_class0, bool uses_class1);

}  // namespace kvloom::plan
