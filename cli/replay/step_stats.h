// What one planned step is made of: bytes, floating-point operations, balance. Read from the plan itself, so it is what runs.
#pragma once

#include "cli/replay/batcher.h"
#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"

namespace kvloom::replay {

struct StepStats {
  double balance = 1.0;        // cost of the most loaded CTA over the mean
  double tiles_per_cta = 0.0;  // mean load over the cost of the largest tile: how finely the work can be cut
  double excess_tiles = 0.0;   // (most loaded - mean) / cost of one tile of the most loaded CTA
  bool can_split = false;      // the policy cuts work where it wants: heap, stream, fill
  int64_t read_bytes = 0;      // K and V that the row groups name, each group's once
  int64_t flat_bytes = 0;      // ... if every request read its own
  double flop = 0.0;           // 2 x (head_dim_qk + head_dim_vo) for every kept (row, key)
  int32_t levels = 1;
  Policy policy = Policy::none;
};

/// `token_bytes`: of K and V of one token in all heads.
StepStats step_stats(const PlanView& plan, const AttentionSpec& spec, const std::vector<Slice>& slices, int64_t token_bytes);

/// Keys that the rows of a slice keep, summed over its query tokens. `left`: the window's keys before the row's own, -1 without one.
int64_t kept_keys(int64_t q_len, int64_t kv_len, int32_t left);
/// First key that any row of the slice keeps.
int64_t first_kept_key(int64_t q_len, int64_t kv_len, int32_t left);

}  // namespace kvloom::replay
