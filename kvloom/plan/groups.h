// From a batch to row groups: one a request (flat), or the caller's levels (explicit). Shared prefixes are found in plan/levels.h.
#pragma once

#include "kvloom/plan/flat.h"
#include "kvloom/plan/levels.h"

#include <vector>

namespace kvloom::plan {

/// One group a request with query tokens; with lists_per_kv_head one a (request, KV head). `batch` has been checked.
void flat_groups(const AttentionSpec& spec, const Batch& batch, GroupList& out);

/// The caller's groups by level. (token, KV head) pairs that no group names are put in groups without keys, so that their output is
/// written. Keeps its memory between steps.
class ExplicitGroups {
 public:
  /// Throws invalid_argument if a level names a (token, KV head) twice, over_capacity if the groups are more than Capacity allows.
  void build(const AttentionSpec& spec, const Capacity& capacity, const Batch& batch, GroupList& out);

 private:
  void map_tokens(const Batch& batch);
  void add(const Batch& batch, int64_t index, GroupList& out);
  void claim(const AttentionSpec& spec, const Batch& batch, int64_t index);
  void add_uncovered(const AttentionSpec& spec, const Batch& batch, int32_t level, GroupList& out);
  RowEntry entry_of(const Batch& batch, int32_t token) const;

  std::vector<int32_t> order_;       // groups by level
  std::vector<int32_t> request_of_;  // [tokens]
  std::vector<int32_t> claimed_;     // [tokens, KV heads or 1] level + 1 of the last group that named it; 0: none
  int32_t heads_ = 1;                // second dimension of claimed_
  int64_t named_ = 0;                // (token, KV head) pairs named, with repeats
};

}  // namespace kvloom::plan
