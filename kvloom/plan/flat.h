// What requests of a flat batch become: one row group each. Read by the host's planner and the device's.
#pragma once

#include "kvloom/contract/plan_format.h"
#include "kvloom/contract/spec.h"

namespace kvloom::plan {

/// Largest length of one list, and largest magnitude of a position: sums of a few of them stay within int32.
inline constexpr int64_t kMaxListTokens = int64_t(1) << 29;

/// Entries of `pages` that `tokens` <= kMaxListTokens of a list take; page_size 1: ragged storage, whose entries are tokens.
KVLOOM_HD constexpr int64_t list_entries(int32_t page_size, int64_t tokens) {
  return (uint32_t(tokens) + uint32_t(page_size) - 1) / uint32_t(page_size);  // both at most 2^30; a short division
}

/// Position of a request's first query token, by the default rule: kv_len - q_len.
KVLOOM_HD constexpr int32_t default_q_pos0(int64_t kv_len, int64_t q_len) { return int32_t(kv_len - q_len); }

/// The group of a request with query tokens, [token_begin, token_begin + q_len) of Q, over a list for all KV heads. Written field by field:
/// what is left is zero in a group that is new.
KVLOOM_HD void set_flat_group(RowGroup& g, int32_t request, int64_t list_begin, int64_t token_begin, int64_t q_len, int64_t kv_len, int32_t q_pos0,
                              int32_t prefix, KvPosition kv_position) {
  g.list_begin = list_begin;
  g.row_list = -1;
  g.token_begin = int32_t(token_begin);
  g.token_count = int32_t(q_len);
  g.request = request;
  g.q_pos0 = q_pos0;
  g.kv_end = int32_t(kv_len);
  g.kv_head = -1;
  g.prefix = prefix;
  g.kv_position = kv_position;
}

}  // namespace kvloom::plan
