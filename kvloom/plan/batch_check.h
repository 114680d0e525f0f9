// The gate: after this, planning code takes a batch at its word.
#pragma once

#include "kvloom/contract/batch.h"
#include "kvloom/plan/flat.h"

namespace kvloom::plan {

/// Throws invalid_argument (a malformed batch: the array, the request and the value are named) or over_capacity. Reads no page ids.
/// Explicit groups are checked one by one here; what concerns several of them (a token named twice) is found when they are built.
void check_batch(const AttentionSpec& spec, const Capacity& capacity, const Batch& batch);

/// Lists of a flat batch: one a request, or one a (request, KV head).
inline int64_t num_lists(const AttentionSpec& spec, const Batch& batch) {
  return batch.lists_per_kv_head ? int64_t(batch.num_requests) * spec.num_kv_heads : batch.num_requests;
}

/// Entries of `pages` (ragged: tokens) that `tokens` <= kMaxListTokens of a list take.
inline int64_t list_entries(const AttentionSpec& spec, int64_t tokens) {
  return list_entries(spec.storage == Storage::ragged ? 1 : spec.page_size, tokens);
}

}  // namespace kvloom::plan
