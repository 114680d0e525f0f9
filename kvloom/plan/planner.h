// describe -> plan: turns one step's lengths into the flat plan buffer of contract/plan_format.h. Pure integer arithmetic on the host:
// no CUDA, no clock, no randomness, no floating point.
#pragma once

#include "kvloom/contract/spec.h"
#include "kvloom/plan/scheduler_config.h"

#include <memory>

namespace kvloom::plan {

/// Exact sizes for the worst batch within a capacity; offsets in the buffer never depend on the batch.
struct PlanLayout {
  int32_t max_groups = 0;
  int32_t max_row_entries = 0;
  int32_t max_items = 0;
  int32_t max_units = 0;
  int32_t max_entries = 0;
  int32_t max_touches = 0;
  int64_t max_scratch_rows = 0;
  int64_t plan_bytes = 0;         // of the plan buffer
  int64_t partial_o_bytes = 0;    // fp32 [max_scratch_rows, head_dim_vo]
  int64_t partial_lse_bytes = 0;  // fp32 [max_scratch_rows]; fixed_split: [max_scratch_rows][2]
  int64_t counter_bytes = 0;      // uint32 [max_units]
  int64_t start_bytes = 0;        // CtaStart [num_ctas]
};

PlanLayout plan_layout(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config);

/// Plans steps of one spec within one capacity. Keeps its working memory: after the first call plan() does not allocate.
/// Not for concurrent use; make one a thread.
class Planner {
 public:
  Planner(const AttentionSpec& spec, const Capacity& capacity, const SchedulerConfig& config);
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  const PlanLayout& layout() const;
  const SchedulerConfig& config() const;
  /// True if plan() reads page ids of some batch: it looks for shared prefixes. Else `Batch::pages` is a number of entries to it.
  bool reads_page_ids() const;

  /// Writes the plan of `batch` into `buffer` (>= layout().plan_bytes, 64-byte aligned).
  /// Throws Error: invalid_argument (a malformed batch, named by request and value) or over_capacity. Nothing is written then.
  void plan(const Batch& batch, void* buffer, int64_t buffer_bytes);
  /// The same for steps without levels. False: `batch` has some, and nothing is written.
  bool plan_flat(const Batch& batch, void* buffer, int64_t buffer_bytes);
  /// The same for a step whose levels `other`, of the same spec and capacity, has found in plan_flat(), and which it gives away.
  void plan_levels_of(Planner& other, const Batch& batch, void* buffer, int64_t buffer_bytes);

  /// True if the last plan() made items of kernel class `c`.
  bool uses_class(int c) const;
  /// Levels that the last plan() found but did not take, and why; "" if none. For explain.
  const char* level_notes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvloom::plan
